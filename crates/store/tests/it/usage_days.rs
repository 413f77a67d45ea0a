//! Minutes of usage in a partition a day: charged across the edges of days and beyond all of them, given back, and gone as a whole when
//! they are old, without a minute that is charged twice, or not at all.

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};
use sqlx::migrate::Migrator;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use store::{Store, audit, charging, node_outages, usage_windows};
use testkit::{Database, new_id};

/// Two and a half minutes before a day ends, long after any day that a migration has made.
const BEGIN: &str = "2040-03-05T23:57:30.000001Z";
/// The last migration without partitions.
const UNDIVIDED: i64 = 10;

fn begin() -> Timestamp {
    BEGIN.parse().expect("a moment")
}

fn after(minutes: i64) -> Timestamp {
    begin() + SignedDuration::from_mins(minutes)
}

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// Records of two accounts on one node that began at that moment.
fn metered_since(records: i64, at: &str) -> [String; 2] {
    [
        "INSERT INTO accounts (id) SELECT md5('account ' || n)::uuid FROM generate_series(0, 1) AS n ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id"
            .to_owned(),
        format!(
            "INSERT INTO usage_records (id, allocation_id, started_at, charged_until, account_id, project_id, node_id, sku, gpus,
                    price_micros_per_gpu_second)
             SELECT md5('{at} ' || n)::uuid, md5('{at} ' || n)::uuid, '{at}', '{at}', md5('account ' || n % 2)::uuid,
                    md5('project')::uuid, md5('node')::uuid, 'h100.slice', 1 + n % 3, 831
               FROM generate_series(1, {records}) AS n"
        ),
    ]
}

async fn metered(records: i64) -> Database {
    let database = Database::new().await;
    database.tamper(&metered_since(records, BEGIN)).await;
    database
}

async fn charge(database: &Database, until: Timestamp) -> u64 {
    charging::charge(&database.store, until).await.expect("it is charged").windows
}

async fn make(database: &Database, now: Timestamp) -> u64 {
    usage_windows::make_days(&database.store, now).await.expect("they are made")
}

async fn drop_before(database: &Database, older_than: Timestamp) -> u64 {
    usage_windows::drop_days(&database.store, older_than).await.expect("they are dropped")
}

/// What must hold of money, and does not; and sums that differ.
async fn broken(store: &Store) -> Vec<String> {
    let found = audit::ask_all(store, audit::MONEY).await.expect("it is asked");
    let found = found.into_iter().filter(|(_, _, count)| *count > 0);
    let mut broken: Vec<String> =
        found.map(|(each, rows, _)| format!("{}: {rows:?}", each.name)).collect();
    for sum in audit::sums(store).await.expect("sums") {
        if sum.ledger_minor != sum.computed_minor {
            broken.push(format!("{sum:?}"));
        }
    }
    broken
}

async fn sound(database: &Database) {
    assert_eq!(broken(&database.store).await, Vec::<String>::new());
}

/// How many windows rest in a partition.
async fn rest_in(database: &Database, part: &str) -> i64 {
    database.number(&format!("SELECT count(*) FROM usage_windows_{part}")).await
}

#[tokio::test]
async fn minutes_are_charged_across_the_edge_of_a_day() {
    let database = metered(40).await;
    assert_eq!(make(&database, begin()).await, 66, "two months back, and three days ahead");
    assert_eq!(make(&database, begin()).await, 0);
    assert_eq!(charge(&database, after(2)).await, 40 * 2);
    // One statement on both sides of midnight.
    assert_eq!(charge(&database, after(6)).await, 40 * 4);
    assert_eq!(rest_in(&database, "20400305").await, 40 * 3);
    assert_eq!(rest_in(&database, "20400306").await, 40 * 3);
    assert_eq!(rest_in(&database, "other").await, 0);
    assert_eq!(charge(&database, after(6)).await, 0);
    // And after they forgot how far they were charged: each key of a day stands for the key of all.
    let forget = "UPDATE usage_records SET charged_until = started_at, charged_from = NULL, charged_minor = 0";
    database.tamper(&[forget]).await;
    assert_eq!(charge(&database, after(6)).await, 0);
    assert_eq!(charge(&database, after(7)).await, 40);
    sound(&database).await;
    database.remove().await;
}

