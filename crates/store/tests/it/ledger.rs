//! The ledger: what the database refuses, what each of its keys is for, and that SQL counts as the domain does.

use domain::ids::AccountId;
use domain::ledger::PostingKind;
use domain::money::{Currency, Stretch};
use jiff::{SignedDuration, Timestamp};
use sqlx::{Connection as _, PgConnection, Row as _};
use store::ledger::{self, NewPosting};
use store::{Store, audit, charging};
use testkit::{Database, new_id};

const BEGIN: i64 = 1_790_000_013_500_001;

/// Accounts with records that began at [`BEGIN`], of two GPUs each.
async fn metered(accounts: i64, records: i64) -> Database {
    let database = Database::new().await;
    database
        .tamper(&[
            format!(
                "INSERT INTO accounts (id) SELECT md5('account ' || n)::uuid FROM generate_series(1, {accounts}) AS n"
            ),
            format!(
                "INSERT INTO usage_records (id, allocation_id, started_at, charged_until, account_id, project_id, sku, gpus,
                        price_micros_per_gpu_second)
                 SELECT md5('record ' || n)::uuid, md5('allocation ' || n)::uuid, at, at, md5('account ' || 1 + n % {accounts})::uuid,
                        md5('project ' || n)::uuid, 'h100.slice', 2, 831
                   FROM generate_series(1, {records}) AS n, (SELECT 'epoch'::timestamptz + {BEGIN} * interval '1 microsecond') AS began (at)"
            ),
        ])
        .await;
    database
}

fn after(minutes: i64) -> Timestamp {
    let begin = Timestamp::from_microsecond(BEGIN).expect("a moment");
    begin + SignedDuration::from_mins(minutes)
}

/// The names of the invariants of money that do not hold.
async fn broken(store: &Store) -> Vec<&'static str> {
    let found = audit::ask_all(store, audit::MONEY).await.expect("it is asked");
    found.into_iter().filter(|(_, _, count)| *count > 0).map(|(each, _, _)| each.name).collect()
}

async fn post(database: &Database, key: &str) -> bool {
    let posting = NewPosting {
        key,
        kind: PostingKind::Payment,
        account: AccountId(
            sqlx::query_scalar("SELECT id FROM accounts LIMIT 1")
                .fetch_one(&database.sql)
                .await
                .expect("an account"),
        ),
        amount_minor: 5_000,
        source_id: None,
        actor: "a test",
        reason: None,
    };
    let posted = database.in_transaction(async |tx| ledger::post(tx, &posting).await).await;
    posted.expect("it is posted").expect("there is an account").fresh
}

/// Whoever is given back waits for the statement that charges it: after an outage it is no longer than in any other minute.
#[tokio::test]
async fn what_is_far_behind_is_charged_by_statements_of_the_usual_size() {
    let database = metered(7, 600).await;
    let charged = charging::charge(&database.store, after(30)).await.expect("it is charged");
    assert_eq!(
        charged.windows,
        600 * 30,
        "the first minute is not a whole one, the last is not over"
    );
    let largest = "SELECT max(windows) FROM (SELECT count(*) AS windows FROM usage_windows GROUP BY xmin::text) AS statements";
    let most = charging::WINDOWS_MAX + i64::from(charging::MINUTES_MAX);
    let largest = database.number(largest).await;
    assert!(largest > most / 2 && largest <= most, "{largest} in one");
    assert_eq!(broken(&database.store).await, Vec::<&str>::new());
    database.remove().await;
}

/// Where people come and go there is always somebody who has just gone: whoever charges must come to an end all the same, or the
/// next minute is never charged.
#[tokio::test]
async fn charging_ends_although_somebody_goes_all_the_time() {
    let database = metered(3, 40).await;
    for statement in [
        // There are no allocations behind these records.
        "ALTER TABLE usage_records DROP CONSTRAINT usage_records_allocation_id_fkey",
        "CREATE FUNCTION one_goes() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
            UPDATE usage_records SET ended_at = charged_until + interval '1 second'
             WHERE id = (SELECT id FROM usage_records WHERE ended_at IS NULL ORDER BY id LIMIT 1);
            RETURN NULL;
         END $$",
        "CREATE TRIGGER one_goes AFTER INSERT ON usage_windows FOR EACH STATEMENT EXECUTE FUNCTION one_goes()",
    ] {
        assert!(database.lets(statement).await);
    }
    let charged = charging::charge(&database.store, after(20)).await.expect("it is charged");
    assert!(charged.windows >= 39 * 20, "{charged:?}");
    let gone =
        database.number("SELECT count(*) FROM usage_records WHERE ended_at IS NOT NULL").await;
    assert!((1..10).contains(&gone), "it went on until {gone} of 40 had gone");
    database.remove().await;
}

