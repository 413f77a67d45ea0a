//! Since when somebody listens to the nodes. A silence counts only while somebody did: one row, which every gateway keeps
//! fresh, so that it does not matter how many there are.

use jiff::{SignedDuration, Timestamp};
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use crate::{Error, Store};

/// After so long without a gateway nobody has listened; a gateway that is only started again is back before.
pub const UNHEARD: SignedDuration = SignedDuration::from_secs(15);

/// The last stretch of time in which somebody listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// When it began.
    pub since: Timestamp,
    /// When a gateway last said that it does.
    pub until: Timestamp,
}

impl Listening {
    /// Whether somebody has listened at `now`, and all the time since `from`.
    pub fn covers(&self, from: Timestamp, now: Timestamp) -> bool {
        self.since <= from && now.duration_since(self.until) <= UNHEARD
    }
}

/// A gateway listens at `now`. If nobody has for a while, this is where a new stretch begins.
///
/// # Errors
/// When the database fails.
pub async fn listen(store: &Store, now: Timestamp) -> Result<(), Error> {
    // A second more or less is all the same, and with many gateways most of them write nothing.
    sqlx::query(
        "INSERT INTO node_listening AS kept (since, until)
         VALUES ($1, $1)
         ON CONFLICT (one) DO UPDATE
            SET since = CASE WHEN kept.until < $2 THEN excluded.since ELSE kept.since END,
                until = excluded.until
          WHERE kept.until < excluded.until - interval '1 second'",
    )
    .bind(now.to_sqlx())
    .bind(now.saturating_sub(UNHEARD).unwrap_or(Timestamp::MIN).to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(())
}

/// The last stretch; none where no gateway ever was.
///
/// # Errors
/// When the database fails.
pub async fn find_listening(store: &Store) -> Result<Option<Listening>, Error> {
    let row =
        sqlx::query("SELECT since, until FROM node_listening").fetch_optional(store.pool()).await?;
    let read = |row: sqlx::postgres::PgRow| {
        Ok(Listening {
            since: row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff(),
            until: row.try_get::<jiff_sqlx::Timestamp, _>(1)?.to_jiff(),
        })
    };
    row.map(read).transpose()
}
