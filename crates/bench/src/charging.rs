//! What a minute of billing costs: open records charged by the product, against the plain statement that writes
//! a window, a ledger row and a balance for each of them, on the same Postgres in the same run.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use store::cluster::Cluster;
use store::{Options, Store, audit, charging};

use crate::Plan;
use crate::figure::Figure;
use crate::machine::Mood;
use crate::raw::insist_on_durability;

pub(crate) const RECORDS: i64 = 100_000;
/// So few that a short run has time for it.
const RECORDS_QUICK: i64 = 20_000;
const MILLION: i64 = 1_000_000;
pub(crate) const ACCOUNTS: i64 = 1_000;
/// When the records began.
const BEGIN: &str = "2026-01-01T00:00:00Z";

/// The figures of charging: a minute of all records, the same minute again, which is nothing, and one of a million.
pub(crate) async fn figures(cluster: &Cluster, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let records = if plan.quick { RECORDS_QUICK } else { RECORDS };
    let (store, mut sql) = furnish(cluster, "charging", records).await?;
    let note = format!("{records} records of {ACCOUNTS} accounts");
    let mut minute = Figure::less("P14", "charging.minute_vs_plain_sql", "s").goal(2.0, 1.3);
    let mut again = Figure::less("P15", "charging.replay_vs_the_minute", "s").must(0.25);
    let begin: Timestamp = BEGIN.parse()?;
    for round in 1..=i64::try_from(plan.rounds)? {
        let mood = Mood::look().await;
        let before = plain(&mut sql, 2 * round, records).await?;
        let until = begin + SignedDuration::from_mins(round);
        let (ours, replay) =
            (charge(&store, until, records).await?, charge(&store, until, 0).await?);
        let after = plain(&mut sql, 2 * round + 1, records).await?;
        eprintln!(
            "charging, round {round}: {ours:.2} s, again {replay:.3} s; by hand {before:.2} and {after:.2} s"
        );
        minute.push(ours, Some((before + after) / 2.0), mood);
        again.push(replay, Some(ours), mood);
    }
    check(&store, &mut sql, i64::try_from(plan.rounds)? * records).await?;
    store.close().await;
    let mut all = vec![minute.note(&note), again.note(&note)];
    if !plan.quick {
        all.push(million(cluster).await?);
    }
    Ok(all)
}

/// One minute of ten times as many.
async fn million(cluster: &Cluster) -> anyhow::Result<Figure> {
    eprintln!("charging: a million records");
    let (store, mut sql) = furnish(cluster, "million", MILLION).await?;
    let mood = Mood::look().await;
    let begin: Timestamp = BEGIN.parse()?;
    let took = charge(&store, begin + SignedDuration::from_mins(1), MILLION).await?;
    check(&store, &mut sql, MILLION).await?;
    store.close().await;
    let figure = Figure::less("P14", "charging.minute_of_a_million", "s").must(60.0);
    Ok(figure.once(took, None, mood))
}

/// A database with so many open records.
async fn furnish(
    cluster: &Cluster,
    database: &str,
    records: i64,
) -> anyhow::Result<(Store, PgConnection)> {
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await?;
    insist_on_durability(&mut admin).await?;
    let create = format!("CREATE DATABASE {database}");
    sqlx::query(AssertSqlSafe(create)).execute(&mut admin).await?;
    admin.close().await?;
    Store::migrate(&cluster.url(database)).await?;
    let mut sql = PgConnection::connect(&cluster.url(database)).await?;
    for statement in furniture(records) {
        let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut sql).await;
        done.with_context(|| statement)?;
    }
    let store = Store::open(&cluster.url(database), Options::default()).await?;
    Ok((store, sql))
}

