//! Charging: every minute of every record, once. Windows, postings, entries, balances and what projects have cost are one
//! statement for all records of a batch. Run again it finds nothing due; after an outage it catches up, a bounded batch at a time.
//!
//! Lock order: **accounts, records, books**. Whoever ends a record holds its lock before the moment of the end is taken, so that
//! nothing is charged behind it.

use domain::ids::AccountId;
use domain::ledger::PostingKind;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::ledger::{self, NewPosting};
use crate::{Error, Store, Tx};

/// How many minutes one statement charges, of however many records, and a few more: whoever gives one of them back waits for it.
pub const WINDOWS_MAX: i64 = 5_000;
/// How many minutes of one record one statement charges: what is behind catches up in several.
pub const MINUTES_MAX: i32 = 12;

/// How Postgres says that a row is not one of its partition.
const CHECK_VIOLATION: &str = "23514";

/// What was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// How many records were looked at.
    pub records: u64,
    /// How many windows are new.
    pub windows: u64,
    /// How many postings that made.
    pub postings: u64,
    /// How many records have more minutes than one statement takes, and are not at their end yet.
    pub behind: u64,
    /// How many accounts have something due and were in other hands.
    pub left: u64,
}

/// What time it is by the clock that stamps every step.
///
/// # Errors
/// When the database fails.
pub async fn now(store: &Store) -> Result<Timestamp, Error> {
    let row = sqlx::query("SELECT clock_timestamp()").fetch_one(store.pool()).await?;
    Ok(row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff())
}

/// Where a pass through the records is: account and record.
type Place = (Uuid, Uuid);

/// What a batch has in hand.
struct Held {
    /// The accounts.
    accounts: Vec<Uuid>,
    /// How many more there are, in other hands.
    left: u64,
    /// The last record of the batch.
    last: Place,
}

/// Charges every minute that is over by `until`, and closed records to their end. Several may do this at once: an account that
/// another has in hand is left to them.
///
/// # Errors
/// When the database fails; what was charged by then stays charged.
pub async fn charge(store: &Store, until: Timestamp) -> Result<Charged, Error> {
    charge_of(store, &ALL, until).await
}

/// [`charge`], for who does it again and again: when everybody who was there has been charged for the last minute that is over, only
/// what has ended since is due, and nothing else is looked at. What somebody is late to write down is charged with the next minute.
///
/// # Errors
/// When the database fails; what was charged by then stays charged.
pub async fn charge_due(store: &Store, until: Timestamp) -> Result<Charged, Error> {
    if is_reached(store, until).await? {
        return charge_of(store, &ENDED, until).await;
    }
    let charged = charge_of(store, &ALL, until).await?;
    if charged.left == 0 {
        reach(store, until).await?;
    }
    Ok(charged)
}

/// Whether everybody was charged up to the last minute that is over by `until`, that one and no other: a clock that was ahead for a while
/// says nothing about the minutes before.
async fn is_reached(store: &Store, until: Timestamp) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (SELECT 1 FROM charging_reached WHERE until = date_trunc('minute', $1::timestamptz, 'UTC'))",
    )
    .bind(until.to_sqlx())
    .fetch_one(store.pool())
    .await?;
    Ok(row.try_get(0)?)
}

async fn reach(store: &Store, until: Timestamp) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO charging_reached (until) VALUES (date_trunc('minute', $1::timestamptz, 'UTC'))
             ON CONFLICT (one) DO UPDATE SET until = EXCLUDED.until",
    )
    .bind(until.to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(())
}

async fn charge_of(store: &Store, which: &Which, until: Timestamp) -> Result<Charged, Error> {
    let mut all = Charged::default();
    loop {
        let pass = pass(store, which, until).await?;
        all.records += pass.records;
        all.windows += pass.windows;
        all.postings += pass.postings;
        all.left = pass.left;
        // Not as long as there is something to charge: where people come and go there always is, and the next minute never came.
        if pass.behind == 0 {
            return Ok(all);
        }
    }
}