#[tokio::test]
async fn sql_counts_money_as_the_domain_does() {
    let database = Database::new().await;
    for code in ["USD", "EUR", "JPY", "KRW", "KWD", "TND", "XPF", "BIF", "CHF"] {
        let query = format!("SELECT minor_micros('{code}')");
        let known = Currency::parse(code).expect("a currency");
        assert_eq!(database.number(&query).await, known.micros_per_minor(), "{code}");
    }
    let changes =
        [(BEGIN - 60_000_000, 17), (BEGIN + 90_000_001, 4_999), (BEGIN + 1_000_000_000, 0)];
    let mut values = 7_i64;
    for round in 0..300 {
        values =
            values.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let below = |bound: i64| (values >> 8).rem_euclid(bound);
        let (agreed, gpus) = (below(100_000_001), 1 + below(64));
        let micros_per_minor =
            [1_000_000, 10_000, 1_000][usize::try_from(below(3)).expect("small")];
        let until = BEGIN + 1 + below([1_000, 86_400_000_000, 34_560_000_000_000][round % 3]);
        let changes = if round % 2 == 0 { &changes[..] } else { &[] };
        let stretch = Stretch { started: BEGIN, gpus, agreed, changes, micros_per_minor };
        let rows: Vec<String> = changes
            .iter()
            .map(|(at, price)| format!("('00000000-0000-0000-0000-000000000001', 'epoch'::timestamptz + {at} * interval '1 microsecond', {price})"))
            .collect();
        let owed = if rows.is_empty() {
            database.number(&format!(
                "SELECT minor_of({agreed}::bigint * {gpus}, micros_between('epoch'::timestamptz + {BEGIN} * interval '1 microsecond',
                    'epoch'::timestamptz + {until} * interval '1 microsecond'), {micros_per_minor})"
            )).await
        } else {
            if round == 0 {
                let insert = format!("INSERT INTO allocation_prices VALUES {}", rows.join(", "));
                database.tamper(&[insert]).await;
            }
            database.number(&format!(
                "SELECT repriced_minor('00000000-0000-0000-0000-000000000001', {agreed}::bigint, {gpus}::smallint,
                    'epoch'::timestamptz + {BEGIN} * interval '1 microsecond',
                    'epoch'::timestamptz + {until} * interval '1 microsecond', {micros_per_minor})"
            )).await
        };
        assert_eq!(owed, stretch.owed_at(until), "{stretch:?} at {until}");
    }
    database.remove().await;
}

#[tokio::test]
async fn four_who_charge_at_once_charge_every_minute_once() {
    let database = metered(7, 300).await;
    let mut chargers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = database.store.clone();
        chargers.spawn(async move { charging::charge(&store, after(40)).await });
    }
    let done = chargers.join_all().await;
    let mut windows: u64 = done.into_iter().map(|each| each.expect("charged").windows).sum();
    // Who found all accounts in other hands has gone home; the next comes in ten seconds.
    windows += charging::charge(&database.store, after(40)).await.expect("charged").windows;
    assert_eq!(windows, 300 * 40, "minutes that are over");
    assert_eq!(charging::charge(&database.store, after(40)).await.expect("charged").windows, 0);
    assert_eq!(broken(&database.store).await, [] as [&str; 0]);
    database.remove().await;
}

#[tokio::test]
async fn records_that_forgot_how_far_they_were_charged_are_not_charged_again() {
    let database = metered(3, 20).await;
    charging::charge(&database.store, after(30)).await.expect("charged");
    let before = database.snapshot().await;
    database.tamper(&["UPDATE usage_records SET charged_until = started_at, charged_from = NULL, charged_minor = 0"]).await;
    let again = charging::charge(&database.store, after(30)).await.expect("charged");
    assert_eq!((again.windows, again.postings), (0, 0));
    let changed = before.changes_to(&database.snapshot().await);
    let other = changed.iter().filter(|change| !format!("{change:?}").contains("usage_records"));
    assert_eq!(other.count(), 0, "{changed:?}");
    // And it goes on from there.
    assert_eq!(charging::charge(&database.store, after(31)).await.expect("charged").windows, 20);
    assert_eq!(broken(&database.store).await, [] as [&str; 0]);
    database.remove().await;
}

