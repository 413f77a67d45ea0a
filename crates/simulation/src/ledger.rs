//! The ledger on Postgres: records with random prices, changes, ends and outages are charged by two at once, whose connections are
//! cut in the middle, until everything is charged; then all of it is computed again, and charged again from the beginning.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sqlx::Row as _;
use store::{Options, Store, audit, charging, node_outages};
use testkit::Database;
use tokio::sync::watch;

use crate::dice::Dice;

/// How many minutes a record that was ended lasts, in the mean: one in ten was not, and lasts to the end of all.
const MINUTES: i64 = 700;
/// How many minutes all of them last, in the mean; a little less, so that there are enough.
const MINUTES_OF_ALL: i64 = 950;
const ACCOUNTS: i64 = 200;
const NODES: i64 = 50;
/// How long the time is in which everything happens.
const SPAN_MINUTES: i64 = 3 * 1_440;
/// How long connections last at most until they are cut: some batches never end, others do.
const CUT_MAX_MS: usize = 1_500;

/// How much is charged, and by which dice.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many windows at least.
    pub windows: i64,
    /// Where the dice begin.
    pub seed: u64,
}

/// Charges so many windows, with crashes, and everything a second time; one line of figures.
///
/// # Errors
/// When something can't be done at all; what does not hold is in the figures.
pub async fn prove(size: &Size) -> anyhow::Result<Value> {
    let database = Database::new().await;
    let records = size.windows / MINUTES_OF_ALL;
    let begin = furnish(&database, records, size.seed).await?;
    let mut figures = Figures::default();
    charge_all(&database, begin, &mut Dice::new(size.seed), &mut figures).await?;
    let first = digest(&database).await?;
    let broken = broken(&database.store).await?;
    // Everything is forgotten but what is written down; whoever charges again writes nothing.
    forget(&database).await?;
    let until = begin + SignedDuration::from_mins(SPAN_MINUTES + 2 * MINUTES);
    charging::charge(&database.store, until).await?;
    node_outages::give_back(&database.store).await?;
    let second = digest(&database).await?;
    let windows = database.number("SELECT count(*) FROM usage_windows").await;
    let sum =
        database.number("SELECT coalesce(sum(amount_minor), 0)::bigint FROM ledger_entries").await;
    let given = database.number("SELECT count(*) FROM usage_credits").await;
    let differ = first.iter().zip(&second).filter(|(first, second)| first != second);
    let changed: Vec<String> =
        differ.map(|(first, second)| format!("{first} -> {second}")).collect();
    let ok = broken.is_empty() && sum == 0 && changed.is_empty() && windows >= size.windows;
    let line = json!({
        "proof": "ledger", "records": records, "windows": windows, "given_back": given, "passes": figures.passes,
        "cuts": figures.cuts, "failed_passes": figures.failed, "ledger_sum": sum, "broken": broken,
        "changed_by_a_second_run": changed, "seed": size.seed, "ok": ok,
    });
    database.remove().await;
    Ok(line)
}

#[derive(Debug, Default)]
struct Figures {
    passes: u64,
    failed: u64,
    cuts: i64,
}

/// Accounts, nodes and records as if the product had made them, in one statement each.
async fn furnish(database: &Database, records: i64, seed: u64) -> anyhow::Result<Timestamp> {
    let begin: Timestamp = "2026-03-27T22:13:07.123456Z".parse()?;
    let mut sql = database.sql.acquire().await?;
    // A part of it is the night in which clocks are put forward, where that is done.
    for statement in [
        "SET session_replication_role = replica".to_owned(),
        format!("SELECT setseed({}::float8)", seed as f64 % 1_000.0 / 1_000.0),
        format!("INSERT INTO accounts (id, currency) SELECT md5('account ' || n)::uuid, (ARRAY['USD', 'JPY', 'KWD'])[1 + n % 3]
                   FROM generate_series(1, {ACCOUNTS}) AS n"),
        format!(
            "INSERT INTO usage_records (id, status, allocation_id, started_at, ended_at, charged_until, account_id, project_id,
                    node_id, sku, gpus, price_micros_per_gpu_second, micros_per_minor, repriced)
             SELECT md5('record ' || n)::uuid, CASE WHEN closed THEN 'closed' ELSE 'open' END, md5('allocation ' || n)::uuid, started,
                    CASE WHEN closed THEN started + lasted * interval '1 microsecond' END, started,
                    md5('account ' || 1 + n % {ACCOUNTS})::uuid, md5('project ' || n % 500)::uuid, md5('node ' || n % {NODES})::uuid,
                    'h100.slice', 1 + n % 8, floor(random() * 3000)::bigint, minor_micros((ARRAY['USD', 'JPY', 'KWD'])[1 + (1 + n % {ACCOUNTS}) % 3]),
                    n % 5 = 0
               FROM (
                    SELECT n, n % 10 > 0 AS closed, '{begin}'::timestamptz + random() * interval '{SPAN_MINUTES} minutes' AS started,
                           CASE WHEN n % 97 = 0 THEN 1 ELSE floor(random() * {MINUTES} * 2 * 60000000) END AS lasted
                      FROM generate_series(1, {records}) AS n
                    ) AS made"
        ),
        "INSERT INTO allocation_prices (allocation_id, from_at, price_micros_per_gpu_second)
         SELECT allocation_id, date_trunc('minute', started_at, 'UTC') + number * interval '37 minutes', floor(random() * 5000)::bigint
           FROM usage_records, generate_series(0, 3) AS number
          WHERE repriced".to_owned(),
        format!(
            "INSERT INTO node_outages (id, node_id, from_at, until_at, credited_until)
             SELECT md5('outage ' || n)::uuid, md5('node ' || n % {NODES})::uuid, from_at, from_at + random() * interval '20 minutes', from_at
               FROM (SELECT n, '{begin}'::timestamptz + random() * interval '{SPAN_MINUTES} minutes' AS from_at
                       FROM generate_series(1, {NODES} * 2) AS n) AS made"
        ),
        "SET session_replication_role = origin".to_owned(),
        "ANALYZE".to_owned(),
    ] {
        let done = sqlx::query(sqlx::AssertSqlSafe(statement.clone())).execute(&mut *sql).await;
        done.with_context(|| statement)?;
    }
    Ok(begin)
}

