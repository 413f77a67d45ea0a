//! Webhooks: where people want to be told as well. Their secrets leave this module for whoever signs, and for nobody else.

pub mod deliveries;

use std::fmt;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// A webhook, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Its identity.
    pub id: Uuid,
    /// Where.
    pub url: String,
    /// Since when it is there.
    pub created_at: Timestamp,
    /// Until when the secret before the present one signs, too.
    pub previous_secret_until: Option<Timestamp>,
}

/// A webhook to be.
#[derive(Clone, Copy)]
pub struct NewWebhook<'a> {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub user: Uuid,
    /// Where.
    pub url: &'a str,
    /// What its deliveries are signed with.
    pub secret: &'a str,
}

impl fmt::Debug for NewWebhook<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewWebhook({})", self.id)
    }
}

const COLUMNS: &str = "id, url, created_at, previous_secret_until";

/// Adds a webhook; none when the user has so many already. The user is locked, so that two at once are not one too many.
///
/// # Errors
/// When the database fails.
pub async fn insert(
    tx: &mut Tx,
    new: &NewWebhook<'_>,
    most: i64,
) -> Result<Option<Webhook>, Error> {
    hold(tx, new.user).await?;
    let statement = format!(
        "INSERT INTO webhooks (id, user_id, url, secret)
         SELECT $1, $2, $3, $4
          WHERE (SELECT count(*) FROM webhooks WHERE user_id = $2 AND deleted_at IS NULL) < $5
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(new.id)
        .bind(new.user)
        .bind(new.url)
        .bind(new.secret)
        .bind(most)
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read).transpose()
}

/// The webhooks of a user after the webhook `after`, in the order of their identities.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    user: Uuid,
    limit: i64,
    after: Option<Uuid>,
) -> Result<Vec<Webhook>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM webhooks
          WHERE user_id = $1 AND deleted_at IS NULL AND ($3::uuid IS NULL OR id > $3)
          ORDER BY id
          LIMIT $2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(user)
        .bind(limit)
        .bind(after)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// Whether somebody has such a webhook.
///
/// # Errors
/// When the database fails.
pub async fn is_of(store: &Store, user: Uuid, id: Uuid) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (SELECT 1 FROM webhooks WHERE id = $1 AND user_id = $2 AND deleted_at IS NULL)",
    )
    .bind(id)
    .bind(user)
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

/// Gives a webhook of a user another secret; the one it had signs, too, until `until`. None when they have no such webhook.
///
/// # Errors
/// When the database fails.
pub async fn rotate(
    tx: &mut Tx,
    (user, id): (Uuid, Uuid),
    secret: &str,
    until: Timestamp,
) -> Result<Option<Webhook>, Error> {
    let statement = format!(
        "UPDATE webhooks
            SET previous_secret = secret, previous_secret_until = $4, secret = $3
          WHERE id = $1 AND user_id = $2 AND deleted_at IS NULL
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(id)
        .bind(user)
        .bind(secret)
        .bind(until.to_sqlx())
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read).transpose()
}

/// Removes a webhook of a user: nothing more is tried, and its secrets are forgotten. Says whether there was one. The user is
/// locked: who is just telling them something has told it by then, and who comes later finds no webhook.
///
/// # Errors
/// When the database fails.
pub async fn delete(
    tx: &mut Tx,
    (user, id): (Uuid, Uuid),
    why: &str,
    now: Timestamp,
) -> Result<bool, Error> {
    hold(tx, user).await?;
    let row = sqlx::query(
        "WITH removed AS (
            UPDATE webhooks
               SET deleted_at = $3, secret = '', previous_secret = NULL, previous_secret_until = NULL
             WHERE id = $1 AND user_id = $2 AND deleted_at IS NULL
            RETURNING id
         ), called_off AS (
            UPDATE webhook_deliveries
               SET due_at = NULL, given_up_at = $3, error = $4
              FROM removed
             WHERE webhook_deliveries.webhook_id = removed.id AND webhook_deliveries.due_at IS NOT NULL
         )
         SELECT EXISTS (SELECT 1 FROM removed)",
    )
    .bind(id)
    .bind(user)
    .bind(now.to_sqlx())
    .bind(why)
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get(0)?)
}

async fn hold(tx: &mut Tx, user: Uuid) -> Result<(), Error> {
    sqlx::query("SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE")
        .bind(user)
        .execute(tx.connection())
        .await?;
    Ok(())
}

fn read(row: &PgRow) -> Result<Webhook, Error> {
    let until = row.try_get::<Option<jiff_sqlx::Timestamp>, _>(3)?;
    Ok(Webhook {
        id: row.try_get(0)?,
        url: row.try_get(1)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
        previous_secret_until: until.map(jiff_sqlx::Timestamp::to_jiff),
    })
}