/// Each key stands between a second telling and a second charge: with it nothing happens twice, without it everything does.
#[tokio::test]
async fn without_the_key_of_windows_a_minute_is_charged_twice() {
    let database = metered(1, 1).await;
    charging::charge(&database.store, after(5)).await.expect("charged");
    let forget = "UPDATE usage_records SET charged_until = started_at, charged_minor = 0";
    database.tamper(&[forget]).await;
    charging::charge(&database.store, after(5)).await.expect("charged");
    assert_eq!(broken(&database.store).await, [] as [&str; 0]);
    for statement in [
        "ALTER TABLE usage_windows DROP CONSTRAINT usage_windows_pkey",
        "ALTER TABLE ledger_postings DROP CONSTRAINT ledger_postings_key_key, DROP CONSTRAINT ledger_postings_pkey",
        "DROP INDEX ledger_entries_posting",
    ] {
        assert!(database.lets(statement).await, "{statement}");
    }
    database.tamper(&[forget]).await;
    charging::charge(&database.store, after(5)).await.expect("charged");
    let broken = broken(&database.store).await;
    assert!(
        broken.contains(&"I12") && broken.contains(&"I14") && broken.contains(&"I15"),
        "{broken:?}"
    );
    database.remove().await;
}

#[tokio::test]
async fn without_the_key_of_the_ledger_a_payment_is_credited_twice() {
    let database = metered(1, 1).await;
    assert!(post(&database, "payment/1").await);
    assert!(!post(&database, "payment/1").await);
    assert_eq!(database.number("SELECT balance_minor FROM accounts").await, 5_000);
    for statement in [
        "ALTER TABLE ledger_postings DROP CONSTRAINT ledger_postings_key_key, DROP CONSTRAINT ledger_postings_pkey",
        "DROP INDEX ledger_entries_posting",
    ] {
        assert!(database.lets(statement).await, "{statement}");
    }
    assert!(post(&database, "payment/1").await);
    assert_eq!(database.number("SELECT balance_minor FROM accounts").await, 10_000);
    database.remove().await;
}

#[tokio::test]
async fn without_the_key_of_records_an_allocation_is_metered_twice() {
    let database = Database::new().await;
    let active = database.active_allocation().await.allocation;
    let second = format!(
        "INSERT INTO usage_records (id, allocation_id, started_at) VALUES ('{}', '{active}', clock_timestamp())",
        new_id()
    );
    let open = format!(
        "SELECT count(*) FROM usage_records WHERE allocation_id = '{active}' AND status = 'open'"
    );
    assert!(!database.lets(&second).await, "one open record an allocation");
    assert!(database.lets("DROP INDEX usage_records_open").await);
    database.tamper(&[second]).await;
    assert_eq!(database.number(&open).await, 2);
    database.remove().await;
}

#[tokio::test]
async fn entries_that_do_not_balance_are_refused_and_without_the_trigger_they_are_not() {
    let database = metered(1, 1).await;
    assert!(post(&database, "payment/1").await);
    let one_sided = "INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor)
                     SELECT posting_id, 'revenue', NULL, 7 FROM ledger_entries LIMIT 1";
    let unbalanced = "INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor)
                      SELECT posting_id, book, NULL, amount
                        FROM (SELECT posting_id FROM ledger_entries LIMIT 1) AS posting, (VALUES ('revenue', 7), ('adjustments', -6)) AS said (book, amount)";
    let of_nothing = "INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor)
                      SELECT gen_random_uuid(), book, NULL, amount FROM (VALUES ('revenue', 7), ('adjustments', -7)) AS said (book, amount)";
    let bare = "INSERT INTO ledger_postings (id, key, kind, account_id, currency, actor)
                SELECT gen_random_uuid(), 'bare', 'payment', id, 'USD', 'x' FROM accounts";
    for refused in [one_sided, unbalanced, of_nothing, bare] {
        assert!(!database.lets(refused).await, "{refused}");
    }
    assert_eq!(broken(&database.store).await, [] as [&str; 0]);
    assert!(database.lets("DROP TRIGGER balanced ON ledger_entries").await);
    assert!(database.lets(one_sided).await, "nothing else stands in its way");
    assert!(broken(&database.store).await.contains(&"I13"));
    database.remove().await;
}

