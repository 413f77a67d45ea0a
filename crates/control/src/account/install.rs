//! The first accounts of an installation, made at its first start. Made again they stay as they are.

use domain::policy::Scope;
use serde_json::json;
use uuid::Uuid;
use wire::http::account::FreshToken;

use super::faults::Faults;
use super::{password, tokens};
use crate::audit_log::{Action, by_system};
use crate::{Ctx, Error, billing};

/// The user with that address, made if there is none. One who is there keeps name, rights and password.
///
/// # Errors
/// [`Error::Invalid`] for a name or an address that is none.
pub async fn ensure_user(
    ctx: &Ctx,
    email: &str,
    name: &str,
    operator: bool,
    password: Option<&str>,
) -> Result<Uuid, Error> {
    let mut faults = Faults::default();
    let (email, name) = (faults.name("/email", email), faults.name("/name", name));
    if !email.contains('@') || email.contains(char::is_whitespace) {
        faults.note("/email", "must be an address");
    }
    faults.settle()?;
    if let Some(found) = store::users::find_by_email(&ctx.store, email).await? {
        return Ok(found.user.id);
    }
    let hash = match password {
        Some(password) => Some(password::hash(password).await?),
        None => None,
    };
    let mut tx = ctx.store.begin().await?;
    let id = tx.new_id();
    let new = store::users::NewUser { id, email, name, operator, password_hash: hash.as_deref() };
    if store::users::insert(&mut tx, &new).await? {
        let what = json!({ "operator": operator });
        by_system(&mut tx, Action::InstallUser, ("user", id), what).await?;
        tx.commit().await?;
        return Ok(id);
    }
    tx.rollback().await?;
    // Another process that starts at the same time was faster.
    let found = store::users::find_by_email(&ctx.store, email).await?;
    found.map(|found| found.user.id).ok_or(Error::Store(store::Error::Conflict))
}

/// The project of that name of a user, made with them as its admin if there is none.
///
/// # Errors
/// [`Error::Invalid`] for a name that is none.
pub async fn ensure_project(ctx: &Ctx, admin: Uuid, name: &str) -> Result<Uuid, Error> {
    let mut faults = Faults::default();
    let name = faults.name("/name", name);
    faults.settle()?;
    let mut tx = ctx.store.begin().await?;
    let account = Some(billing::account::ensure(ctx, &mut tx, admin).await?);
    let new = store::projects::NewProject { id: tx.new_id(), name, admin, account };
    let fresh = new.id;
    let id = store::projects::ensure(&mut tx, new).await?;
    if id == fresh {
        let what = json!({ "admin": admin });
        by_system(&mut tx, Action::InstallProject, ("project", id), what).await?;
    }
    tx.commit().await?;
    Ok(id)
}

/// A token for a user, as an operator of the machine gives it out.
///
/// # Errors
/// [`Error::Invalid`] for a name that is none.
pub async fn issue_token(
    ctx: &Ctx,
    user: Uuid,
    name: &str,
    scopes: &[Scope],
    ttl_seconds: u32,
) -> Result<FreshToken, Error> {
    let mut faults = Faults::default();
    let name = faults.name("/name", name);
    faults.settle()?;
    let mut tx = ctx.store.begin().await?;
    let wanted = tokens::Wanted { name, scopes, ttl_seconds };
    let fresh = tokens::insert(ctx, &mut tx, user, wanted).await?;
    let what = json!({ "user_id": user, "scopes": fresh.token.scopes });
    by_system(&mut tx, Action::InstallToken, ("token", fresh.token.id), what).await?;
    tx.commit().await?;
    Ok(fresh)
}