/// A clock that jumps, and minutes from before everything: there is always a place.
#[tokio::test]
async fn what_no_day_was_made_for_is_charged_all_the_same() {
    let database = metered(10).await;
    database.tamper(&metered_since(10, "1999-12-31T23:58:30Z")).await;
    // The old ones first: they are not in anybody's way.
    let old: Timestamp = "2000-01-01T00:03:00Z".parse().expect("a moment");
    assert_eq!(charge(&database, old).await, 10 * 5);
    assert_eq!(rest_in(&database, "before").await, 10 * 5);
    database.tamper(&["UPDATE usage_records SET settled_at = charged_until, ended_at = charged_until WHERE started_at < '2001-01-01'"]).await;
    assert_eq!(charge(&database, after(5)).await, 10 * 5);
    assert_eq!(rest_in(&database, "other").await, 10 * 5, "on both sides of midnight");
    // Days that have begun elsewhere go on there; the others are made.
    assert_eq!(make(&database, begin()).await, 64);
    assert_eq!(make(&database, begin()).await, 0);
    assert_eq!(charge(&database, after(8)).await, 10 * 3);
    assert_eq!(rest_in(&database, "other").await, 10 * 8);
    assert_eq!(charge(&database, after(2 * 24 * 60)).await, 10 * (2 * 24 * 60 - 8));
    assert_eq!(rest_in(&database, "20400307").await, 10 * (24 * 60 - 3));
    let forget = "UPDATE usage_records SET charged_until = started_at, charged_from = NULL, charged_minor = 0 WHERE settled_at IS NULL";
    database.tamper(&[forget]).await;
    assert_eq!(charge(&database, after(2 * 24 * 60)).await, 0);
    sound(&database).await;
    // What went elsewhere goes when all of it is old, and there is a place again.
    let end = "UPDATE usage_records SET settled_at = charged_until, ended_at = charged_until WHERE settled_at IS NULL";
    database.tamper(&[end]).await;
    assert!(drop_before(&database, begin() + days(300)).await > 64);
    assert_eq!(database.number("SELECT count(*) FROM usage_windows").await, 0);
    sound(&database).await;
    database.tamper(&metered_since(5, "2050-01-01T00:00:00Z")).await;
    assert_eq!(charge(&database, "2050-01-01T00:02:00Z".parse().expect("a moment")).await, 10);
    assert_eq!(rest_in(&database, "other").await, 10);
    sound(&database).await;
    database.remove().await;
}

#[tokio::test]
async fn days_that_several_make_and_drop_at_once_are_made_and_dropped_once() {
    let database = metered(20).await;
    let mut makers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = database.store.clone();
        makers.spawn(async move { usage_windows::make_days(&store, begin()).await });
    }
    // And somebody charges meanwhile.
    let charged = charge(&database, after(2)).await;
    let done = makers.join_all().await;
    let mut made: u64 = done.into_iter().map(|each| each.expect("they are made")).sum();
    made += make(&database, begin()).await;
    assert!(charged == 20 * 2 && (65..=66).contains(&made), "{charged} and {made}");
    let parts = database.number("SELECT count(*) FROM usage_parts()").await;
    let mut droppers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = database.store.clone();
        droppers.spawn(async move { usage_windows::drop_days(&store, begin() - days(1)).await });
    }
    let done = droppers.join_all().await;
    let mut dropped: u64 = done.into_iter().map(|each| each.expect("they are dropped")).sum();
    dropped += drop_before(&database, begin() - days(1)).await;
    let left = database.number("SELECT count(*) FROM usage_parts()").await;
    assert_eq!(i64::try_from(dropped).expect("a few"), parts - left);
    assert!((4..=5).contains(&left), "the day before yesterday is gone, and not made again");
    assert_eq!(make(&database, begin()).await, 0);
    sound(&database).await;
    database.remove().await;
}