/// One pass through all records that have something due.
async fn pass(store: &Store, which: &Which, until: Timestamp) -> Result<Charged, Error> {
    let (mut after, mut all) = ((Uuid::nil(), Uuid::nil()), Charged::default());
    loop {
        let first = batch(store, (which, which.charge), until, after).await;
        let batch = match first {
            Err(Error::Database(error)) if is_charged_before(&error) => {
                tracing::warn!(
                    "some records have forgotten how far they were charged: it is looked up"
                );
                batch(store, (which, which.again), until, after).await?
            }
            // The day was made in the moment in which its minutes were to go elsewhere.
            Err(Error::Database(error)) if has_code(&error, CHECK_VIOLATION) => {
                batch(store, (which, which.charge), until, after).await?
            }
            done => done?,
        };
        let Some((batch, last)) = batch else {
            return Ok(all);
        };
        all.records += batch.records;
        all.windows += batch.windows;
        all.postings += batch.postings;
        all.behind += batch.behind;
        all.left += batch.left;
        after = last;
    }
}

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(code))
}

/// A key has refused a window, or the posting that is named after it: nothing of that batch has happened.
fn is_charged_before(error: &sqlx::Error) -> bool {
    let keys = ["ledger_postings_pkey", "ledger_postings_key_key", "ledger_entries_posting"];
    let constraint = error.as_database_error().and_then(|error| error.constraint());
    // Each partition of the windows has a key of its own.
    let of_window = |key: &str| key.starts_with("usage_windows") && key.ends_with("_pkey");
    constraint.is_some_and(|key| keys.contains(&key) || of_window(key))
}

/// The next batch, in a transaction of its own, and where it ended; none when there is no more.
async fn batch(
    store: &Store,
    (which, statement): (&Which, &'static str),
    until: Timestamp,
    after: Place,
) -> Result<Option<(Charged, Place)>, Error> {
    let mut tx = store.begin().await?;
    let Some(Held { accounts, left, last }) = hold(&mut tx, which, until, after).await? else {
        tx.rollback().await?;
        return Ok(None);
    };
    if accounts.is_empty() {
        tx.rollback().await?;
        return Ok(Some((Charged { left, ..Charged::default() }, last)));
    }
    give_back_overruns(&mut tx, &accounts, (after, last)).await?;
    match charge_batch(&mut tx, statement, until, &accounts, (after, last)).await {
        Ok(charged) => {
            tx.commit().await?;
            Ok(Some((Charged { left, ..charged }, last)))
        }
        Err(error) => {
            // Undone here and not when it is dropped: who tries again must not find the accounts in the hands of this one.
            tx.rollback().await?;
            Err(error)
        }
    }
}

/// The next records, as many as make one statement full, and the accounts behind those that have something due, which are locked
/// as far as nobody else has them. None when there are no more records.
///
/// A page of records is read by its index before it is asked what is due of it: whoever asks for what is due can't be told by an
/// index, and then the planner would rather read and sort them all.
async fn hold(
    tx: &mut Tx,
    which: &Which,
    until: Timestamp,
    after: Place,
) -> Result<Option<Held>, Error> {
    let row = sqlx::query(which.hold)
        .bind(until.to_sqlx())
        .bind(after.0)
        .bind(after.1)
        .bind(WINDOWS_MAX)
        .bind(MINUTES_MAX)
        .fetch_optional(tx.connection())
        .await?;
    let held = |row: PgRow| {
        let accounts: Vec<Uuid> = row.try_get(0)?;
        let due = row.try_get::<i64, _>(3)?.unsigned_abs();
        let left = due.saturating_sub(accounts.len() as u64);
        Ok(Held { accounts, left, last: (row.try_get(1)?, row.try_get(2)?) })
    };
    row.map(held).transpose()
}

/// `$1` until, `$2` and `$3` after which record, `$4` minutes of all and `$5` of one at most.
macro_rules! hold_of {
    ($which:literal) => {
        concat!(
            "WITH page AS MATERIALIZED (
            SELECT account_id, id,
                   CASE WHEN ended_at IS NULL AND charged_until >= date_trunc('minute', $1::timestamptz, 'UTC') THEN 0
                        ELSE least($5, greatest(1, ceil(date_part('epoch',
                             coalesce(ended_at, date_trunc('minute', $1::timestamptz, 'UTC')) - charged_until) / 60)::integer))
                   END AS minutes
              FROM usage_records
             WHERE settled_at IS NULL AND account_id IS NOT NULL",
            $which,
            "
               AND (account_id, id) > ($2, $3)
             ORDER BY account_id, id
             LIMIT $4
         ), counted AS MATERIALIZED (
            SELECT account_id, id, minutes, sum(minutes) OVER (ROWS UNBOUNDED PRECEDING) - minutes AS before FROM page
         ), held AS MATERIALIZED (
            SELECT id
              FROM accounts
             WHERE id IN (SELECT account_id FROM counted WHERE minutes > 0 AND before < $4)
             ORDER BY id
               FOR NO KEY UPDATE SKIP LOCKED
         )
         SELECT ARRAY(SELECT id FROM held), last.account_id, last.id,
                (SELECT count(DISTINCT account_id) FROM counted WHERE minutes > 0 AND before < $4)
           FROM (SELECT account_id, id FROM counted WHERE before < $4 ORDER BY account_id DESC, id DESC LIMIT 1) AS last"
        )
    };
}

