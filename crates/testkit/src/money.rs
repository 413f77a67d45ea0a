//! Money in tests: time that has passed for the database, accounts with something in them, and what the ledger says.

use control::billing::charge;
use domain::ids::AccountId;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::{Database, House};

/// Tables whose keys are moments: their rows can't be moved one by one without meeting each other.
const KEYED_BY_TIME: [&str; 2] = ["usage_windows", "usage_credits"];

impl Database {
    /// Makes everything in it as if it had happened so many minutes earlier, and the meter with it.
    ///
    /// # Panics
    /// When the database refuses.
    pub async fn age(&self, minutes: u32) {
        let columns = sqlx::query(
            "SELECT columns.table_name::text, columns.column_name::text
               FROM information_schema.columns AS columns
               JOIN information_schema.tables AS tables USING (table_schema, table_name)
               JOIN pg_class ON pg_class.oid = format('%I', table_name)::regclass AND NOT relispartition
              WHERE columns.table_schema = 'public' AND tables.table_type = 'BASE TABLE'
                AND columns.data_type = 'timestamp with time zone' AND columns.table_name <> '_sqlx_migrations'",
        );
        let columns = columns.fetch_all(&self.sql).await.expect("columns");
        let mut sql = self.sql.acquire().await.expect("it connects");
        let mut statements = vec!["SET session_replication_role = replica".to_owned()];
        for table in KEYED_BY_TIME {
            statements.push(format!("CREATE TEMP TABLE aged_{table} AS SELECT * FROM {table}"));
            statements.push(format!("DELETE FROM {table}"));
            statements.push(format!(
                "UPDATE aged_{table} SET window_at = window_at - interval '{minutes} minutes'"
            ));
            statements.push(format!("INSERT INTO {table} SELECT * FROM aged_{table}"));
            statements.push(format!("DROP TABLE aged_{table}"));
        }
        for row in columns {
            let (table, column): (String, String) = (row.get(0), row.get(1));
            if !(KEYED_BY_TIME.contains(&table.as_str()) && column == "window_at") {
                statements.push(format!(
                    "UPDATE {table} SET {column} = {column} - interval '{minutes} minutes' WHERE {column} IS NOT NULL"
                ));
            }
        }
        statements.push("SET session_replication_role = origin".to_owned());
        for statement in statements {
            // Names of our own schema.
            let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut *sql).await;
            done.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    }