#[tokio::test]
async fn what_is_old_goes_a_day_at_a_time_and_is_never_charged_again() {
    let database = metered(6).await;
    make(&database, begin()).await;
    charge(&database, after(3 * 24 * 60)).await;
    make(&database, begin() + days(4)).await;
    // One is repriced, one ends, one began only now; and one was charged behind its end.
    database
        .tamper(&[
            "INSERT INTO allocation_prices (allocation_id, from_at, price_micros_per_gpu_second)
             SELECT allocation_id, '2040-03-09T01:00Z', 977 FROM usage_records WHERE gpus = 3 LIMIT 1",
            "UPDATE usage_records SET repriced = true WHERE allocation_id IN (SELECT allocation_id FROM allocation_prices)",
            "UPDATE usage_records SET ended_at = charged_until + interval '90 seconds'
              WHERE id = (SELECT id FROM usage_records WHERE gpus = 1 LIMIT 1)",
            "UPDATE usage_records SET ended_at = charged_until - interval '90 seconds'
              WHERE id = (SELECT id FROM usage_records WHERE gpus = 2 LIMIT 1)",
        ])
        .await;
    database.tamper(&metered_since(2, "2040-03-08T23:55:00Z")).await;
    charge(&database, after(4 * 24 * 60)).await;
    sound(&database).await;
    let windows = database.number("SELECT count(*) FROM usage_windows").await;
    assert!(drop_before(&database, begin() + days(2)).await > 60);
    let left = database.number("SELECT count(*) FROM usage_windows").await;
    assert!(left < windows && left > 0, "{left} of {windows}");
    let first = "SELECT (extract(epoch FROM min(window_at)) * 1000000)::bigint FROM usage_windows";
    let midnight: Timestamp = "2040-03-07T00:00:00Z".parse().expect("a moment");
    assert_eq!(database.number(first).await, midnight.as_microsecond());
    sound(&database).await;
    // Records that forgot everything are charged for nothing of what is gone, nor of what is there.
    let before = database.number("SELECT sum(balance_minor)::bigint FROM accounts").await;
    let forget = "UPDATE usage_records SET charged_until = started_at, charged_from = NULL, charged_minor = 0 WHERE settled_at IS NULL";
    database.tamper(&[forget]).await;
    assert_eq!(charge(&database, after(4 * 24 * 60)).await, 0);
    assert_eq!(database.number("SELECT sum(balance_minor)::bigint FROM accounts").await, before);
    assert!(charge(&database, after(4 * 24 * 60 + 1)).await > 0);
    sound(&database).await;
    // Somebody who changes what is kept is found.
    database
        .tamper(&["UPDATE usage_windows SET amount_minor = amount_minor + 1 WHERE window_at = '2040-03-07T12:00Z'"])
        .await;
    assert!(broken(&database.store).await.iter().any(|each| each.starts_with("I15")));
    database.remove().await;
}

