//! Where the minutes of usage rest: a partition a day, made ahead of the time and dropped as a whole when it is old. Minutes for which
//! none was made rest in one for all of those, so that a clock that jumps, or somebody who was away, is charged all the same.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use crate::{Error, Store};

/// For how many days there is a partition ahead.
const DAYS_AHEAD: i32 = 3;
/// How far back days are made that are missing: whoever was away for that long is charged into days of their own.
const DAYS_BEHIND: i32 = 62;

/// Makes the days that are missing around `now`; answers how many. Two who make the same day make one.
///
/// # Errors
/// When the database fails, or somebody reads the table for longer than one waits for it. What is charged then goes elsewhere.
pub async fn make_days(store: &Store, now: Timestamp) -> Result<u64, Error> {
    let missing = sqlx::query(
        "WITH parts AS MATERIALIZED (SELECT since, until FROM usage_parts())
         SELECT day
           FROM (SELECT coalesce(max(windows_since), '-infinity') AS windows_since FROM usage_kept) AS kept,
                date_trunc('day', $1::timestamptz, 'UTC') AS today
          CROSS JOIN LATERAL generate_series(-$2::integer, $3) AS days
          CROSS JOIN LATERAL (SELECT today + days * interval '24 hours') AS around (day)
          WHERE day >= kept.windows_since
            AND NOT EXISTS (SELECT 1 FROM parts AS part WHERE part.since <= day AND part.until > day)
            AND NOT EXISTS (SELECT 1 FROM usage_windows_other WHERE window_at >= day AND window_at < day + interval '24 hours')
          ORDER BY day",
    )
    .bind(now.to_sqlx())
    .bind(DAYS_BEHIND)
    .bind(DAYS_AHEAD)
    .fetch_all(store.pool())
    .await?;
    let mut made = 0;
    for row in missing {
        let day: jiff_sqlx::Timestamp = row.try_get(0)?;
        let row =
            sqlx::query("SELECT make_usage_day($1)").bind(day).fetch_one(store.pool()).await?;
        made += u64::from(row.try_get::<bool, _>(0)?);
    }
    Ok(made)
}

/// Drops the partitions that end before `older_than` and that nobody needs, the oldest first; answers how many. What is in them is
/// counted as charged for ever.
///
/// # Errors
/// When the database fails, or somebody reads the table for longer than one waits for it; what was dropped by then stays so.
pub async fn drop_days(store: &Store, older_than: Timestamp) -> Result<u64, Error> {
    let mut dropped = 0;
    loop {
        let row = sqlx::query("SELECT drop_usage_part($1)")
            .bind(older_than.to_sqlx())
            .fetch_one(store.pool())
            .await?;
        if !row.try_get(0)? {
            return Ok(dropped);
        }
        dropped += 1;
    }
}
