//! Deliveries to webhooks: which notification goes where, and how that went. One is claimed by moving ahead when it is due, before
//! anything is sent; how it went is written only while it still stands there. Whoever dies in between leaves it to be sent again.

use std::fmt;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::notifications::Notification;
use crate::{Error, Ring, Store, Tx};

/// How far a claim looks for deliveries of different webhooks, so that one with many waiting does not keep the others waiting.
const LOOK_MAX: i64 = 500;

/// How a delivery stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What is delivered.
    pub notification_id: Uuid,
    /// What sort of news it is.
    pub kind: String,
    /// Since when it is tried.
    pub queued_at: Timestamp,
    /// How often, since then.
    pub attempts: i32,
    /// When it is tried next.
    pub due_at: Option<Timestamp>,
    /// When it was taken.
    pub delivered_at: Option<Timestamp>,
    /// When it was given up.
    pub given_up_at: Option<Timestamp>,
    /// What the last attempt was answered with.
    pub http_status: Option<i16>,
    /// Why the last attempt failed: a stable word.
    pub error: Option<String>,
    /// When that was.
    pub attempted_at: Option<Timestamp>,
}

const COLUMNS: &str = "delivery.notification_id, notification.kind, delivery.queued_at, delivery.attempts, delivery.due_at,
        delivery.delivered_at, delivery.given_up_at, delivery.http_status, delivery.error, delivery.attempted_at";

/// The deliveries to a webhook before the notification `before`, newest first.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    webhook: Uuid,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Delivery>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM webhook_deliveries AS delivery
           JOIN notifications AS notification ON notification.id = delivery.notification_id
          WHERE delivery.webhook_id = $1 AND ($3::uuid IS NULL OR delivery.notification_id < $3)
          ORDER BY delivery.notification_id DESC
          LIMIT $2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(webhook)
        .bind(limit)
        .bind(before)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// One delivery, as this transaction sees it.
///
/// # Errors
/// When the database fails.
pub async fn find(
    tx: &mut Tx,
    webhook: Uuid,
    notification: Uuid,
) -> Result<Option<Delivery>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM webhook_deliveries AS delivery
           JOIN notifications AS notification ON notification.id = delivery.notification_id
          WHERE delivery.webhook_id = $1 AND delivery.notification_id = $2"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(webhook)
        .bind(notification)
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read).transpose()
}

/// Has a delivery to a webhook of a user made once more, from the beginning, whatever became of it. Says whether there is one.
///
/// # Errors
/// When the database fails.
pub async fn again(
    tx: &mut Tx,
    (user, webhook): (Uuid, Uuid),
    notification: Uuid,
    now: Timestamp,
) -> Result<bool, Error> {
    let queued = sqlx::query(
        "UPDATE webhook_deliveries AS delivery
            SET queued_at = $4, due_at = $4, attempts = 0, delivered_at = NULL, given_up_at = NULL, http_status = NULL, error = NULL
           FROM webhooks AS webhook
          WHERE delivery.webhook_id = $2 AND delivery.notification_id = $3
            AND webhook.id = delivery.webhook_id AND webhook.user_id = $1 AND webhook.deleted_at IS NULL",
    )
    .bind(user)
    .bind(webhook)
    .bind(notification)
    .bind(now.to_sqlx())
    .execute(tx.connection())
    .await?
    .rows_affected();
    if queued == 1 {
        tx.rings(Ring::Webhooks);
    }
    Ok(queued == 1)
}

/// Something that was claimed, with all that it takes to send it. It has secrets in it, and so no `Debug` of its content.
#[derive(Clone)]
pub struct Parcel {
    /// Which webhook.
    pub webhook_id: Uuid,
    /// Where.
    pub url: String,
    /// What it is signed with: one, or two while one takes the place of the other.
    pub secrets: Vec<String>,
    /// What is delivered.
    pub notification: Notification,
    /// Since when it is tried.
    pub queued_at: Timestamp,
    /// Which attempt this is.
    pub attempt: i32,
    /// Until when nobody else sends it.
    pub leased_until: Timestamp,
}

impl fmt::Debug for Parcel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parcel({} to {})", self.notification.id, self.webhook_id)
    }
}

/// How much is claimed.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// What is due by then.
    pub now: Timestamp,
    /// Until when nobody else claims it.
    pub until: Timestamp,
    /// How much at once.
    pub most: i64,
    /// How much of it for one webhook.
    pub most_each: i64,
    /// What was tried so often is not tried again: it has ended whoever sent it.
    pub attempts_max: i32,
}

