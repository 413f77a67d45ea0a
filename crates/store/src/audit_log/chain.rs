//! The chain of the audit log as it rests: which entries wait for a link, the links, and what breaks the order of them.
//! What a hash is made of is for who links and verifies to say.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// Who holds this in a transaction is the only one who links.
const LINKING: i64 = 0x6265_7274_6800_0001;

/// An entry as a hash is made of it: every column, as it rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Its identity.
    pub id: Uuid,
    /// When, in microseconds since 1970.
    pub at_micros: i64,
    /// Who.
    pub user_id: Option<Uuid>,
    /// With which token.
    pub token_id: Option<Uuid>,
    /// As what.
    pub role: String,
    /// What was done.
    pub action: String,
    /// To what kind of thing.
    pub target_kind: String,
    /// To which.
    pub target: String,
    /// In which project.
    pub project_id: Option<Uuid>,
    /// How it ended.
    pub outcome: String,
    /// Why, as they said it.
    pub reason: Option<String>,
    /// What changed, as Postgres prints a `jsonb`: keys in one order, no space that says nothing.
    pub detail: String,
    /// The request.
    pub request_id: Option<Uuid>,
    /// Where it came from.
    pub source: Option<String>,
}

/// A link of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its place, from 1.
    pub position: i64,
    /// The entry.
    pub entry_id: Uuid,
    /// The hash of the entry and of the link before.
    pub hash: Vec<u8>,
}

/// Takes the right to link until the transaction ends; says whether it was to be had.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx) -> Result<bool, Error> {
    let row = sqlx::query("SELECT pg_try_advisory_xact_lock($1)")
        .bind(LINKING)
        .fetch_one(tx.connection())
        .await?;
    Ok(row.try_get(0)?)
}

/// The last link, if there is one.
///
/// # Errors
/// When the database fails.
pub async fn last(tx: &mut Tx) -> Result<Option<Link>, Error> {
    let row = sqlx::query(
        "SELECT position, entry_id, hash
           FROM audit_links
          ORDER BY position DESC
          LIMIT 1",
    )
    .fetch_optional(tx.connection())
    .await?;
    row.map(|row| link(&row)).transpose()
}

/// The oldest entries that have no link.
///
/// # Errors
/// When the database fails.
pub async fn unlinked(tx: &mut Tx, limit: i64) -> Result<Vec<Sealed>, Error> {
    let rows = sqlx::query(
        "SELECT e.id, (extract(epoch FROM e.at) * 1000000)::bigint, e.user_id, e.token_id, e.role, e.action,
                e.target_kind, e.target, e.project_id, e.outcome, e.reason, e.detail::text, e.request_id, e.source
           FROM audit_unlinked AS waiting
           JOIN audit_entries AS e ON e.id = waiting.entry_id
          ORDER BY e.id
          LIMIT $1",
    )
    .bind(limit)
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| sealed(row, 0)).collect()
}

/// Appends links; their entries wait no longer.
///
/// # Errors
/// When the database fails.
pub async fn append(tx: &mut Tx, links: &[Link]) -> Result<(), Error> {
    let positions: Vec<i64> = links.iter().map(|link| link.position).collect();
    let entries: Vec<Uuid> = links.iter().map(|link| link.entry_id).collect();
    let hashes: Vec<&[u8]> = links.iter().map(|link| link.hash.as_slice()).collect();
    sqlx::query(
        "WITH linked AS (
            INSERT INTO audit_links (position, entry_id, hash)
            SELECT position, entry_id, hash
              FROM unnest($1::bigint[], $2::uuid[], $3::bytea[]) AS link (position, entry_id, hash)
            RETURNING entry_id
         )
         DELETE FROM audit_unlinked
          WHERE entry_id IN (SELECT entry_id FROM linked)",
    )
    .bind(positions)
    .bind(entries)
    .bind(hashes)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The links behind a position in order, each with its entry if that is there.
///
/// # Errors
/// When the database fails.
pub async fn walk(
    store: &Store,
    behind: i64,
    limit: i64,
) -> Result<Vec<(Link, Option<Sealed>)>, Error> {
    let rows = sqlx::query(
        "SELECT l.position, l.entry_id, l.hash,
                e.id, (extract(epoch FROM e.at) * 1000000)::bigint, e.user_id, e.token_id, e.role, e.action,
                e.target_kind, e.target, e.project_id, e.outcome, e.reason, e.detail::text, e.request_id, e.source
           FROM audit_links AS l
           LEFT JOIN audit_entries AS e ON e.id = l.entry_id
          WHERE l.position > $1
          ORDER BY l.position
          LIMIT $2",
    )
    .bind(behind)
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    let mut walked = Vec::with_capacity(rows.len());
    for row in &rows {
        let there: Option<Uuid> = row.try_get(3)?;
        let entry = there.is_some().then(|| sealed(row, 3)).transpose()?;
        walked.push((link(row)?, entry));
    }
    Ok(walked)
}