/// Up to when a record is charged: to its end, or to the last minute that is over; not more minutes at once than one statement takes.
macro_rules! until {
    () => {
        "least(coalesce(due.ended_at, date_trunc('minute', $1::timestamptz, 'UTC')),
               date_trunc('minute', due.charged_until, 'UTC') + make_interval(mins => $7))"
    };
}

/// What is owed for a record at `moment`: the whole of it, so that a window costs the difference of two of these, whatever the
/// windows are and however often they are computed.
macro_rules! owed_at {
    ($moment:expr) => {
        concat!(
            "CASE WHEN due.repriced
                  THEN repriced_minor(due.allocation_id, due.price_micros_per_gpu_second, due.gpus, due.started_at, ",
            $moment,
            ", due.micros_per_minor)
                  ELSE minor_of(due.price_micros_per_gpu_second * due.gpus, micros_between(due.started_at, ",
            $moment,
            "), due.micros_per_minor) END"
        )
    };
}

/// `$1` until, `$2` accounts, `$3` and `$4` after which record, `$5` and `$6` up to which, `$7` minutes of one at most.
///
/// Records are moved first: whoever is about to close one has its lock, is waited for, and then the row is judged as they left it.
macro_rules! charge_unless {
    ($which:literal, $known:expr) => {
        concat!(
            "WITH due AS MATERIALIZED (
        UPDATE usage_records AS due
           SET charged_from = due.charged_until, charged_until = ",
            until!(),
            ", charged_minor = ",
            owed_at!(until!()),
            ", settled_at = CASE WHEN ",
            until!(),
            " = due.ended_at THEN clock_timestamp() END
         WHERE due.settled_at IS NULL",
            $which,
            "
           AND due.account_id = ANY ($2::uuid[])
           AND (due.account_id, due.id) > ($3, $4) AND (due.account_id, due.id) <= ($5, $6)
           AND (due.ended_at IS NOT NULL OR due.charged_until < date_trunc('minute', $1::timestamptz, 'UTC'))
        RETURNING due.id, due.account_id, due.project_id, due.allocation_id, due.node_id, due.gpus,
                  due.price_micros_per_gpu_second, due.micros_per_minor, due.repriced, due.started_at, due.charged_from,
                  due.charged_until, due.ended_at
     ), minute AS MATERIALIZED (
        SELECT due.id, due.account_id, due.project_id,
               micros_between(date_trunc('minute', due.started_at, 'UTC'), clipped.window_at) / 60000000 AS number,
               clipped.window_at, clipped.from_at, clipped.until_at,
               micros_between(clipped.from_at, clipped.until_at)::integer AS micros,
               ",
            owed_at!("clipped.until_at"),
            " - ",
            owed_at!("clipped.from_at"),
            " AS amount_minor, node.heartbeat_at
          FROM due
         CROSS JOIN LATERAL (
               SELECT at AS window_at, greatest(at, due.charged_from) AS from_at,
                      least(at + interval '1 minute', due.charged_until) AS until_at
                 FROM generate_series(date_trunc('minute', due.charged_from, 'UTC'), due.charged_until - interval '1 microsecond',
                                      interval '1 minute') AS minute (at)
               ) AS clipped
          LEFT JOIN nodes AS node ON node.id = due.node_id
         WHERE clipped.from_at < clipped.until_at
           -- What was before it was charged, and nobody could tell any more.
           AND clipped.window_at >= (SELECT coalesce(max(windows_since), '-infinity') FROM usage_kept)",
            $known,
            "
     ), posted AS MATERIALIZED (
        -- Named after the first window in it, by its record and its number there: it is in no other.
        SELECT md5(named.key)::uuid AS id, named.key, named.account_id, account.currency, named.amount_minor, named.from_at,
               named.until_at
          FROM (
               SELECT account_id, sum(amount_minor)::bigint AS amount_minor, min(from_at) AS from_at, max(until_at) AS until_at,
                      'usage/' || min((id || '/' || number) COLLATE \"C\") AS key
                 FROM minute
                GROUP BY account_id
               HAVING sum(amount_minor) > 0
               ) AS named
          JOIN accounts AS account ON account.id = named.account_id
     ), counted AS (
        INSERT INTO usage_windows (usage_record_id, window_at, micros, amount_minor, posting_id, heartbeat_at)
        SELECT minute.id, minute.window_at, minute.micros, minute.amount_minor, posted.id, minute.heartbeat_at
          FROM minute
          LEFT JOIN posted ON posted.account_id = minute.account_id
     ), moved AS (
        UPDATE accounts SET balance_minor = accounts.balance_minor - posted.amount_minor
          FROM posted
         WHERE accounts.id = posted.account_id
        RETURNING accounts.id, accounts.balance_minor
     ), said AS (
        INSERT INTO ledger_postings (id, key, kind, account_id, currency, from_at, until_at, actor)
        SELECT id, key, 'usage', account_id, currency, from_at, until_at, 'charging' FROM posted
     ), entered AS (
        INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor, balance_after_minor)
        SELECT posted.id, 'tenant', posted.account_id, -posted.amount_minor, moved.balance_minor
          FROM posted
          JOIN moved ON moved.id = posted.account_id
        UNION ALL
        SELECT posted.id, 'revenue', NULL, posted.amount_minor, NULL FROM posted
     ), book AS (
        INSERT INTO ledger_books (book, currency, balance_minor)
        SELECT 'revenue', currency, sum(amount_minor)::bigint FROM posted GROUP BY currency
            ON CONFLICT (book, currency) DO UPDATE SET balance_minor = ledger_books.balance_minor + EXCLUDED.balance_minor
     ), spent AS (
        INSERT INTO project_spending (project_id, month, spent_minor)
        SELECT project_id, (date_trunc('month', window_at, 'UTC') AT TIME ZONE 'UTC')::date, sum(amount_minor)::bigint
          FROM minute
         WHERE project_id IS NOT NULL
         GROUP BY 1, 2
            ON CONFLICT (project_id, month) DO UPDATE SET spent_minor = project_spending.spent_minor + EXCLUDED.spent_minor
     )
     SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM minute), (SELECT count(*) FROM posted),
            (SELECT count(*) FROM due WHERE charged_until < coalesce(ended_at, date_trunc('minute', $1::timestamptz, 'UTC')))"
        )
    };
}

/// That a window is not there. A question of its own for each, by its key: as a join it would be answered by reading all windows there
/// ever were.
macro_rules! unknown {
    () => {
        "
           AND (SELECT 1
                  FROM usage_windows AS known
                 WHERE known.usage_record_id = due.id AND known.window_at = clipped.window_at
                 LIMIT 1) IS NULL"
    };
}

/// The records that a pass goes through, and its statements.
struct Which {
    /// The next records.
    hold: &'static str,
    /// A window that was charged before stops it.
    charge: &'static str,
    /// The same for records that have forgotten how far they were charged: it looks for every window whether it is there.
    again: &'static str,
}

const ALL: Which = Which {
    hold: hold_of!(""),
    charge: charge_unless!("", ""),
    again: charge_unless!("", unknown!()),
};
/// Those that have ended, and are not charged to their end: few, with an index of their own.
const ENDED: Which = Which {
    hold: hold_of!(" AND ended_at IS NOT NULL"),
    charge: charge_unless!(" AND due.ended_at IS NOT NULL", ""),
    again: charge_unless!(" AND due.ended_at IS NOT NULL", unknown!()),
};

async fn charge_batch(
    tx: &mut Tx,
    statement: &'static str,
    until: Timestamp,
    accounts: &[Uuid],
    (after, last): (Place, Place),
) -> Result<Charged, Error> {
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(until.to_sqlx())
        .bind(accounts)
        .bind(after.0)
        .bind(after.1)
        .bind(last.0)
        .bind(last.1)
        .bind(MINUTES_MAX)
        .fetch_one(tx.connection())
        .await?;
    let count =
        |column: usize| -> Result<u64, Error> { Ok(row.try_get::<i64, _>(column)?.unsigned_abs()) };
    let (records, windows, postings) = (count(0)?, count(1)?, count(2)?);
    Ok(Charged { records, windows, postings, behind: count(3)?, left: 0 })
}

/// Records that end before the moment up to which they were charged: only a clock that was set back can do that. What was
/// charged behind their end is given back, to the minor unit.
async fn give_back_overruns(
    tx: &mut Tx,
    accounts: &[Uuid],
    (after, last): (Place, Place),
) -> Result<(), Error> {
    let rows = sqlx::query(AssertSqlSafe(concat!(
        "WITH due AS MATERIALIZED (
            SELECT id, account_id, allocation_id, gpus, price_micros_per_gpu_second, micros_per_minor, repriced, started_at,
                   charged_minor, ended_at
              FROM usage_records
             WHERE settled_at IS NULL AND account_id = ANY ($1::uuid[])
               AND (account_id, id) > ($2, $3) AND (account_id, id) <= ($4, $5)
               AND ended_at < charged_until
               FOR UPDATE SKIP LOCKED
         ), settled AS (
            UPDATE usage_records AS record
               SET charged_until = due.ended_at, charged_minor = ",
        owed_at!("due.ended_at"),
        ", settled_at = clock_timestamp()
              FROM due
             WHERE record.id = due.id
         )
         SELECT id, account_id, charged_minor - ",
        owed_at!("due.ended_at"),
        " FROM due"
    )))
    .bind(accounts)
    .bind(after.0)
    .bind(after.1)
    .bind(last.0)
    .bind(last.1)
    .fetch_all(tx.connection())
    .await?;
    for row in rows {
        let record: Uuid = row.try_get(0)?;
        let posting = NewPosting {
            key: &format!("overrun/{record}"),
            kind: PostingKind::Overrun,
            account: AccountId(row.try_get(1)?),
            amount_minor: row.try_get(2)?,
            source_id: Some(record),
            actor: "charging",
            reason: Some("it was charged behind its end, by a clock that was set back"),
        };
        if posting.amount_minor > 0 {
            ledger::post(tx, &posting).await?;
        }
    }
    Ok(())
}