/// Claims what is due, the longest due of every webhook first. It is claimed when this returns, and nothing is locked.
///
/// # Errors
/// When the database fails.
pub async fn claim(store: &Store, claim: &Claim) -> Result<Vec<Parcel>, Error> {
    let rows = sqlx::query(
        "WITH waiting AS MATERIALIZED (
            SELECT webhook_id, notification_id, due_at
              FROM webhook_deliveries
             WHERE due_at <= $1 AND attempts < $5
             ORDER BY due_at
             LIMIT $6
         ), ranked AS MATERIALIZED (
            SELECT webhook_id, notification_id, row_number() OVER (PARTITION BY webhook_id ORDER BY due_at, notification_id) AS place
              FROM waiting
         ), picked AS MATERIALIZED (
            SELECT delivery.webhook_id, delivery.notification_id
              FROM webhook_deliveries AS delivery
              JOIN ranked USING (webhook_id, notification_id)
             WHERE ranked.place <= $4 AND delivery.due_at <= $1
             ORDER BY ranked.place, delivery.due_at
             LIMIT $3
               FOR UPDATE OF delivery SKIP LOCKED
         ), leased AS (
            UPDATE webhook_deliveries AS delivery
               SET due_at = $2, attempts = delivery.attempts + 1, attempted_at = $1
              FROM picked
             WHERE delivery.webhook_id = picked.webhook_id AND delivery.notification_id = picked.notification_id
            RETURNING delivery.webhook_id, delivery.notification_id, delivery.queued_at, delivery.attempts, delivery.due_at
         )
         SELECT leased.webhook_id, webhook.url, webhook.secret,
                CASE WHEN webhook.previous_secret_until > $1 THEN webhook.previous_secret END,
                leased.queued_at, leased.attempts, leased.due_at, notification.id, notification.number, notification.kind,
                notification.title, notification.body, notification.project_id, notification.allocation_id,
                notification.payment_session_id, notification.created_at, notification.read_at
           FROM leased
           JOIN webhooks AS webhook ON webhook.id = leased.webhook_id AND webhook.deleted_at IS NULL
           JOIN notifications AS notification ON notification.id = leased.notification_id",
    )
    .bind(claim.now.to_sqlx())
    .bind(claim.until.to_sqlx())
    .bind(claim.most)
    .bind(claim.most_each)
    .bind(claim.attempts_max)
    .bind(LOOK_MAX)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(parcel).collect()
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    /// When.
    pub at: Timestamp,
    /// Whether it was taken.
    pub taken: bool,
    /// When it is tried again; never, when it was taken or is given up.
    pub again_at: Option<Timestamp>,
    /// What it was answered with.
    pub http_status: Option<i16>,
    /// Why it failed: a stable word.
    pub error: Option<&'a str>,
}

/// Writes down how an attempt ended, if it is still the one that counts: nobody else has claimed it since, nobody has asked for it
/// anew, and its webhook is there.
///
/// # Errors
/// When the database fails.
pub async fn record(store: &Store, parcel: &Parcel, ended: &Ended<'_>) -> Result<bool, Error> {
    let recorded = sqlx::query(
        "UPDATE webhook_deliveries
            SET due_at = $4, http_status = $5, error = $6,
                delivered_at = CASE WHEN $7 THEN $8 END,
                given_up_at = CASE WHEN NOT $7 AND $4::timestamptz IS NULL THEN $8 END
          WHERE webhook_id = $1 AND notification_id = $2 AND due_at = $3",
    )
    .bind(parcel.webhook_id)
    .bind(parcel.notification.id)
    .bind(parcel.leased_until.to_sqlx())
    .bind(ended.again_at.map(|at| at.to_sqlx()))
    .bind(ended.http_status)
    .bind(ended.error)
    .bind(ended.taken)
    .bind(ended.at.to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(recorded.rows_affected() == 1)
}

/// Gives up what has ended everybody who tried to send it; says how much.
///
/// # Errors
/// When the database fails.
pub async fn give_up(
    store: &Store,
    now: Timestamp,
    attempts_max: i32,
    why: &str,
) -> Result<u64, Error> {
    let given_up = sqlx::query(
        "UPDATE webhook_deliveries
            SET due_at = NULL, given_up_at = $1, error = $3
          WHERE due_at <= $1 AND attempts >= $2",
    )
    .bind(now.to_sqlx())
    .bind(attempts_max)
    .bind(why)
    .execute(store.pool())
    .await?;
    Ok(given_up.rows_affected())
}

fn read(row: &PgRow) -> Result<Delivery, Error> {
    Ok(Delivery {
        notification_id: row.try_get(0)?,
        kind: row.try_get(1)?,
        queued_at: at(row, 2)?,
        attempts: row.try_get(3)?,
        due_at: maybe_at(row, 4)?,
        delivered_at: maybe_at(row, 5)?,
        given_up_at: maybe_at(row, 6)?,
        http_status: row.try_get(7)?,
        error: row.try_get(8)?,
        attempted_at: maybe_at(row, 9)?,
    })
}

fn parcel(row: &PgRow) -> Result<Parcel, Error> {
    let (secret, previous): (String, Option<String>) = (row.try_get(2)?, row.try_get(3)?);
    Ok(Parcel {
        webhook_id: row.try_get(0)?,
        url: row.try_get(1)?,
        secrets: [Some(secret), previous].into_iter().flatten().collect(),
        queued_at: at(row, 4)?,
        attempt: row.try_get(5)?,
        leased_until: at(row, 6)?,
        notification: Notification {
            id: row.try_get(7)?,
            number: row.try_get(8)?,
            kind: row.try_get(9)?,
            title: row.try_get(10)?,
            body: row.try_get(11)?,
            project_id: row.try_get(12)?,
            allocation_id: row.try_get(13)?,
            payment_session_id: row.try_get(14)?,
            created_at: at(row, 15)?,
            read_at: maybe_at(row, 16)?,
        },
    })
}

fn at(row: &PgRow, column: usize) -> Result<Timestamp, Error> {
    Ok(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff())
}

fn maybe_at(row: &PgRow, column: usize) -> Result<Option<Timestamp>, Error> {
    Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
}