/// Records of a thousand accounts on ten thousand nodes, and the tables of the plain statement beside them.
fn furniture(records: i64) -> Vec<String> {
    let node = "md5('node ' || n)::uuid";
    vec![
        "SET session_replication_role = replica".to_owned(),
        format!("INSERT INTO accounts (id) SELECT md5('account ' || n)::uuid FROM generate_series(1, {ACCOUNTS}) AS n"),
        format!(
            "INSERT INTO nodes (id, name, region, sku, status, heartbeat_at)
             SELECT {node}, 'node ' || n, 'eu-1', 'h100.slice', 'ready', clock_timestamp() FROM generate_series(0, 9999) AS n"
        ),
        insert_records(&format!("'{BEGIN}'::timestamptz"), records),
        "SET session_replication_role = origin".to_owned(),
        "CREATE TABLE plain_accounts (id uuid PRIMARY KEY, balance_minor bigint NOT NULL)".to_owned(),
        "INSERT INTO plain_accounts SELECT id, 100000000 FROM accounts".to_owned(),
        "CREATE TABLE plain_records AS SELECT id, account_id, price_micros_per_gpu_second * gpus / 100 AS rate FROM usage_records".to_owned(),
        "ALTER TABLE plain_records ADD PRIMARY KEY (id)".to_owned(),
        "CREATE TABLE plain_windows (record_id uuid NOT NULL, window_at timestamptz NOT NULL, seconds integer NOT NULL,
            amount_minor bigint NOT NULL, PRIMARY KEY (record_id, window_at))".to_owned(),
        "CREATE TABLE plain_ledger (id bigserial PRIMARY KEY, account_id uuid NOT NULL, amount_minor bigint NOT NULL, key text NOT NULL UNIQUE,
            at timestamptz NOT NULL DEFAULT clock_timestamp())".to_owned(),
        "VACUUM ANALYZE".to_owned(),
    ]
}

/// Open records that began at that moment and were never charged.
pub(crate) fn insert_records(began: &str, records: i64) -> String {
    format!(
        "INSERT INTO usage_records (id, status, allocation_id, started_at, charged_until, account_id, project_id, node_id, sku, gpus,
                price_micros_per_gpu_second, micros_per_minor)
         SELECT md5('record ' || n)::uuid, 'open', md5('allocation ' || n)::uuid, began, began,
                md5('account ' || 1 + n % {ACCOUNTS})::uuid, md5('project ' || n % {ACCOUNTS})::uuid,
                md5('node ' || n % 10000)::uuid, 'h100.slice', 1 + n % 8, 500 + n % 1000, 10000
           FROM generate_series(1, {records}) AS n, (SELECT {began}) AS moment (began)"
    )
}

/// One minute of all records by the plain statement: a window, a ledger row and a balance; how many seconds it took.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn plain(sql: &mut PgConnection, minute: i64, records: i64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let row = sqlx::query(
        "WITH counted AS (
            INSERT INTO plain_windows (record_id, window_at, seconds, amount_minor)
            SELECT id, '2026-01-01T00:00:00Z'::timestamptz + $1 * interval '1 minute', 60, rate FROM plain_records
                ON CONFLICT DO NOTHING
            RETURNING record_id, window_at, amount_minor
         ), entered AS (
            INSERT INTO plain_ledger (account_id, amount_minor, key)
            SELECT record.account_id, -counted.amount_minor, counted.record_id || ':' || extract(epoch FROM counted.window_at)::bigint
              FROM counted
              JOIN plain_records AS record ON record.id = counted.record_id
                ON CONFLICT DO NOTHING
            RETURNING account_id, amount_minor
         ), moved AS (
            UPDATE plain_accounts AS account SET balance_minor = account.balance_minor + sums.sum
              FROM (SELECT account_id, sum(amount_minor) FROM entered GROUP BY account_id) AS sums
             WHERE account.id = sums.account_id
         )
         SELECT count(*) FROM entered",
    )
    .bind(minute)
    .fetch_one(sql)
    .await?;
    ensure!(row.try_get::<i64, _>(0)? == records, "the plain statement has charged something else");
    Ok(began.elapsed().as_secs_f64())
}

/// One minute of all records by the product; how many seconds it took.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn charge(store: &Store, until: Timestamp, expected: i64) -> anyhow::Result<f64> {
    let began = Instant::now();
    let charged = charging::charge(store, until).await?;
    let took = began.elapsed().as_secs_f64();
    ensure!(
        i64::try_from(charged.windows)? == expected,
        "{charged:?} instead of {expected} windows"
    );
    Ok(took)
}

/// After the run the books are computed again.
async fn check(store: &Store, sql: &mut PgConnection, windows: i64) -> anyhow::Result<()> {
    let row = sqlx::query("SELECT count(*) FROM usage_windows").fetch_one(sql).await?;
    ensure!(row.try_get::<i64, _>(0)? == windows, "not as many windows as were charged");
    for (invariant, rows, count) in audit::ask_all(store, audit::MONEY).await? {
        ensure!(count == 0, "{}: {count} broken, such as {rows:?}", invariant.name);
    }
    Ok(())
}
