//! What operators see and say: nodes, dead letters, invariants.

use domain::machines::{claim, node};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

/// A claim's status, as it travels.
pub type ClaimStatus = Coded<claim::Status>;
/// A node's status, as it travels.
pub type NodeStatus = Coded<node::Status>;

/// `POST /admin/nodes`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNode {
    /// What it is called, unique in the fleet.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// Where it stands.
    #[schema(max_length = 64)]
    pub region: String,
    /// What it is sold as.
    #[schema(max_length = 64)]
    pub sku: String,
    /// The NUMA node of each of its slots, in order; as many as it has GPUs.
    #[schema(min_items = 1, max_items = 64)]
    pub slots: Vec<i16>,
}

/// A node that waits for its agent, with the join token, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FreshNode {
    /// The node.
    pub node: Node,
    /// What the agent needs to enrol: `berth-agent --join …`. Single use.
    pub join_token: String,
    /// Until when it can be used.
    pub join_token_expires_at: Timestamp,
}

/// A slot of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Slot {
    /// Its identity.
    pub id: Uuid,
    /// Its number.
    pub index: i16,
    /// The NUMA node it belongs to.
    pub numa: i16,
    /// The claim on it, if it is not free.
    pub claim: Option<SlotClaim>,
}

/// Who has a slot, or a whole node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotClaim {
    /// The claim.
    pub id: Uuid,
    /// How it stands.
    pub status: ClaimStatus,
    /// The allocation.
    pub allocation_id: Uuid,
    /// Why it is stuck or set aside.
    pub reason: Option<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Where it stands.
    pub region: String,
    /// What it is sold as.
    pub sku: String,
    /// How it stands.
    pub status: NodeStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// Why, when there is more to say.
    pub reason: Option<String>,
    /// When it was last heard of.
    pub heartbeat_at: Option<Timestamp>,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// Until when its newest certificate is good.
    pub certificate_expires_at: Option<Timestamp>,
    /// How many slots are free.
    pub free_slots: i16,
    /// Its slots.
    pub slots: Vec<Slot>,
    /// The claim on the whole node.
    pub claim: Option<SlotClaim>,
}

/// A message that could not be handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// Its identity.
    pub event_id: Uuid,
    /// Who could not handle it.
    pub consumer: String,
    /// What it is about.
    pub subject: String,
    /// The row it is about.
    pub entity_id: Uuid,
    /// How often it was tried.
    pub attempts: i32,
    /// What went wrong the last time.
    pub reason: String,
    /// Since when it lies here.
    pub dead_at: Timestamp,
}

/// One invariant, and what breaks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invariant {
    /// Its name: `I01` …
    pub name: String,
    /// What must hold.
    pub holds: String,
    /// The rows that break it: none, if all is well. At most 20 are listed.
    pub violations: Vec<String>,
    /// How many there are.
    pub count: i64,
}

/// `GET /admin/invariants`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invariants {
    /// Whether every one holds.
    pub clean: bool,
    /// All of them.
    pub invariants: Vec<Invariant>,
}

/// A reason, for what operators do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Because {
    /// Why.
    #[schema(min_length = 1, max_length = 256)]
    pub reason: String,
}