    /// So many tenants, each with an account that has `cents`, a project, and an allocation that is active since just now and
    /// costs a cent a second. Everything that the product would have written is there.
    ///
    /// # Panics
    /// When the database refuses.
    pub async fn furnish_tenants(&self, tenants: u32, cents: i64) {
        let crowd = format!("FROM generate_series(1, {tenants}) AS n");
        let log = "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, operation_id, source, actor, occurred_at)";
        self.tamper(&[
            format!("INSERT INTO accounts (id, balance_minor) SELECT md5('crowd account ' || n)::uuid, {cents} {crowd}"),
            format!("{log} SELECT 'balance', md5('crowd account ' || n)::uuid, 1, gen_random_uuid(), 'born', NULL, 'healthy', NULL, 'worker', 'test', clock_timestamp() {crowd}"),
            format!("INSERT INTO ledger_postings (id, key, kind, account_id, currency, actor)
                     SELECT md5('crowd posting ' || n)::uuid, 'crowd/' || n, 'adjustment', md5('crowd account ' || n)::uuid, 'USD', 'test' {crowd}"),
            format!("INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor, balance_after_minor)
                     SELECT md5('crowd posting ' || n)::uuid, 'tenant', md5('crowd account ' || n)::uuid, {cents}, {cents} {crowd}
                     UNION ALL SELECT md5('crowd posting ' || n)::uuid, 'adjustments', NULL, -{cents}, NULL {crowd}"),
            format!("INSERT INTO projects (id, name, account_id) SELECT md5('crowd project ' || n)::uuid, 'crowd ' || n, md5('crowd account ' || n)::uuid {crowd}"),
            format!("INSERT INTO allocations (id, project_id, operation_id, sku, gpus, status, seq, active_at, price_micros_per_gpu_second, currency, region)
                     SELECT md5('crowd allocation ' || n)::uuid, md5('crowd project ' || n)::uuid, md5('crowd operation ' || n)::uuid, 'h100.slice', 1,
                            'active', 3, clock_timestamp(), 10000, 'USD', 'eu-1' {crowd}"),
            format!("{log} SELECT 'allocation', md5('crowd allocation ' || n)::uuid, step, gen_random_uuid(), said, was, became,
                            md5('crowd operation ' || n)::uuid, 'worker', 'test', clock_timestamp()
                       FROM generate_series(1, {tenants}) AS n, (VALUES (1, 'born', NULL, 'requested'), (2, 'provision.started', 'requested', 'provisioning'),
                            (3, 'provision.succeeded', 'provisioning', 'active')) AS steps (step, said, was, became)"),
            format!("INSERT INTO usage_records (id, allocation_id, started_at, charged_until, opened_seq, account_id, project_id, sku, gpus, price_micros_per_gpu_second)
                     SELECT md5('crowd record ' || n)::uuid, allocation.id, active_at, active_at, 3, md5('crowd account ' || n)::uuid, project_id, sku, gpus,
                            price_micros_per_gpu_second
                       FROM generate_series(1, {tenants}) AS n JOIN allocations AS allocation ON allocation.id = md5('crowd allocation ' || n)::uuid"),
            format!("{log} SELECT 'usage_record', md5('crowd record ' || n)::uuid, 1, gen_random_uuid(), 'born', NULL, 'open', NULL, 'worker', 'test', clock_timestamp() {crowd}"),
        ])
        .await;
    }

    /// What an account has.
    pub async fn balance_of(&self, account: AccountId) -> i64 {
        sqlx::query_scalar("SELECT balance_minor FROM accounts WHERE id = $1")
            .bind(account.uuid())
            .fetch_one(&self.sql)
            .await
            .expect("there is one")
    }
}

impl House {
    /// The account that pays for the tenant's project.
    pub async fn account(&self) -> AccountId {
        let id = sqlx::query_scalar("SELECT account_id FROM projects WHERE id = $1")
            .bind(self.project)
            .fetch_one(&self.database.sql)
            .await;
        AccountId(id.expect("somebody pays"))
    }

    /// What the tenant has.
    pub async fn balance(&self) -> i64 {
        self.database.balance_of(self.account().await).await
    }

    /// Lets minutes pass, in which every machine was heard of, and charges them.
    pub async fn charge_after(&self, minutes: u32) {
        self.database.age(minutes).await;
        for node in self.nodes() {
            self.beat(node).await;
        }
        charge::sweep(&self.ctx).await.expect("it is charged");
    }

    /// The tenant's ledger since the gift to begin with, oldest first: what each line is about, and how much.
    pub async fn lines(&self) -> Vec<(String, i64)> {
        sqlx::query_as(
            "SELECT posting.kind, entry.amount_minor
               FROM ledger_entries AS entry
               JOIN ledger_postings AS posting ON posting.id = entry.posting_id
              WHERE entry.account_id = $1 AND posting.key NOT LIKE 'welcome/%'
              ORDER BY entry.number",
        )
        .bind(self.account().await.uuid())
        .fetch_all(&self.database.sql)
        .await
        .expect("lines")
    }

    /// How many microseconds of an allocation were charged and not given back, and for how much.
    pub async fn charged(&self, allocation: Uuid) -> (i64, i64) {
        sqlx::query_as(
            "SELECT coalesce(sum(charged.micros), 0)::bigint,
                    coalesce(sum(charged.amount_minor), 0)::bigint
               FROM usage_records AS record
               JOIN usage_windows AS charged ON charged.usage_record_id = record.id
              WHERE record.allocation_id = $1
                AND NOT EXISTS (
                    SELECT 1
                      FROM usage_credits AS given
                     WHERE given.usage_record_id = record.id AND given.window_at = charged.window_at)",
        )
        .bind(allocation)
        .fetch_one(&self.database.sql)
        .await
        .expect("a sum")
    }

    /// For how many microseconds an allocation was the tenant's.
    pub async fn lasted(&self, allocation: Uuid) -> i64 {
        let query = format!(
            "SELECT micros_between(active_at, release_requested_at) FROM allocations WHERE id = '{allocation}'"
        );
        self.database.number(&query).await
    }

    /// For how many microseconds an allocation was metered, over its only record.
    pub async fn metered(&self, allocation: Uuid) -> i64 {
        let query = format!(
            "SELECT micros_between(started_at, coalesce(ended_at, charged_until)) FROM usage_records WHERE allocation_id = '{allocation}'"
        );
        self.database.number(&query).await
    }

    /// What is owed for the only allocation whose price was changed once, by arithmetic of its own.
    pub async fn owed_after_a_change(&self, gpus: i64, (before, after): (i64, i64)) -> i64 {
        let query = format!(
            "SELECT (micros_between(record.started_at, changed.from_at) * {gpus} * {before}
                     + micros_between(changed.from_at, record.charged_until) * {gpus} * {after}) / 10000000000
               FROM usage_records AS record JOIN allocation_prices AS changed USING (allocation_id)"
        );
        self.database.number(&query).await
    }

    /// How many nodes are not heard of at present.
    pub async fn outages(&self) -> i64 {
        self.database.number("SELECT count(*) FROM node_outages WHERE until_at IS NULL").await
    }

    /// A clock was set back by five minutes before an allocation was given back.
    pub async fn set_clock_back_before_the_release_of(&self, allocation: Uuid) {
        let back = |column: &str, table: &str, which: &str| {
            format!("UPDATE {table} SET {column} = {column} - interval '5 minutes' WHERE {which}")
        };
        self.database
            .tamper(&[
                back("ended_at", "usage_records", &format!("allocation_id = '{allocation}'")),
                back("release_requested_at", "allocations", &format!("id = '{allocation}'")),
                back(
                    "occurred_at",
                    "lifecycle_log",
                    &format!("entity_id = '{allocation}' AND to_status = 'releasing'"),
                ),
            ])
            .await;
    }

    /// Nobody enforces balances here, and the checker knows it.
    pub async fn enforce_nothing(&self) {
        let off = "INSERT INTO policies (key, value) VALUES ('billing.enforced', 0)";
        assert!(self.database.lets(off).await);
    }

    /// How often an allocation was taken back because nobody paid, and how often from who could pay by then.
    pub async fn taken_back(&self, allocation: Uuid) -> (u64, i64) {
        let taken = format!(
            "SELECT count(*) FROM lifecycle_log WHERE entity_id = '{allocation}' AND reason = 'balance_depleted'"
        );
        let wrongly = format!(
            "SELECT count(*)
               FROM lifecycle_log AS released
              WHERE released.entity_id = '{allocation}' AND released.reason = 'balance_depleted'
                AND 'depleted' <> (
                    SELECT said.to_status
                      FROM lifecycle_log AS said
                     WHERE said.entity_id = '{}' AND said.machine = 'balance' AND said.occurred_at < released.occurred_at
                     ORDER BY said.seq DESC
                     LIMIT 1)",
            self.account().await
        );
        (self.database.number(&taken).await.unsigned_abs(), self.database.number(&wrongly).await)
    }

    /// What became of the tenants of [`Database::furnish_tenants`]: how many have crossed by a charge, how many lost what they have, how
    /// many messages were written of that.
    pub async fn crowd(&self) -> [i64; 3] {
        let of_crowd = "entity_id IN (SELECT account_id FROM projects WHERE name LIKE 'crowd %')";
        let crossed = format!(
            "SELECT count(*) FROM lifecycle_log WHERE event = 'balance.depleted' AND cause = 'charged' AND {of_crowd}"
        );
        let taken = "SELECT count(*) FROM lifecycle_log WHERE machine = 'allocation' AND reason = 'balance_depleted'";
        let told = format!(
            "SELECT count(*) FROM outbox_events WHERE subject = 'billing.balance.depleted' AND {of_crowd}"
        );
        [
            self.database.number(&crossed).await,
            self.database.number(taken).await,
            self.database.number(&told).await,
        ]
    }

    /// How many accounts are healthy.
    pub async fn healthy_accounts(&self) -> i64 {
        self.database.number("SELECT count(*) FROM accounts WHERE status = 'healthy'").await
    }

    /// Somebody closes the record of an active allocation by hand.
    pub async fn close_record(&self, allocation: Uuid) {
        let closed = format!(
            "UPDATE usage_records SET status = 'closed', ended_at = started_at WHERE allocation_id = '{allocation}'"
        );
        self.database.tamper(&[closed]).await;
    }

    /// Somebody opens the record of an allocation again that is nobody's.
    pub async fn open_record(&self, allocation: Uuid) {
        let open = format!(
            "UPDATE usage_records SET status = 'open', ended_at = NULL WHERE allocation_id = '{allocation}'"
        );
        self.database.tamper(&[open]).await;
    }

    /// Every idempotency key is forgotten, as after a day.
    pub async fn forget_keys(&self) {
        assert!(self.database.lets("DELETE FROM idempotency_keys").await);
    }
}
