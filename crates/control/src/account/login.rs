//! Coming in: a password gives a token, a token gives a [`Caller`]. Whoever is not let in gets one answer, whatever the
//! reason.

use domain::policy::{Permission, Scope};
use lifecycle::Code as _;
use uuid::Uuid;
use wire::http::PAGE_MAX;
use wire::http::account::{FreshToken, Login, Me};

use super::faults::Faults;
use super::{password, projects, secret, tokens};
use crate::audit_log::denied::{self, Refused};
use crate::audit_log::{Action, DONE, Deed};
use crate::{Caller, Ctx, Error};

const REFUSED_TOKEN: Error = Error::Unauthenticated("this token is not valid");
const REFUSED_LOGIN: Error = Error::Unauthenticated("the address or the password is wrong");

/// For how long the token of a login is good.
const LOGIN_TTL_SECONDS: u32 = 30 * 86_400;
const EMAIL_BYTES_MAX: usize = 254;
const PASSWORD_BYTES_MAX: usize = 1_024;

/// A request, before it is known whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its identity.
    pub id: Uuid,
    /// The address it came from, as far as it is known.
    pub source: Option<String>,
}

/// Who has come with this token.
///
/// # Errors
/// [`Error::Unauthenticated`], the same for a token that is unknown, expired or revoked, or whose user is shut out.
pub async fn authenticate(ctx: &Ctx, text: &str, request: Request) -> Result<Caller, Error> {
    let hash = secret::hash_of(text).ok_or(REFUSED_TOKEN)?;
    let live = ctx.desks.token(hash).await?;
    let now = ctx.clock.now();
    let live = live.filter(|live| now < live.expires_at).ok_or(REFUSED_TOKEN)?;
    tokens::note_use(live.id, live.last_used_at, now);
    Ok(Caller {
        user_id: live.user.id,
        email: live.user.email,
        name: live.user.name,
        operator: live.user.operator,
        token_id: live.id,
        scopes: live.scopes,
        request_id: request.id,
        source: request.source,
    })
}

/// A token for a password.
///
/// # Errors
/// [`Error::Unauthenticated`] when the address or the password is wrong, after the same work for either.
pub async fn login(ctx: &Ctx, login: &Login, request: &Request) -> Result<FreshToken, Error> {
    let mut faults = Faults::default();
    if login.email.len() > EMAIL_BYTES_MAX {
        faults.note("/email", format!("must have at most {EMAIL_BYTES_MAX} characters"));
    }
    if login.password.len() > PASSWORD_BYTES_MAX {
        faults.note("/password", format!("must have at most {PASSWORD_BYTES_MAX} characters"));
    }
    let name = faults.name("/token_name", login.token_name.as_deref().unwrap_or("login"));
    faults.settle()?;
    let found = store::users::find_by_email(&ctx.store, login.email.trim()).await?;
    let (user, hash) = found.map_or((None, None), |found| (Some(found.user), found.password_hash));
    let right = password::verify(&login.password, hash).await?;
    let user_id = user.as_ref().map(|user| user.id);
    let Some(user) = user.filter(|user| right && user.enabled) else {
        let (email, source) = (login.email.as_str(), request.source.as_deref());
        let refused = Refused { user_id, email, request_id: Some(request.id), source };
        denied::at_login(ctx, &refused).await?;
        return Err(REFUSED_LOGIN);
    };
    let mut scopes = vec![Scope::Read, Scope::Write];
    if user.operator {
        scopes.push(Scope::Admin);
    }
    let mut tx = ctx.store.begin().await?;
    let wanted = tokens::Wanted { name, scopes: &scopes, ttl_seconds: LOGIN_TTL_SECONDS };
    let fresh = tokens::insert(ctx, &mut tx, user.id, wanted).await?;
    let caller = Caller {
        user_id: user.id,
        email: user.email,
        name: user.name,
        operator: user.operator,
        token_id: fresh.token.id,
        scopes,
        request_id: request.id,
        source: request.source.clone(),
    };
    Deed::new(&caller, Action::Login, "token", fresh.token.id).write(&mut tx, DONE).await?;
    tx.commit().await?;
    Ok(fresh)
}

/// Who the caller is, with the first of their projects.
///
/// # Errors
/// When the store fails.
pub async fn me(ctx: &Ctx, caller: &Caller) -> Result<Me, Error> {
    caller.needs(Permission::AccountRead)?;
    let found = store::projects::list_for(&ctx.store, caller.user_id, i64::from(PAGE_MAX), None);
    let scopes = Scope::ALL.iter().filter(|scope| caller.scopes.contains(scope));
    Ok(Me {
        user_id: caller.user_id,
        email: caller.email.clone(),
        name: caller.name.clone(),
        operator: caller.operator,
        scopes: scopes.map(|scope| (*scope).into()).collect(),
        projects: found.await?.into_iter().map(projects::shown).collect(),
    })
}
