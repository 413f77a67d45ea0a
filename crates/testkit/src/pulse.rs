//! The heartbeats of scripted nodes: what they say they have is what the test says.

use control::node::heartbeat;
use control::{Ctx, Error, catalogue};
use domain::ids::NodeId;
use uuid::Uuid;
use wire::node::{Gpu, Guest, Heartbeat, HeartbeatAnswer, Lease, PROTOCOL};

use crate::{House, ScriptedNode, new_id};

/// What a node says it has.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// How many GPUs.
    pub gpus: i16,
    /// What runs: the allocation, and its slots.
    pub guests: Vec<(Uuid, Vec<i16>)>,
    /// What it has in its books: the allocation, and its slots.
    pub leases: Vec<(Uuid, Vec<i16>)>,
    /// The tasks it is at.
    pub running: Vec<Uuid>,
}

impl ScriptedNode {
    /// Says that it is alive, and what it has.
    ///
    /// # Errors
    /// What the gateway answers.
    pub async fn beat(&self, ctx: &Ctx, has: &Inventory) -> Result<HeartbeatAnswer, Error> {
        let gpu = |index| Gpu { index, model: "H100".to_owned(), numa: 0 };
        let guest = |(allocation_id, slots): (Uuid, Vec<i16>)| Guest { allocation_id, slots };
        let lease = |(allocation_id, slots): (Uuid, Vec<i16>)| Lease {
            allocation_id,
            operation_id: new_id(),
            slots,
        };
        let images = catalogue::demonstration().images.into_iter().map(|image| image.code);
        let said = Heartbeat {
            protocol: PROTOCOL,
            agent_version: "0.0.0".to_owned(),
            boot_id: self.identity.agent_id,
            gpus: (0..has.gpus).map(gpu).collect(),
            images: images.collect(),
            guests: has.guests.iter().cloned().map(guest).collect(),
            leases: has.leases.iter().cloned().map(lease).collect(),
            running: has.running.clone(),
            refused: 0,
        };
        heartbeat::beat(ctx, &self.identity, &said).await
    }
}

impl House {
    /// Every node says that it is alive, and that it has what the database says it holds.
    pub async fn beat_all(&self) {
        for node in self.nodes() {
            let has = self.truth_of(node.identity.node_id).await;
            node.beat(&self.ctx, &has).await.expect("heard");
        }
    }

    /// What a node would report on which everything is as the database says.
    pub async fn truth_of(&self, node: NodeId) -> Inventory {
        let gpus: i64 = sqlx::query_scalar("SELECT count(*) FROM slots WHERE node_id = $1")
            .bind(node.uuid())
            .fetch_one(&self.database.sql)
            .await
            .expect("slots");
        let held: Vec<(Uuid, Vec<i16>)> = sqlx::query_as(
            "SELECT claims.allocation_id,
                    coalesce(array_agg(slots.slot_index ORDER BY slots.slot_index) FILTER (WHERE slots.id IS NOT NULL), '{}')
               FROM claims
               LEFT JOIN slots ON slots.id = claims.slot_id
              WHERE claims.node_id = $1 AND claims.status = 'held'
              GROUP BY claims.allocation_id",
        )
        .bind(node.uuid())
        .fetch_all(&self.database.sql)
        .await
        .expect("claims");
        Inventory {
            gpus: i16::try_from(gpus).expect("a few"),
            guests: held.clone(),
            leases: held,
            running: Vec::new(),
        }
    }
}
