//! What tests look up behind the product's back, and what they take away from it.

use uuid::Uuid;

use super::House;
use crate::new_id;

/// One step of an allocation, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Step {
    /// Its number.
    pub seq: i64,
    /// What happened.
    pub event: String,
    /// The status before; none for a birth.
    pub from_status: Option<String>,
    /// The status after.
    pub to_status: String,
    /// In which role it was reported.
    pub source: String,
    /// By whom.
    pub actor: String,
    /// When, in microseconds since 1970.
    pub micros: i64,
}

/// One task of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Ordered {
    /// What was to be done.
    pub kind: String,
    /// What became of it.
    pub status: String,
    /// The number of the allocation's step at which it was queued.
    pub fence: i64,
    /// How often it was handed out.
    pub dispatch: i64,
}

/// Everything of an allocation that a restart must leave alone.
const KEPT: &str = "
    SELECT (to_jsonb(kept) - ARRAY['status', 'status_at', 'seq', 'operation_id', 'reason'])::text
      FROM allocations AS kept WHERE id = $1
     UNION ALL
    SELECT to_jsonb(kept)::text FROM claims AS kept WHERE allocation_id = $1
     UNION ALL
    SELECT to_jsonb(kept)::text FROM app_instances AS kept WHERE allocation_id = $1
     UNION ALL
    SELECT to_jsonb(kept)::text FROM app_instance_members AS kept WHERE allocation_id = $1
     UNION ALL
    SELECT to_jsonb(kept)::text FROM storage_attachments AS kept WHERE allocation_id = $1
     UNION ALL
    SELECT to_jsonb(kept)::text FROM ssh_keys AS kept
     ORDER BY 1";

impl House {
    /// The private keys of the installation, in hexadecimal.
    pub async fn private_keys(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT encode(private, 'hex') FROM installation_keys ORDER BY name")
            .fetch_all(&self.database.sql)
            .await
            .expect("keys")
    }

