//! What comes again: messages, results; and how to see that nothing came of it.

use std::collections::BTreeMap;

use domain::ids::NodeTaskId;
use lifecycle::Code as _;
use sqlx::AssertSqlSafe;
use sqlx::types::Json;
use wire::bus::{Message, Subject};
use wire::node::TaskResult;

use crate::House;

/// How messages travelled, and what was refused: both grow with every delivery, and nothing follows from them.
const BOOKKEEPING: &[&str] =
    &["bus_deliveries", "charging_reached", "consumed_events", "lifecycle_refusals"];

impl House {
    /// Everything that was ever published, in its order.
    pub async fn outbox(&self) -> Vec<Message> {
        self.outbox_of(None).await
    }

    /// What was published about one row, or all.
    pub async fn outbox_of(&self, row: Option<uuid::Uuid>) -> Vec<Message> {
        let rows: Vec<(Json<Message>,)> = sqlx::query_as(
            "SELECT jsonb_build_object('id', id, 'subject', subject, 'fact', payload)
               FROM outbox_events
              WHERE $1::uuid IS NULL OR entity_id = $1
              ORDER BY position",
        )
        .bind(row)
        .fetch_all(&self.database.sql)
        .await
        .expect("messages");
        rows.into_iter().map(|(Json(message),)| message).collect()
    }

    /// A message goes to everybody who hears it, whatever came before it.
    pub async fn deliver(&self, message: &Message) {
        for subscription in &self.spine.subscriptions {
            if subscription.subjects.contains(&message.subject.0) {
                (subscription.handle)(message.clone()).await.expect("handled");
            }
        }
    }

    /// Everything that was ever published comes again, each so often.
    pub async fn replay(&self, times: usize) {
        for message in self.outbox().await {
            for _ in 0..times {
                self.deliver(&message).await;
            }
        }
    }

    /// Every result that a node has told, it tells again, so often.
    pub async fn repeat_results(&self, times: usize) {
        let told: Vec<(uuid::Uuid, i64, Json<serde_json::Value>)> = sqlx::query_as(
            "SELECT id, dispatch, result FROM node_tasks WHERE result IS NOT NULL ORDER BY id",
        )
        .fetch_all(&self.database.sql)
        .await
        .expect("results");
        for (id, dispatch, Json(outcome)) in told {
            let outcome = serde_json::from_value(outcome).expect("an outcome");
            let result = TaskResult { dispatch, outcome, phases: Vec::new() };
            for _ in 0..times {
                let identity = &self.first_node().identity;
                let heard =
                    control::node::task::finish(&self.ctx, identity, NodeTaskId(id), &result).await;
                assert!(!heard.expect("heard").applied, "a result counts once");
            }
        }
    }

    /// A sum of every column of every table, but for the book-keeping of deliveries.
    pub async fn digest(&self) -> BTreeMap<String, String> {
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT relname::text FROM pg_class
          WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
          ORDER BY relname",
        )
        .fetch_all(&self.database.sql)
        .await
        .expect("tables");
        let mut digest = BTreeMap::new();
        for table in tables.into_iter().filter(|table| !BOOKKEEPING.contains(&table.as_str())) {
            // Names of our own schema, not input.
            let sum = format!(
                "SELECT coalesce(md5(string_agg(md5(t::text), '' ORDER BY t::text)), '') FROM {table} AS t"
            );
            let sum = sqlx::query_scalar(AssertSqlSafe(sum)).fetch_one(&self.database.sql).await;
            digest.insert(table, sum.expect("a sum"));
        }
        digest
    }

    /// Messages of this subject that are on their way are lost for good.
    pub async fn withhold(&self, subject: Subject) {
        spine::relay::step(&self.spine.store, &self.spine.subscriptions).await.expect("relayed");
        sqlx::query("DELETE FROM bus_deliveries WHERE message ->> 'subject' = $1")
            .bind(subject.code())
            .execute(&self.database.sql)
            .await
            .expect("lost");
    }

    /// What became of an allocation, without identities and times: its steps, its claims', its tasks and what was published.
    pub async fn account_of(&self, id: uuid::Uuid) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT told FROM (
                SELECT 1 AS part, seq AS place, event || ' → ' || to_status AS told
                  FROM lifecycle_log WHERE entity_id = $1
                 UNION ALL
                SELECT 2, seq, 'claim ' || event || ' → ' || to_status
                  FROM lifecycle_log WHERE entity_id IN (SELECT id FROM claims WHERE allocation_id = $1)
                 UNION ALL
                SELECT 3, 0, kind || ' ' || status FROM node_tasks WHERE allocation_id = $1
                 UNION ALL
                SELECT 4, seq, subject FROM outbox_events WHERE entity_id = $1
             ) AS account ORDER BY part, place, told",
        )
        .bind(id)
        .fetch_all(&self.database.sql)
        .await
        .expect("an account")
    }
}
