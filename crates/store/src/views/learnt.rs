//! How long things took lately: tasks by kind, SKU and image, and the way from the request to an allocation that is ready.
//! Each look takes the newest few by an index, so that its cost does not grow with history.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::{Error, Store};

/// How many of the newest are taken.
const TAKEN: i64 = 200;

/// What is alike.
#[derive(Clone, Copy, Debug)]
pub struct Like<'a> {
    /// The SKU.
    pub sku: &'a str,
    /// The image.
    pub image: &'a str,
    /// Only what was over by then.
    pub before: Timestamp,
}

/// How long some of them took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Durations {
    /// How many were measured.
    pub count: i64,
    /// Half of them were faster.
    pub p50_seconds: f64,
    /// Nine of ten were faster.
    pub p90_seconds: f64,
}

/// How long things took, from the closest to the widest circle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learnt {
    /// Those of the same SKU and image.
    pub by_image: Durations,
    /// Those of the same SKU.
    pub by_sku: Durations,
    /// Those of the same kind, whatever the SKU.
    pub by_kind: Durations,
}

/// How long tasks of a kind took that did what they were for, from the queue to the result.
///
/// # Errors
/// When the database fails.
pub async fn tasks(store: &Store, kind: &str, like: Like<'_>) -> Result<Learnt, Error> {
    // A SKU has few images: the newest of each are found by the same index.
    let rows = sqlx::query(
        "WITH of_sku AS MATERIALIZED (
            SELECT newest.seconds, newest.ended_at
              FROM sku_images
             CROSS JOIN LATERAL (
                   SELECT extract(epoch FROM ended_at - created_at)::float8 AS seconds, ended_at
                     FROM node_tasks
                    WHERE status = 'succeeded' AND cleanup_complete IS NOT FALSE
                      AND kind = $1 AND sku = $2 AND image = sku_images.image AND ended_at < $4
                    ORDER BY ended_at DESC
                    LIMIT $5
                   ) AS newest
             WHERE sku_images.sku = $2
         ), taken AS (
            (SELECT 1 AS circle, extract(epoch FROM ended_at - created_at)::float8 AS seconds
               FROM node_tasks
              WHERE status = 'succeeded' AND cleanup_complete IS NOT FALSE
                AND kind = $1 AND sku = $2 AND image = $3 AND ended_at < $4
              ORDER BY ended_at DESC
              LIMIT $5)
            UNION ALL
            (SELECT 2, seconds FROM of_sku ORDER BY ended_at DESC LIMIT $5)
            UNION ALL
            (SELECT 3, extract(epoch FROM ended_at - created_at)::float8
               FROM node_tasks
              WHERE status = 'succeeded' AND cleanup_complete IS NOT FALSE AND kind = $1 AND ended_at < $4
              ORDER BY ended_at DESC
              LIMIT $5)
         )
         SELECT circle, count(*),
                percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds),
                percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds)
           FROM taken
          GROUP BY circle",
    )
    .bind(kind)
    .bind(like.sku)
    .bind(like.image)
    .bind(like.before.to_sqlx())
    .bind(TAKEN)
    .fetch_all(store.pool())
    .await?;
    read(&rows)
}

/// How long it took from the request until an allocation was ready.
///
/// # Errors
/// When the database fails.
pub async fn allocations(store: &Store, like: Like<'_>) -> Result<Learnt, Error> {
    let rows = sqlx::query(
        "WITH of_sku AS MATERIALIZED (
            SELECT newest.seconds, newest.active_at
              FROM sku_images
             CROSS JOIN LATERAL (
                   SELECT extract(epoch FROM active_at - created_at)::float8 AS seconds, active_at
                     FROM allocations
                    WHERE sku = $1 AND image = sku_images.image AND active_at < $3
                    ORDER BY active_at DESC
                    LIMIT $4
                   ) AS newest
             WHERE sku_images.sku = $1
         ), taken AS (
            (SELECT 1 AS circle, extract(epoch FROM active_at - created_at)::float8 AS seconds
               FROM allocations
              WHERE sku = $1 AND image = $2 AND active_at < $3
              ORDER BY active_at DESC
              LIMIT $4)
            UNION ALL
            (SELECT 2, seconds FROM of_sku ORDER BY active_at DESC LIMIT $4)
         )
         SELECT circle, count(*),
                percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds),
                percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds)
           FROM taken
          GROUP BY circle",
    )
    .bind(like.sku)
    .bind(like.image)
    .bind(like.before.to_sqlx())
    .bind(TAKEN)
    .fetch_all(store.pool())
    .await?;
    read(&rows)
}

fn read(rows: &[PgRow]) -> Result<Learnt, Error> {
    let mut learnt = Learnt::default();
    for row in rows {
        let durations = Durations {
            count: row.try_get(1)?,
            p50_seconds: row.try_get(2)?,
            p90_seconds: row.try_get(3)?,
        };
        match row.try_get::<i32, _>(0)? {
            1 => learnt.by_image = durations,
            2 => learnt.by_sku = durations,
            _ => learnt.by_kind = durations,
        }
    }
    Ok(learnt)
}