    /// The columns in which a text appears, whatever their type.
    pub async fn columns_with(&self, text: String) -> Vec<String> {
        let columns: Vec<(String, String)> = sqlx::query_as(
            "SELECT table_name::text, column_name::text
               FROM information_schema.columns
              WHERE table_schema = 'public'
              ORDER BY table_name, column_name",
        )
        .fetch_all(&self.database.sql)
        .await
        .expect("columns");
        let mut found = Vec::new();
        for (table, column) in columns {
            // Names of our own schema, not input.
            let query =
                format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE {column}::text LIKE $1)");
            let there: bool = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
                .bind(format!("%{text}%"))
                .fetch_one(&self.database.sql)
                .await
                .expect("an answer");
            if there {
                found.push(format!("{table}.{column}"));
            }
        }
        found
    }

    /// The rows that a restart of an allocation must leave as they are.
    pub async fn kept(&self, id: Uuid) -> Vec<String> {
        sqlx::query_scalar(KEPT).bind(id).fetch_all(&self.database.sql).await.expect("rows")
    }

    /// An application that runs on an allocation.
    pub async fn furnish(&self, id: Uuid) {
        let app = new_id();
        sqlx::query(
            "INSERT INTO app_instances (id, project_id, owner_id, name, app, allocation_id)
             VALUES ($1, $2, $3, 'notebook', 'jupyter', $4)",
        )
        .bind(app)
        .bind(self.project)
        .bind(self.tenant.user_id)
        .bind(id)
        .execute(&self.database.sql)
        .await
        .expect("an application");
        sqlx::query(
            "INSERT INTO app_instance_members (app_instance_id, allocation_id, role)
             VALUES ($1, $2, 'main')",
        )
        .bind(app)
        .bind(id)
        .execute(&self.database.sql)
        .await
        .expect("a role");
    }

    /// The steps that an allocation took, in order.
    pub async fn steps(&self, id: Uuid) -> Vec<Step> {
        sqlx::query_as(
            "SELECT seq, event, from_status, to_status, source, actor,
                    (extract(epoch FROM occurred_at) * 1000000)::bigint AS micros
               FROM lifecycle_log
              WHERE entity_id = $1 AND machine = 'allocation'
              ORDER BY seq",
        )
        .bind(id)
        .fetch_all(&self.database.sql)
        .await
        .expect("a log")
    }

    /// The tasks of an allocation, in the order in which they were queued.
    pub async fn tasks(&self, id: Uuid) -> Vec<Ordered> {
        sqlx::query_as(
            "SELECT kind, status, fence, dispatch
               FROM node_tasks
              WHERE allocation_id = $1
              ORDER BY fence, status_at",
        )
        .bind(id)
        .fetch_all(&self.database.sql)
        .await
        .expect("tasks")
    }

    /// The present operation of an allocation.
    pub async fn operation(&self, id: Uuid) -> Uuid {
        sqlx::query_scalar("SELECT operation_id FROM allocations WHERE id = $1")
            .bind(id)
            .fetch_one(&self.database.sql)
            .await
            .expect("an operation")
    }

    /// The boots that the nodes were last heard of in.
    pub async fn boots(&self) -> Vec<Option<Uuid>> {
        sqlx::query_scalar("SELECT boot_id FROM nodes ORDER BY id")
            .fetch_all(&self.database.sql)
            .await
            .expect("nodes")
    }

    /// How the deeds of this sort came out, in order.
    pub async fn deeds(&self, action: &str) -> Vec<String> {
        sqlx::query_scalar("SELECT outcome FROM audit_entries WHERE action = $1 ORDER BY at")
            .bind(action)
            .fetch_all(&self.database.sql)
            .await
            .expect("entries")
    }

    /// The messages that were not published yet are lost.
    pub async fn lose_messages(&self) {
        sqlx::query("DELETE FROM outbox_events WHERE published_at IS NULL")
            .execute(&self.database.sql)
            .await
            .expect("they are gone");
    }

    /// The runs that are not over are lost.
    pub async fn lose_runs(&self) {
        sqlx::query("DELETE FROM workflow_runs WHERE done_at IS NULL")
            .execute(&self.database.sql)
            .await
            .expect("they are gone");
    }

    /// How many runs about a row are not over.
    pub async fn open_runs(&self, id: Uuid) -> i64 {
        sqlx::query_scalar(
            "SELECT count(*) FROM workflow_runs WHERE entity_id = $1 AND done_at IS NULL",
        )
        .bind(id)
        .fetch_one(&self.database.sql)
        .await
        .expect("a count")
    }

    /// Every allocation has ended, nothing of it is held, and nobody is at it any more.
    pub async fn all_came_to_an_end(&self) {
        let left: Vec<String> = sqlx::query_scalar(
            "SELECT 'allocation ' || id || ' is ' || status
               FROM allocations WHERE status NOT IN ('released', 'failed')
              UNION ALL
             SELECT 'claim ' || id || ' is ' || status FROM claims WHERE status <> 'freed'
              UNION ALL
             SELECT 'task ' || id || ' is ' || status
               FROM node_tasks WHERE status IN ('queued', 'dispatched')
              UNION ALL
             SELECT 'run ' || id || ' goes on' FROM workflow_runs WHERE done_at IS NULL",
        )
        .fetch_all(&self.database.sql)
        .await
        .expect("rows");
        assert!(left.is_empty(), "{left:?}");
    }

    /// What time it is in the database, in microseconds since 1970.
    pub async fn database_micros(&self) -> i64 {
        sqlx::query_scalar("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
            .fetch_one(&self.database.sql)
            .await
            .expect("a moment")
    }

    /// How many connections wait for what another one has locked.
    pub async fn waiting_for_locks(&self) -> i64 {
        sqlx::query_scalar(
            "SELECT count(*)
               FROM pg_stat_activity
              WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&self.database.sql)
        .await
        .expect("a look at all connections")
    }

    /// For how long each transaction of the product that is open now has been open, in seconds. One that is being committed
    /// waits for the disc, and for nobody here.
    pub async fn open_transactions(&self) -> Vec<f64> {
        sqlx::query_scalar(
            "SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8
               FROM pg_stat_activity
              WHERE datname = current_database()
                AND application_name = 'berth'
                AND xact_start IS NOT NULL
                AND NOT (state = 'active' AND query ILIKE 'commit%')",
        )
        .fetch_all(&self.database.sql)
        .await
        .expect("a look at all connections")
    }
}