/// Time passes in steps; two charge at once, and now and then both lose their connections.
async fn charge_all(
    database: &Database,
    begin: Timestamp,
    dice: &mut Dice,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let end = begin + SignedDuration::from_mins(SPAN_MINUTES + 2 * MINUTES);
    let (over, stop) = watch::channel(false);
    let mut scissors = Dice::new(dice.below(1 << 30) as u64);
    let cuts = async {
        let mut cuts = 0;
        let mut stop = stop.clone();
        let mut lasts = || Duration::from_millis(1 + scissors.below(CUT_MAX_MS) as u64);
        while tokio::time::timeout(lasts(), stop.wait_for(|over| *over)).await.is_err() {
            cuts += database.end_connections().await;
        }
        cuts
    };
    let charging = async {
        let stores = [open(database).await?, open(database).await?];
        let mut until = begin;
        while until < end {
            until = (until + SignedDuration::from_mins(1 + dice.below(180) as i64)).min(end);
            let chargers = [charge(&stores[0], until), charge(&stores[1], until)];
            for done in futures::future::join_all(chargers).await {
                figures.passes += 1;
                figures.failed += u64::from(done.is_err());
            }
        }
        // What a cut has left is taken up by the next who comes, as it is in the product.
        for attempt in 0.. {
            ensure!(attempt < 1_000, "it is never charged to the end");
            figures.passes += 1;
            match charge(&stores[0], end).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) => figures.failed += 1,
            }
        }
        let _ = over.send(true);
        anyhow::Ok(())
    };
    let (cuts, charged) = futures::future::join(cuts, charging).await;
    figures.cuts = cuts;
    charged
}

async fn open(database: &Database) -> anyhow::Result<Store> {
    let options = Options { connections_max: 2, ..Options::default() };
    Ok(Store::open(&database.url(), options).await?)
}

async fn charge(store: &Store, until: Timestamp) -> Result<u64, store::Error> {
    let charged = charging::charge(store, until).await?;
    Ok(charged.windows + node_outages::give_back(store).await?)
}

/// The invariants of money that do not hold.
async fn broken(store: &Store) -> anyhow::Result<Vec<String>> {
    let findings = audit::ask_all(store, audit::MONEY).await?;
    let broken = findings.into_iter().filter(|(_, _, count)| *count > 0);
    Ok(broken
        .map(|(invariant, rows, count)| format!("{} {count}: {rows:?}", invariant.name))
        .collect())
}

/// Takes back what records remember of having been charged.
async fn forget(database: &Database) -> anyhow::Result<()> {
    database
        .tamper(&[
            "UPDATE usage_records SET charged_until = started_at, charged_minor = 0, settled_at = NULL",
            "UPDATE node_outages SET credited_until = from_at",
        ])
        .await;
    Ok(())
}

/// Everything that was written down, as one value.
async fn digest(database: &Database) -> anyhow::Result<Vec<String>> {
    let mut digests = Vec::new();
    for (table, columns) in [
        ("usage_windows", "usage_record_id, window_at, micros, amount_minor, posting_id"),
        ("usage_credits", "usage_record_id, window_at, amount_minor, posting_id, outage_id"),
        ("ledger_postings", "id, key, kind, account_id, currency"),
        (
            "ledger_entries",
            "number, posting_id, book, account_id, amount_minor, balance_after_minor",
        ),
        ("ledger_books", "book, currency, balance_minor"),
        ("accounts", "id, balance_minor"),
        ("project_spending", "project_id, month, spent_minor"),
        ("usage_records", "id, charged_until, charged_minor, settled_at IS NULL"),
    ] {
        let statement = format!(
            "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(ROW({columns})::text, 0)::numeric), 0) FROM {table}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(statement)).fetch_one(&database.sql).await?;
        digests.push(format!("{table} {}", row.try_get::<String, _>(0)?));
    }
    Ok(digests)
}
