//! What somebody was told, as they see it: page by page, read and unread, and as it comes.

use domain::policy::Permission;
use lifecycle::Code as _;
use serde_json::json;
use store::notifications;
use store::views::events::{Watched, Watcher};
use uuid::Uuid;
use wire::http::notifications::{HaveRead, Notification, NotificationKind, Notifications, ReadAll};

use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// What the caller was told, newest first, and how much of it they have not read.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    unread: bool,
    (limit, cursor): (Option<u16>, Option<&str>),
) -> Result<Notifications, Error> {
    caller.needs(Permission::AccountRead)?;
    let of = ("notifications", caller.user_id, unread);
    let paging = Paging::<i64>::read(ctx, &of, limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let rows = notifications::list(&ctx.store, caller.user_id, unread, rows, before).await?;
    let page =
        paging.page(ctx, rows.into_iter().map(shown).collect(), |told: &Notification| told.number);
    let unread = notifications::unread(&ctx.store, caller.user_id).await?;
    Ok(Notifications { items: page.items, next_cursor: page.next_cursor, unread })
}

/// The caller has read one of theirs. A second time changes nothing.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, or there is none.
pub async fn read(
    ctx: &Ctx,
    caller: &Caller,
    id: Uuid,
    key: Option<&Key>,
) -> Result<Answer<Notification>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let read = notifications::read(&mut tx, caller.user_id, id, ctx.clock.now()).await?;
    let read = read.ok_or(Error::NotFound("notification"))?;
    let deed = Deed::new(caller, Action::NotificationRead, "notification", id);
    finish(tx, &deed, key, 200, shown(read)).await
}

/// The caller has read all of theirs, up to what they have seen.
///
/// # Errors
/// [`Error::Invalid`] for a number that is none.
pub async fn read_all(
    ctx: &Ctx,
    caller: &Caller,
    asked: &ReadAll,
    key: Option<&Key>,
) -> Result<Answer<HaveRead>, Error> {
    caller.needs(Permission::AccountWrite)?;
    if asked.up_to.is_some_and(|number| number < 0) {
        return Err(Error::invalid("/up_to", "must not be negative"));
    }
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let (user, now) = (caller.user_id, ctx.clock.now());
    let read = notifications::read_all(&mut tx, user, asked.up_to, now).await?;
    let deed = Deed::new(caller, Action::NotificationReadAll, "user", user)
        .with(json!({ "up_to": asked.up_to, "read": read }));
    finish(tx, &deed, key, 200, HaveRead { read }).await
}

/// Whether the caller may watch what they are told.
///
/// # Errors
/// [`Error::Forbidden`] when their token is not for reading.
pub fn watcher(caller: &Caller) -> Result<Watcher, Error> {
    caller.needs(Permission::AccountRead)?;
    Ok(Watcher { token: caller.token_id, user: caller.user_id, watched: Watched::Own })
}

/// The number of the last that somebody was told; zero for who was never told anything.
///
/// # Errors
/// When the store fails.
pub async fn latest(ctx: &Ctx, user: Uuid) -> Result<i64, Error> {
    let reached = notifications::reached(&ctx.store, &[user]).await?;
    Ok(reached.first().map_or(0, |(_, number)| *number))
}

/// How far each of these people has got, for whoever makes sure that nobody who watches has missed a ring.
///
/// # Errors
/// When the store fails.
pub async fn reached(ctx: &Ctx, users: &[Uuid]) -> Result<Vec<(Uuid, i64)>, Error> {
    Ok(notifications::reached(&ctx.store, users).await?)
}

/// What somebody was told after that number, a bounded piece of it, without a gap.
///
/// # Errors
/// When the store fails.
pub async fn after(ctx: &Ctx, user: Uuid, number: i64) -> Result<Vec<Notification>, Error> {
    let rows = notifications::after(&ctx.store, user, number).await?;
    Ok(rows.into_iter().map(shown).collect())
}

fn shown(row: notifications::Notification) -> Notification {
    Notification {
        id: row.id,
        number: row.number,
        kind: kind(&row.kind).into(),
        title: row.title,
        body: row.body,
        project_id: row.project_id,
        allocation_id: row.allocation_id,
        payment_session_id: row.payment_session_id,
        created_at: row.created_at,
        read_at: row.read_at,
    }
}

/// What another version has written is shown, too, without its word.
pub(crate) fn kind(text: &str) -> NotificationKind {
    NotificationKind::parse(text).unwrap_or(NotificationKind::Other)
}
