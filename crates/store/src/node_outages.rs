//! Outages: stretches in which a node was not heard of, though somebody listened. Minutes that were charged for it meanwhile are
//! given back, each once, in the same ledger and with the same care as they were charged.

use domain::ids::NodeId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use crate::{Error, Store, Tx};

/// How many windows one statement gives back.
const WINDOWS_MAX: i64 = 5_000;

/// The windows that `outage` touches and that were not given back, as `record` and `charged`. Fenced in, so that it is read in this
/// order whatever the planner thinks of the tables: by the node, by the record and its minutes, by the credit's key. It would
/// otherwise read every minute that a record ever had.
macro_rules! touched {
    () => {
        "CROSS JOIN LATERAL (
                    SELECT id, account_id, project_id, started_at
                      FROM usage_records
                     WHERE node_id = outage.node_id AND coalesce(ended_at, 'infinity') > outage.from_at
                       AND started_at < coalesce(outage.until_at, 'infinity') AND account_id IS NOT NULL
                    OFFSET 0
                   ) AS record
             CROSS JOIN LATERAL (
                    SELECT usage_record_id, window_at, amount_minor
                      FROM usage_windows AS one
                     WHERE usage_record_id = record.id
                       AND window_at >= date_trunc('minute', outage.from_at, 'UTC')
                       AND window_at < coalesce(outage.until_at, 'infinity')
                       AND (SELECT 1
                              FROM usage_credits AS given
                             WHERE given.usage_record_id = one.usage_record_id AND given.window_at = one.window_at
                             LIMIT 1) IS NULL
                    OFFSET 0
                   ) AS charged"
    };
}