#[tokio::test]
async fn a_day_stays_while_somebody_has_to_be_charged_or_given_back_for_it() {
    let database = metered(4).await;
    make(&database, begin()).await;
    charge(&database, after(60)).await;
    let old = begin() + days(40);
    assert!(drop_before(&database, old).await > 60, "up to the day before");
    assert_eq!(
        rest_in(&database, "20400306").await,
        4 * 57,
        "which nobody is charged for to its end"
    );
    charge(&database, after(24 * 60 + 60)).await;
    // A machine was not heard of across midnight, and nobody has been given anything back yet.
    database
        .tamper(&["INSERT INTO node_outages (id, node_id, from_at, until_at, credited_until)
             VALUES (md5('outage')::uuid, md5('node')::uuid, '2040-03-06T23:50:30Z', '2040-03-07T00:09:30Z', '2040-03-06T23:50:30Z')"])
        .await;
    assert_eq!(drop_before(&database, old).await, 0);
    let given = node_outages::give_back(&database.store).await.expect("it is given");
    assert_eq!(given, 4 * 20, "every minute that it touches, of both days");
    sound(&database).await;
    assert_eq!(drop_before(&database, old).await, 1);
    sound(&database).await;
    assert_eq!(node_outages::give_back(&database.store).await.expect("it is given"), 0);
    // What is not heard of to this day keeps nothing that was given back.
    database
        .tamper(&["INSERT INTO node_outages (id, node_id, from_at, credited_until)
             VALUES (md5('open')::uuid, md5('node')::uuid, '2040-03-07T00:30:00Z', '2040-03-07T00:30:00Z')"])
        .await;
    charge(&database, after(2 * 24 * 60 + 60)).await;
    assert_eq!(drop_before(&database, old).await, 0);
    node_outages::give_back(&database.store).await.expect("it is given");
    assert_eq!(drop_before(&database, old).await, 1);
    sound(&database).await;
    database.remove().await;
}

/// Somebody in a transaction, in which this was asked.
async fn hands(database: &Database, asked: &'static str) -> PoolConnection<Postgres> {
    let mut hands = database.sql.acquire().await.expect("it connects");
    for statement in ["BEGIN", asked] {
        sqlx::query(statement).execute(&mut *hands).await.expect("it is done");
    }
    hands
}

/// Whoever reads all of it for long is not waited for; and whoever charges is not held up by who waits.
#[tokio::test]
async fn who_reads_for_long_is_not_waited_for() {
    let database = metered(4).await;
    let mut reader = hands(&database, "SELECT count(*) FROM usage_windows").await;
    let refused = usage_windows::drop_days(&database.store, begin()).await;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(charge(&database, after(2)).await, 4 * 2);
    sqlx::query("ROLLBACK").execute(&mut *reader).await.expect("it ends");
    drop(reader);
    assert!(drop_before(&database, begin() - days(1)).await > 0);
    sound(&database).await;
    database.remove().await;
}

#[tokio::test]
async fn what_was_charged_before_there_were_days_is_there_afterwards() {
    let database = Database::new().await;
    let name = format!("t_{}", new_id().simple());
    let mut admin = PgConnection::connect(&database.url()).await.expect("it connects");
    let create = format!("CREATE DATABASE {name}");
    sqlx::query(AssertSqlSafe(create)).execute(&mut admin).await.expect("one is made");
    let known = "SELECT current_database()::text";
    let here: String = sqlx::query_scalar(known).fetch_one(&mut admin).await.expect("a name");
    let url = database.url().replace(&here, &name);
    let mut sql = PgConnection::connect(&url).await.expect("it connects");
    let all = sqlx::migrate!("./migrations");
    let older = all.iter().filter(|step| step.version <= UNDIVIDED).cloned().collect();
    let older = Migrator { migrations: Cow::Owned(older), ..Migrator::DEFAULT };
    older.run(&mut sql).await.expect("it was there");
    for statement in [
        "SET session_replication_role = replica",
        "INSERT INTO usage_windows (usage_record_id, window_at, micros, amount_minor, posting_id)
         SELECT md5(n::text)::uuid, clock_timestamp() - n * interval '1 hour', 60000000, 4, md5(n::text)::uuid FROM generate_series(1, 3000) AS n",
        "SET session_replication_role = origin",
    ] {
        sqlx::query(statement).execute(&mut sql).await.expect("it is charged");
    }
    Store::migrate(&url).await.expect("it is migrated");
    let count = "SELECT count(*) FROM usage_windows WHERE window_at < clock_timestamp()";
    let count: i64 = sqlx::query_scalar(count).fetch_one(&mut sql).await.expect("a count");
    assert_eq!(count, 3_000);
    for change in ["DELETE FROM usage_windows_before", "UPDATE usage_windows_before SET micros = 1"]
    {
        assert!(sqlx::query(change).execute(&mut sql).await.is_err(), "{change}");
    }
    let twice = "INSERT INTO usage_windows SELECT * FROM usage_windows LIMIT 1";
    assert!(sqlx::query(twice).execute(&mut sql).await.is_err());
    drop(sql);
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await.expect("it is dropped");
    database.remove().await;
}

/// A sweep that finds nothing due looks at what has ended, and at nothing else.
#[tokio::test]
async fn charging_when_nothing_is_due_reads_no_record() {
    let database = metered(12_000).await;
    let due = async |store: &Store, until| {
        charging::charge_due(store, until).await.expect("it is charged").windows
    };
    assert_eq!(due(&database.store, after(1)).await, 12_000);
    let ids: Vec<String> = (1..=7).map(|n| format!("md5('{BEGIN} {n}')::uuid")).collect();
    let end = format!(
        "UPDATE usage_records SET ended_at = charged_until + interval '3 seconds' WHERE id IN ({})",
        ids.join(", ")
    );
    database.tamper(&[end]).await;
    // A connection hands its counts in when it ends at the latest.
    let store = database.reopened("work_mem", "4MB").await;
    database.store.close().await;
    for statement in ["VACUUM ANALYZE usage_records, accounts", "SELECT pg_stat_reset()"] {
        assert!(database.lets(statement).await);
    }
    assert_eq!(due(&store, after(1)).await, 7, "what has ended is charged to its end at once");
    assert_eq!(due(&store, after(1)).await, 0);
    assert_eq!(due(&store, after(1)).await, 0);
    store.close().await;
    let read = "SELECT (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE relname = 'usage_records'";
    let read = database.number(read).await;
    assert!(read < 100, "{read} rows were read");
    database.remove().await;
}

/// An account that somebody has in hand is not counted as charged.
#[tokio::test]
async fn who_was_passed_by_is_charged_by_the_next_sweep() {
    let database = metered(10).await;
    let lock = "SELECT 1 FROM accounts WHERE id = md5('account 0')::uuid FOR UPDATE";
    let mut hand = hands(&database, lock).await;
    let due = async |until| charging::charge_due(&database.store, until).await.expect("charged");
    let charged = due(after(1)).await;
    assert_eq!((charged.windows, charged.left), (5, 1));
    sqlx::query("ROLLBACK").execute(&mut *hand).await.expect("it is let go");
    drop(hand);
    assert_eq!(due(after(1)).await.windows, 5);
    assert_eq!(due(after(1)).await.windows, 0);
    // A clock that is set back, and one that jumps: another minute is looked at, whichever it is.
    assert_eq!(due(after(0)).await.windows, 0);
    assert_eq!(due(after(3)).await.windows, 10 * 2);
    assert_eq!(due(after(2)).await.windows, 0);
    database.tamper(&metered_since(3, "2040-03-05T23:57:00Z")).await;
    assert_eq!(due(after(2)).await.windows, 0, "late, and not forgotten");
    assert_eq!(due(after(3)).await.windows, 3 * 3);
    sound(&database).await;
    database.remove().await;
}
