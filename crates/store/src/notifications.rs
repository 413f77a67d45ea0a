//! Notifications: what people were told, once a cause, numbered for each of them without a gap. A number is given under the lock
//! of the user, which is held until the commit; so who sees number n of somebody sees all before it, and a stream that goes on
//! after n misses nothing. Deliveries to webhooks are written in the same statement.

pub mod about;
mod told;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::prune::Prune;
use crate::{Error, Store, Tx};
pub use told::{address, tell};

/// How much of a stream is read at a time.
const READ_MAX: i64 = 200;

const COLUMNS: &str = "id, number, kind, title, body, project_id, allocation_id, payment_session_id, created_at, read_at";

/// What there is to tell.
#[derive(Clone, Debug)]
pub struct News<'a> {
    /// What sort of news: a stable word.
    pub kind: &'a str,
    /// What it is about: made of what happened, and of nothing else.
    pub cause: &'a str,
    /// Its first line.
    pub title: &'a str,
    /// The rest of it.
    pub body: &'a str,
    /// The project it is about.
    pub project_id: Option<Uuid>,
    /// The allocation it is about.
    pub allocation_id: Option<Uuid>,
    /// The payment it is about.
    pub payment_session_id: Option<Uuid>,
    /// The one webhook it is for, if it is not for all of theirs.
    pub webhook_id: Option<Uuid>,
    /// Since when it is to be delivered to webhooks.
    pub now: Timestamp,
}

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Its identity.
    pub id: Uuid,
    /// Its place among those of its reader.
    pub number: i64,
    /// What sort of news.
    pub kind: String,
    /// Its first line.
    pub title: String,
    /// The rest of it.
    pub body: String,
    /// The project it is about.
    pub project_id: Option<Uuid>,
    /// The allocation it is about.
    pub allocation_id: Option<Uuid>,
    /// The payment it is about.
    pub payment_session_id: Option<Uuid>,
    /// Since when it is there.
    pub created_at: Timestamp,
    /// When it was read.
    pub read_at: Option<Timestamp>,
}

/// People whose next notification is this transaction's to number. There is no other way to tell anybody anything.
#[derive(Clone, Debug)]
pub struct Addressed(Vec<Uuid>);

impl Addressed {
    /// Those of them.
    #[must_use]
    pub fn only(&self, users: &[Uuid]) -> Addressed {
        Addressed(self.0.iter().copied().filter(|user| users.contains(user)).collect())
    }
}

/// The notifications of somebody before number `before`, newest first; those that were not read, if that is asked.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    user: Uuid,
    unread: bool,
    limit: i64,
    before: Option<i64>,
) -> Result<Vec<Notification>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM notifications
          WHERE user_id = $1 AND ($2::bigint IS NULL OR number < $2) AND (NOT $3 OR read_at IS NULL)
          ORDER BY number DESC
          LIMIT $4"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(user)
        .bind(before)
        .bind(unread)
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read_row).collect()
}

/// How many somebody has not read.
///
/// # Errors
/// When the database fails.
pub async fn unread(store: &Store, user: Uuid) -> Result<i64, Error> {
    let row =
        sqlx::query("SELECT count(*) FROM notifications WHERE user_id = $1 AND read_at IS NULL")
            .bind(user)
            .fetch_one(store.pool())
            .await?;
    Ok(row.try_get(0)?)
}

/// A bounded piece of what somebody was told after number `after`, in its order, without a gap.
///
/// # Errors
/// When the database fails.
pub async fn after(store: &Store, user: Uuid, after: i64) -> Result<Vec<Notification>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM notifications
          WHERE user_id = $1 AND number > $2
          ORDER BY number
          LIMIT $3"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(user)
        .bind(after)
        .bind(READ_MAX)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read_row).collect()
}