#[tokio::test]
async fn what_is_in_the_ledger_is_changed_by_nobody() {
    let database = metered(1, 1).await;
    charging::charge(&database.store, after(3)).await.expect("charged");
    let tables = ["ledger_postings", "ledger_entries", "usage_windows", "usage_credits"];
    // Nor by who goes past the table that they are partitions of.
    let partitions = ["usage_windows_before", "usage_windows_other"];
    for table in tables.into_iter().chain(partitions) {
        let column = if table.starts_with("usage") { "amount_minor" } else { "posting_id" };
        let column = if table == "ledger_postings" { "reason" } else { column };
        for change in [
            format!("UPDATE {table} SET {column} = {column}"),
            format!("DELETE FROM {table}"),
            format!("TRUNCATE {table}"),
        ] {
            assert!(!database.lets(&change).await, "{change}");
        }
    }
    database.remove().await;
}

/// Whoever owns the database but is no superuser has not even the right, with every trigger off.
#[tokio::test]
async fn who_owns_the_ledger_has_no_right_to_change_it() {
    let database = Database::new().await;
    let role = format!("owner_{}", new_id().simple());
    for statement in
        [format!("CREATE ROLE {role} LOGIN CREATEDB"), format!("GRANT {role} TO CURRENT_USER")]
    {
        assert!(database.lets(&statement).await, "{statement}");
    }
    let address = database.url().replace("berth@", &format!("{role}@"));
    let mut admin = PgConnection::connect(&address).await.expect("they may come in");
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {role}")))
        .execute(&mut admin)
        .await
        .expect("they may make one");
    let theirs = address.replace(&format!("/{}", database_name(&address)), &format!("/{role}"));
    Store::migrate(&theirs).await.expect("they may migrate it");
    let mut owner = PgConnection::connect(&theirs).await.expect("they may come in");
    let partitions = ["usage_windows_before", "usage_windows_other"];
    let tables = ["ledger_postings", "ledger_entries", "usage_windows", "usage_credits"];
    for table in tables.into_iter().chain(partitions) {
        sqlx::query(sqlx::AssertSqlSafe(format!("ALTER TABLE {table} DISABLE TRIGGER ALL")))
            .execute(&mut owner)
            .await
            .ok();
        let delete = format!("DELETE FROM {table}");
        let refused = sqlx::query(sqlx::AssertSqlSafe(delete)).execute(&mut owner).await;
        let error = refused.expect_err("it is refused").to_string();
        assert!(error.contains("permission denied"), "{table}: {error}");
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}")))
            .fetch_one(&mut owner)
            .await
            .expect("they may read it");
        assert_eq!(row.get::<i64, _>(0), 0);
    }
    drop(owner);
    let drop = format!("DROP DATABASE {role} WITH (FORCE)");
    sqlx::query(sqlx::AssertSqlSafe(drop)).execute(&mut admin).await.expect("they may drop it");
    drop_role(admin, &database, &role).await;
    database.remove().await;
}

/// The database in an address.
fn database_name(address: &str) -> String {
    let path = address.split('?').next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

async fn drop_role(admin: PgConnection, database: &Database, role: &str) {
    admin.close().await.expect("it closes");
    assert!(database.lets(&format!("DROP ROLE {role}")).await);
}

/// What was settled long ago is not read again, however much of it there is.
#[tokio::test]
async fn charging_reads_no_record_that_is_settled() {
    let database = metered(5, 50).await;
    database
        // tidy: a forbidden write, on purpose
        .tamper(&["INSERT INTO usage_records (id, status, allocation_id, started_at, ended_at, charged_until, settled_at, account_id, sku, gpus)
             SELECT gen_random_uuid(), 'closed', gen_random_uuid(), at, at + interval '1 hour', at + interval '1 hour', at + interval '2 hours',
                    md5('account ' || 1 + n % 5)::uuid, 'h100.slice', 1
               FROM generate_series(1, 50000) AS n, (SELECT clock_timestamp() - interval '40 days' AS at) AS long_ago"])
        .await;
    for statement in ["ANALYZE usage_records, accounts", "SELECT pg_stat_reset()"] {
        assert!(database.lets(statement).await);
    }
    for minutes in [1, 2, 3] {
        let charged = charging::charge(&database.store, after(minutes)).await.expect("charged");
        assert_eq!(charged.windows, 50);
    }
    // A connection hands its counts in when it ends at the latest.
    database.store.close().await;
    let read = database
        .number("SELECT (seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname = 'usage_records'")
        .await;
    assert!(read < 5_000, "{read} rows were read for 150 windows");
    let windows = database
        .number("SELECT sum(coalesce(seq_tup_read, 0))::bigint FROM pg_stat_user_tables WHERE relname LIKE 'usage_windows%'")
        .await;
    assert_eq!(windows, 0, "what was charged is never read to charge");
    database.remove().await;
}
