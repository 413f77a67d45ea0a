//! SSH keys: public halves that are installed where their owner is to log in. The comment of a key is never kept.

use domain::policy::Permission;
use serde_json::json;
use uuid::Uuid;
use wire::http::Page;
use wire::http::account::{NewSshKey, SshKey};

use super::faults::Faults;
use super::public_key::PublicKey;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// Adds a key.
///
/// # Errors
/// [`Error::Invalid`] for what is not one public key, [`Error::Conflict`] for one that is there already.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    new: &NewSshKey,
    key: Option<&Key>,
) -> Result<Answer<SshKey>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut faults = Faults::default();
    let name = faults.name("/name", &new.name);
    let parsed = PublicKey::parse(&new.public_key);
    if let Err(fault) = &parsed {
        faults.note("/public_key", fault.to_string());
    }
    faults.settle()?;
    let parsed = parsed.map_err(|fault| Error::invalid("/public_key", fault.to_string()))?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let new = store::ssh_keys::NewSshKey {
        id: tx.new_id(),
        user: caller.user_id,
        name,
        public_key: &parsed.text,
        algorithm: &parsed.algorithm,
        fingerprint: &parsed.fingerprint,
    };
    let added = store::ssh_keys::insert(&mut tx, new).await?;
    let Some(added) = added else {
        return Err(Error::Conflict(format!("you have this key already: {}", parsed.fingerprint)));
    };
    let deed = Deed::new(caller, Action::SshKeyCreate, "ssh_key", added.id)
        .with(json!({ "fingerprint": added.fingerprint }));
    finish(tx, &deed, key, 201, shown(added)).await
}

/// The caller's keys.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<SshKey>, Error> {
    caller.needs(Permission::AccountRead)?;
    let paging = Paging::read(ctx, &("ssh-keys", caller.user_id), limit, cursor)?;
    let (rows, after) = (paging.rows(), paging.after());
    let rows = store::ssh_keys::list(&ctx.store, caller.user_id, rows, after).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |key| key.id))
}

/// Deletes a key of the caller. Allocations that have it keep it.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such key.
pub async fn delete(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<()>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    if !store::ssh_keys::delete(&mut tx, caller.user_id, id).await? {
        return Err(Error::NotFound("SSH key"));
    }
    let deed = Deed::new(caller, Action::SshKeyDelete, "ssh_key", id);
    finish(tx, &deed, key, 204, ()).await
}

fn shown(key: store::ssh_keys::SshKey) -> SshKey {
    SshKey {
        id: key.id,
        name: key.name,
        fingerprint: key.fingerprint,
        algorithm: key.algorithm,
        created_at: key.created_at,
    }
}
