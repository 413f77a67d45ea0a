//! What tests of those who come together look at: who shared a transaction, what there is of each, and who stands in the way.

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::House;

/// A record that somebody who charges has in hand, until dropped.
#[derive(Debug)]
pub struct Charging(Transaction<'static, Postgres>);

impl Charging {
    /// It is charged.
    pub async fn done(self) {
        self.0.rollback().await.expect("it is free again");
    }
}

impl House {
    /// By how many transactions these allocations were moved last.
    pub async fn moved_by(&self, ids: &[Uuid]) -> i64 {
        sqlx::query_scalar("SELECT count(DISTINCT xmin::text) FROM allocations WHERE id = ANY ($1)")
            .bind(ids)
            .fetch_one(&self.database.sql)
            .await
            .expect("it counts")
    }

    /// What there is of an allocation that was given back: records of it, runs, entries, and stretches that ended with it.
    pub async fn given_back(&self, id: Uuid) -> [i64; 4] {
        let queries = [
            "SELECT count(*) FROM lifecycle_log WHERE entity_id = $1 AND event = 'release.requested'",
            "SELECT count(*) FROM workflow_runs WHERE entity_id = $1 AND workflow = 'release'",
            "SELECT count(*) FROM audit_entries WHERE target = $1::text AND action = 'allocation.release' AND outcome = 'done'",
            "SELECT count(*)
               FROM usage_records AS record
               JOIN allocations AS allocation ON allocation.id = record.allocation_id
              WHERE allocation.id = $1 AND record.status = 'closed' AND record.ended_at = allocation.release_requested_at",
        ];
        let mut counts = [0; 4];
        for (count, query) in counts.iter_mut().zip(queries) {
            let one = sqlx::query_scalar(query).bind(id);
            *count = one.fetch_one(&self.database.sql).await.expect("it counts");
        }
        counts
    }

    /// Locks the open record of an allocation, as whoever charges it does.
    #[expect(clippy::disallowed_methods, reason = "a test says how long it stands in the way")]
    pub async fn charging(&self, id: Uuid) -> Charging {
        let mut charging = self.database.sql.begin().await.expect("a transaction");
        let locked = sqlx::query(
            "SELECT 1 FROM usage_records WHERE allocation_id = $1 AND status = 'open' FOR UPDATE",
        );
        let locked = locked.bind(id).fetch_all(&mut *charging).await.expect("it is locked");
        assert_eq!(locked.len(), 1, "it is charged for");
        Charging(charging)
    }
}
