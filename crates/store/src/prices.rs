//! Prices from a moment on. A price is never set backwards: what was charged was charged at what it cost then.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use uuid::Uuid;

use crate::{Error, Tx};

/// A price to be.
#[derive(Clone, Copy, Debug)]
pub struct NewPrice<'a> {
    /// Of what.
    pub sku: &'a str,
    /// From when.
    pub from: Timestamp,
    /// The price of one GPU for one second.
    pub price_micros_per_gpu_second: i64,
    /// Whether those who have one already pay it too.
    pub running: bool,
    /// Who set it.
    pub changed_by: Uuid,
    /// Why.
    pub reason: &'a str,
}

/// Sets a price. Answers how many running allocations pay it too; none when there is no such SKU, or a price was set for that very
/// moment before.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, price: &NewPrice<'_>) -> Result<Option<i64>, Error> {
    let set = sqlx::query(
        "INSERT INTO sku_prices (sku, from_at, price_micros_per_gpu_second, running, changed_by, reason)
         SELECT code, $2, $3, $4, $5, $6 FROM skus WHERE code = $1
             ON CONFLICT (sku, from_at) DO NOTHING",
    )
    .bind(price.sku)
    .bind(price.from.to_sqlx())
    .bind(price.price_micros_per_gpu_second)
    .bind(price.running)
    .bind(price.changed_by)
    .bind(price.reason)
    .execute(tx.connection())
    .await?;
    if set.rows_affected() == 0 {
        return Ok(None);
    }
    if !price.running {
        return Ok(Some(0));
    }
    // Whoever opens a record meanwhile sees these rows when it is committed, or is seen here: both lock the allocation.
    let row = sqlx::query(
        "WITH living AS MATERIALIZED (
            SELECT id
              FROM allocations
             WHERE sku = $1 AND status NOT IN ('releasing', 'release_failed', 'released', 'failed')
             ORDER BY id
               FOR UPDATE
         ), changed AS (
            INSERT INTO allocation_prices (allocation_id, from_at, price_micros_per_gpu_second)
            SELECT id, $2, $3 FROM living
                ON CONFLICT (allocation_id, from_at) DO NOTHING
         ), marked AS (
            UPDATE usage_records SET repriced = true
             WHERE allocation_id IN (SELECT id FROM living) AND settled_at IS NULL
         )
         SELECT count(*) FROM living",
    )
    .bind(price.sku)
    .bind(price.from.to_sqlx())
    .bind(price.price_micros_per_gpu_second)
    .fetch_one(tx.connection())
    .await?;
    Ok(Some(row.try_get(0)?))
}
