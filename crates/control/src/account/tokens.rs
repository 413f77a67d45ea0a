//! API tokens: made with no more than the one that asks has, shown once, revoked at any time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use domain::policy::{Permission, Scope};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use store::Tx;
use uuid::Uuid;
use wire::http::Page;
use wire::http::account::{FreshToken, NewToken, Token};

use super::faults::Faults;
use super::secret;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish, finish_secret};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

const TTL_SECONDS: std::ops::RangeInclusive<u32> = 60..=31_536_000;
const TTL_SECONDS_DEFAULT: u32 = 90 * 86_400;

/// How exactly it is known when a token was last used.
const USE_EXACT_TO: SignedDuration = SignedDuration::from_secs(60);

/// Uses that are not written down yet: no request waits for that.
static USES: Mutex<Option<HashMap<Uuid, Timestamp>>> = Mutex::new(None);

/// A token to be.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) scopes: &'a [Scope],
    pub(super) ttl_seconds: u32,
}

/// Makes a token for a user.
pub(super) async fn insert(
    ctx: &Ctx,
    tx: &mut Tx,
    user: Uuid,
    wanted: Wanted<'_>,
) -> Result<FreshToken, Error> {
    let (text, secret_hash) = secret::fresh()?;
    let (id, created_at) = (tx.new_id(), ctx.clock.now());
    let expires_at = ctx.clock.after(Duration::from_secs(u64::from(wanted.ttl_seconds)));
    let Wanted { name, scopes, .. } = wanted;
    let new =
        store::api_tokens::NewToken { id, user, name, secret_hash, scopes, created_at, expires_at };
    store::api_tokens::insert(tx, &new).await?;
    let token = Token {
        id,
        name: name.to_owned(),
        scopes: scopes.iter().map(|scope| (*scope).into()).collect(),
        created_at,
        expires_at,
        last_used_at: None,
        revoked_at: None,
    };
    Ok(FreshToken { token, secret: text })
}

/// Makes a token for the caller.
///
/// # Errors
/// [`Error::Invalid`] with everything that is wrong with what was asked.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    new: &NewToken,
    key: Option<&Key>,
) -> Result<Answer<FreshToken>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut faults = Faults::default();
    let name = faults.name("/name", &new.name);
    if new.scopes.is_empty() {
        faults.note("/scopes", "must name at least one scope");
    }
    let mut scopes: Vec<Scope> = Vec::new();
    for (position, scope) in new.scopes.iter().enumerate() {
        if !caller.scopes.contains(&scope.0) {
            let detail = format!("the token that asks does not have the scope {scope} itself");
            faults.note(format!("/scopes/{position}"), detail);
        } else if !scopes.contains(&scope.0) {
            scopes.push(scope.0);
        }
    }
    let ttl_seconds = new.ttl_seconds.unwrap_or(TTL_SECONDS_DEFAULT);
    if !TTL_SECONDS.contains(&ttl_seconds) {
        let (least, most) = (TTL_SECONDS.start(), TTL_SECONDS.end());
        faults.note("/ttl_seconds", format!("must be between {least} and {most}"));
    }
    faults.settle()?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let wanted = Wanted { name, scopes: &scopes, ttl_seconds };
    let fresh = insert(ctx, &mut tx, caller.user_id, wanted).await?;
    let deed = Deed::new(caller, Action::TokenCreate, "token", fresh.token.id)
        .with(json!({ "scopes": new.scopes, "ttl_seconds": ttl_seconds }));
    finish_secret(tx, &deed, key, 201, fresh).await
}

/// The caller's tokens, newest first.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Token>, Error> {
    caller.needs(Permission::AccountRead)?;
    let paging = Paging::read(ctx, &("tokens", caller.user_id), limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let rows = store::api_tokens::list(&ctx.store, caller.user_id, rows, before).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |token| token.id))
}

/// Revokes a token of the caller. It is of no use from then on; revoking it again changes nothing.
///
/// # Errors
/// [`Error::NotFound`] when the caller has no such token.
pub async fn revoke(
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
    if !store::api_tokens::revoke(&mut tx, caller.user_id, id, ctx.clock.now()).await? {
        return Err(Error::NotFound("token"));
    }
    let deed = Deed::new(caller, Action::TokenRevoke, "token", id);
    finish(tx, &deed, key, 204, ()).await
}

/// Remembers that a token was used, if that is news.
pub(super) fn note_use(id: Uuid, last_used_at: Option<Timestamp>, now: Timestamp) {
    let known = last_used_at.is_some_and(|last| now.duration_since(last) < USE_EXACT_TO);
    if !known {
        let mut uses = USES.lock().unwrap_or_else(PoisonError::into_inner);
        uses.get_or_insert_default().insert(id, now);
    }
}

/// Writes down when tokens were last used; says for how many that was news. A timer calls this about once a minute.
///
/// # Errors
/// When the store fails; the uses are lost then, and the next ones are not.
pub async fn record_uses(ctx: &Ctx) -> Result<u64, Error> {
    let uses = USES.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    if uses.is_empty() {
        return Ok(0);
    }
    let uses: Vec<(Uuid, Timestamp)> = uses.into_iter().collect();
    Ok(store::api_tokens::touch(&ctx.store, &uses).await?)
}

fn shown(token: store::api_tokens::Token) -> Token {
    Token {
        id: token.id,
        name: token.name,
        scopes: token.scopes.into_iter().map(Into::into).collect(),
        created_at: token.created_at,
        expires_at: token.expires_at,
        last_used_at: token.last_used_at,
        revoked_at: token.revoked_at,
    }
}