/// A node is not heard of any more: since `from`, when it last was. Said twice, it is one outage.
///
/// # Errors
/// When the database fails.
pub async fn begin(tx: &mut Tx, node: NodeId, from: Timestamp) -> Result<(), Error> {
    let id = tx.new_id();
    sqlx::query(
        "INSERT INTO node_outages (id, node_id, from_at, credited_until)
         VALUES ($1, $2, $3, $3)
         ON CONFLICT (node_id) WHERE until_at IS NULL DO NOTHING",
    )
    .bind(id)
    .bind(node.uuid())
    .bind(from.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A node is heard of again, at `until`.
///
/// # Errors
/// When the database fails.
pub async fn end(tx: &mut Tx, node: NodeId, until: Timestamp) -> Result<(), Error> {
    sqlx::query(
        "UPDATE node_outages SET until_at = greatest(from_at, $2)
          WHERE node_id = $1 AND until_at IS NULL",
    )
    .bind(node.uuid())
    .bind(until.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Outages of nodes that were heard of since, and whose status did not say so: one that is being drained, for example.
async fn end_heard(store: &Store) -> Result<(), Error> {
    sqlx::query(
        "UPDATE node_outages AS outage SET until_at = node.heartbeat_at
           FROM nodes AS node
          WHERE node.id = outage.node_id AND outage.until_at IS NULL
            AND node.heartbeat_at > outage.from_at AND node.status <> 'offline'",
    )
    .execute(store.pool())
    .await?;
    Ok(())
}

/// Gives back minutes that were charged while their machine could not be reached: every minute that an outage touches, whole.
/// Answers how many. Run again it finds none; minutes that are charged later are found later.
///
/// # Errors
/// When the database fails; what was given back by then stays so.
pub async fn give_back(store: &Store) -> Result<u64, Error> {
    end_heard(store).await?;
    if !is_anything_owed(store).await? {
        return Ok(0);
    }
    let mut all = 0;
    loop {
        let mut tx = store.begin().await?;
        let given = give_back_batch(&mut tx).await?;
        if given == 0 {
            settle(&mut tx).await?;
        }
        tx.commit().await?;
        all += given;
        if given == 0 {
            return Ok(all);
        }
    }
}

/// Whether there is an outage of which something may have to be given back: mostly there is none, and nobody looks further.
async fn is_anything_owed(store: &Store) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (SELECT 1 FROM node_outages WHERE until_at IS NULL OR credited_until < until_at)",
    )
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

/// Windows that an outage touches and that were not given back, with their postings, entries and balances. `$1` windows at most.
const GIVE_BACK: &str = concat!(
    "WITH owed AS MATERIALIZED (
            SELECT outage.id AS outage_id, record.account_id, record.project_id, charged.usage_record_id, charged.window_at,
                   micros_between(date_trunc('minute', record.started_at, 'UTC'), charged.window_at) / 60000000 AS number,
                   charged.amount_minor
              FROM node_outages AS outage
             ",
    touched!(),
    "
             WHERE outage.until_at IS NULL OR outage.credited_until < outage.until_at
             LIMIT $1
         ), held AS MATERIALIZED (
            SELECT id, currency
              FROM accounts
             WHERE id IN (SELECT account_id FROM owed)
             ORDER BY id
               FOR NO KEY UPDATE SKIP LOCKED
         ), minute AS MATERIALIZED (
            SELECT DISTINCT ON (owed.usage_record_id, owed.window_at) owed.outage_id, owed.account_id, owed.project_id,
                   owed.usage_record_id, owed.window_at, owed.number, owed.amount_minor
              FROM owed
              JOIN held ON held.id = owed.account_id
             ORDER BY owed.usage_record_id, owed.window_at, owed.outage_id
         ), posted AS MATERIALIZED (
            SELECT md5(named.key)::uuid AS id, named.key, named.account_id, held.currency, named.outage_id, named.amount_minor,
                   named.from_at, named.until_at
              FROM (
                   SELECT account_id, outage_id, sum(amount_minor)::bigint AS amount_minor, min(window_at) AS from_at,
                          max(window_at) + interval '1 minute' AS until_at,
                          'unreachable/' || min((usage_record_id || '/' || number) COLLATE \"C\") AS key
                     FROM minute
                    GROUP BY account_id, outage_id
                   ) AS named
              JOIN held ON held.id = named.account_id
         ), credited AS (
            INSERT INTO usage_credits (usage_record_id, window_at, amount_minor, posting_id, outage_id)
            SELECT minute.usage_record_id, minute.window_at, minute.amount_minor, posted.id, minute.outage_id
              FROM minute
              JOIN posted ON posted.account_id = minute.account_id AND posted.outage_id = minute.outage_id
         ), ahead AS MATERIALIZED (
            -- An account may have several of them: each says what it leaves.
            SELECT id, sum(amount_minor) OVER (PARTITION BY account_id ORDER BY key) AS so_far FROM posted
         ), moved AS (
            UPDATE accounts SET balance_minor = accounts.balance_minor + given.amount_minor
              FROM (SELECT account_id, sum(amount_minor)::bigint AS amount_minor FROM posted GROUP BY account_id) AS given
             WHERE accounts.id = given.account_id
            RETURNING accounts.id, accounts.balance_minor - given.amount_minor AS before_minor
         ), said AS (
            INSERT INTO ledger_postings (id, key, kind, account_id, currency, source_id, from_at, until_at, actor, reason)
            SELECT id, key, 'unreachable', account_id, currency, outage_id, from_at, until_at, 'charging',
                   'the machine could not be reached'
              FROM posted
         ), entered AS (
            INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor, balance_after_minor)
            SELECT posted.id, 'tenant', posted.account_id, posted.amount_minor, moved.before_minor + ahead.so_far
              FROM posted
              JOIN moved ON moved.id = posted.account_id
              JOIN ahead ON ahead.id = posted.id
            UNION ALL
            SELECT posted.id, 'revenue', NULL, -posted.amount_minor, NULL FROM posted
         ), book AS (
            INSERT INTO ledger_books (book, currency, balance_minor)
            SELECT 'revenue', currency, -sum(amount_minor)::bigint FROM posted GROUP BY currency
                ON CONFLICT (book, currency) DO UPDATE SET balance_minor = ledger_books.balance_minor + EXCLUDED.balance_minor
         ), spent AS (
            UPDATE project_spending AS kept SET spent_minor = kept.spent_minor - given.amount_minor
              FROM (
                   SELECT project_id, (date_trunc('month', window_at, 'UTC') AT TIME ZONE 'UTC')::date AS month,
                          sum(amount_minor)::bigint AS amount_minor
                     FROM minute
                    GROUP BY 1, 2
                   ) AS given
             WHERE kept.project_id = given.project_id AND kept.month = given.month
         )
         SELECT count(*) FROM minute"
);

/// The same order of locks as charging: accounts first, those that nobody has in hand.
async fn give_back_batch(tx: &mut Tx) -> Result<u64, Error> {
    let row = sqlx::query(GIVE_BACK).bind(WINDOWS_MAX).fetch_one(tx.connection()).await?;
    Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
}

/// Outages that are over, and of which every minute that is to be charged has been: there will be nothing more to give back.
async fn settle(tx: &mut Tx) -> Result<(), Error> {
    sqlx::query(concat!(
        "UPDATE node_outages AS outage SET credited_until = outage.until_at
          WHERE outage.credited_until < outage.until_at
            AND NOT EXISTS (
                SELECT 1
                  FROM usage_records AS record
                 WHERE record.node_id = outage.node_id AND coalesce(record.ended_at, 'infinity') > outage.from_at
                   AND record.started_at < outage.until_at AND record.account_id IS NOT NULL
                   AND record.charged_until < least(outage.until_at, coalesce(record.ended_at, 'infinity')))
            AND NOT EXISTS (SELECT 1 FROM (SELECT 1) AS once
             ",
        touched!(),
        ")"
    ))
    .execute(tx.connection())
    .await?;
    Ok(())
}