/// Where the chain begins: behind this one, which was cut off when its entry had got old. None when it begins with its first.
///
/// # Errors
/// When the database fails.
pub async fn beginning(store: &Store) -> Result<Option<(i64, Vec<u8>)>, Error> {
    let row = sqlx::query("SELECT position, hash FROM audit_beginning")
        .fetch_optional(store.pool())
        .await?;
    row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
}

/// Whether an entry of that action tells that the chain was cut behind that link.
///
/// # Errors
/// When the database fails.
pub async fn is_cut_told(
    store: &Store,
    action: &str,
    (position, hash): (i64, &str),
) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (
                SELECT 1
                  FROM audit_entries
                 WHERE target = $2::bigint::text AND action = $1 AND detail ->> 'hash' = $3)",
    )
    .bind(action)
    .bind(position)
    .bind(hash)
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

/// Cuts the chain behind `last`, which is not its last link, if it still begins behind `beginning`; says how many entries are gone.
/// Whoever does it has the right to link.
///
/// # Errors
/// When the database fails, or an entry is too young.
pub async fn cut(
    tx: &mut Tx,
    beginning: i64,
    last: &Link,
    kept_since: Timestamp,
) -> Result<u64, Error> {
    let row = sqlx::query(
        "WITH begun AS (
            INSERT INTO audit_beginning AS known (position, hash, kept_since)
            SELECT $2, $3, $4 WHERE $1 = (SELECT coalesce(max(position), 0) FROM audit_beginning)
                ON CONFLICT (one) DO UPDATE
               SET position = EXCLUDED.position, hash = EXCLUDED.hash, kept_since = greatest(known.kept_since, EXCLUDED.kept_since)
             WHERE known.position = $1
            RETURNING position
         ), links AS (
            DELETE FROM audit_links
             WHERE position > $1 AND position <= (SELECT position FROM begun)
            RETURNING entry_id
         ), entries AS (
            DELETE FROM audit_entries
             WHERE id = ANY (ARRAY(SELECT entry_id FROM links))
            RETURNING 1
         )
         SELECT count(*) FROM entries",
    )
    .bind(beginning)
    .bind(last.position)
    .bind(&last.hash)
    .bind(kept_since.to_sqlx())
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
}

/// An entry that no link leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loose {
    /// The entry.
    pub id: Uuid,
    /// Whether it waits for its link; if not, its link is gone, or it was put in past everything.
    pub waits: bool,
}

/// Entries without a link: those that wait for one since before the seconds, and those that do not even wait.
///
/// # Errors
/// When the database fails.
pub async fn loose(store: &Store, seconds: f64, limit: i64) -> Result<Vec<Loose>, Error> {
    let rows = sqlx::query(
        "SELECT e.id, waiting.entry_id IS NOT NULL
           FROM audit_entries AS e
           LEFT JOIN audit_links AS l ON l.entry_id = e.id
           LEFT JOIN audit_unlinked AS waiting ON waiting.entry_id = e.id
          WHERE l.entry_id IS NULL
            AND (waiting.entry_id IS NULL OR e.at < clock_timestamp() - make_interval(secs => $1))
          ORDER BY e.id
          LIMIT $2",
    )
    .bind(seconds)
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(Loose { id: row.try_get(0)?, waits: row.try_get(1)? })).collect()
}

/// How many entries wait for a link, for however long.
///
/// # Errors
/// When the database fails.
pub async fn waiting(store: &Store) -> Result<i64, Error> {
    let row = sqlx::query("SELECT count(*) FROM audit_unlinked").fetch_one(store.pool()).await?;
    Ok(row.try_get(0)?)
}

fn link(row: &PgRow) -> Result<Link, Error> {
    Ok(Link { position: row.try_get(0)?, entry_id: row.try_get(1)?, hash: row.try_get(2)? })
}

/// The entry whose columns begin at `from`.
fn sealed(row: &PgRow, from: usize) -> Result<Sealed, Error> {
    Ok(Sealed {
        id: row.try_get(from)?,
        at_micros: row.try_get(from + 1)?,
        user_id: row.try_get(from + 2)?,
        token_id: row.try_get(from + 3)?,
        role: row.try_get(from + 4)?,
        action: row.try_get(from + 5)?,
        target_kind: row.try_get(from + 6)?,
        target: row.try_get(from + 7)?,
        project_id: row.try_get(from + 8)?,
        outcome: row.try_get(from + 9)?,
        reason: row.try_get(from + 10)?,
        detail: row.try_get(from + 11)?,
        request_id: row.try_get(from + 12)?,
        source: row.try_get(from + 13)?,
    })
}