/// The last number of each of these people; who was never told anything is left out. One statement for all of them.
///
/// # Errors
/// When the database fails.
pub async fn reached(store: &Store, users: &[Uuid]) -> Result<Vec<(Uuid, i64)>, Error> {
    let rows = sqlx::query(
        "SELECT asked.id, last.number
           FROM unnest($1::uuid[]) AS asked (id)
          CROSS JOIN LATERAL (
                SELECT number
                  FROM notifications
                 WHERE user_id = asked.id
                 ORDER BY number DESC
                 LIMIT 1
                ) AS last",
    )
    .bind(users)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Somebody has read one of theirs; none when it is not. A second time changes nothing.
///
/// # Errors
/// When the database fails.
pub async fn read(
    tx: &mut Tx,
    user: Uuid,
    id: Uuid,
    now: Timestamp,
) -> Result<Option<Notification>, Error> {
    let statement = format!(
        "UPDATE notifications
            SET read_at = coalesce(read_at, $3)
          WHERE id = $1 AND user_id = $2
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(id)
        .bind(user)
        .bind(now.to_sqlx())
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read_row).transpose()
}

/// Somebody has read all of theirs up to a number, or all there are; how many that were news.
///
/// # Errors
/// When the database fails.
pub async fn read_all(
    tx: &mut Tx,
    user: Uuid,
    up_to: Option<i64>,
    now: Timestamp,
) -> Result<u64, Error> {
    let read = sqlx::query(
        "UPDATE notifications
            SET read_at = $3
          WHERE user_id = $1 AND read_at IS NULL AND ($2::bigint IS NULL OR number <= $2)",
    )
    .bind(user)
    .bind(up_to)
    .bind(now.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(read.rows_affected())
}

fn read_row(row: &PgRow) -> Result<Notification, Error> {
    let read_at = row.try_get::<Option<jiff_sqlx::Timestamp>, _>(9)?;
    Ok(Notification {
        id: row.try_get(0)?,
        number: row.try_get(1)?,
        kind: row.try_get(2)?,
        title: row.try_get(3)?,
        body: row.try_get(4)?,
        project_id: row.try_get(5)?,
        allocation_id: row.try_get(6)?,
        payment_session_id: row.try_get(7)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(8)?.to_jiff(),
        read_at: read_at.map(jiff_sqlx::Timestamp::to_jiff),
    })
}

/// What people were told long ago, with its deliveries. What is still being delivered stays; and so does the last of everybody, after
/// which the next is numbered.
pub const PRUNE: Prune = Prune::new(
    "notifications",
    "WITH page AS MATERIALIZED (
        SELECT ctid AS place, id, user_id, number, created_at AS at
          FROM notifications
         WHERE created_at < $1 AND created_at > coalesce($2::timestamptz, '-infinity')
         ORDER BY created_at
         LIMIT $3
           FOR UPDATE SKIP LOCKED
     ), sent AS MATERIALIZED (
        -- Locked: who asks for one of them anew comes before this, and is seen, or after it, and finds nothing.
        SELECT notification_id, due_at
          FROM webhook_deliveries
         WHERE notification_id = ANY (ARRAY(SELECT id FROM page))
           FOR UPDATE
     ), old AS MATERIALIZED (
        SELECT place, id
          FROM page
         WHERE id <> ALL (ARRAY(SELECT notification_id FROM sent WHERE due_at IS NOT NULL))
           AND number < (SELECT last.number
                           FROM notifications AS last
                          WHERE last.user_id = page.user_id
                          ORDER BY last.number DESC
                          LIMIT 1)
     ), unsent AS (
        DELETE FROM webhook_deliveries
         WHERE notification_id = ANY (ARRAY(SELECT id FROM old))
     ), gone AS (
        DELETE FROM notifications
         WHERE ctid = ANY (ARRAY(SELECT place FROM old))
        RETURNING 1
     )
     SELECT (SELECT count(*) FROM page), (SELECT max(at) FROM page), (SELECT count(*) FROM gone)",
);
