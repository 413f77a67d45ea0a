//! Signs of life: what a node says of itself, and what it is told.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// One GPU of the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its number, which is the slot's.
    pub index: i16,
    /// Its model.
    pub model: String,
    /// The NUMA node it belongs to.
    pub numa: i16,
}

/// Something that runs on a node for an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// For which allocation.
    pub allocation_id: Uuid,
    /// On which slots; empty for the whole machine.
    pub slots: Vec<i16>,
}

/// Something that an allocation has on a node, by the agent's own books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// Which allocation.
    pub allocation_id: Uuid,
    /// By which of its operations.
    pub operation_id: Uuid,
    /// On which slots; empty for the whole machine.
    pub slots: Vec<i16>,
}

impl From<&Lease> for Guest {
    fn from(lease: &Lease) -> Guest {
        Guest { allocation_id: lease.allocation_id, slots: lease.slots.clone() }
    }
}

/// `POST /agent/v1/heartbeat`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The version of the protocol.
    pub protocol: u16,
    /// The agent's version.
    pub agent_version: String,
    /// New with every boot of the machine.
    pub boot_id: Uuid,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The images at hand, by name.
    pub images: Vec<String>,
    /// What runs on the node for allocations, finished or not.
    pub guests: Vec<Guest>,
    /// What allocations have on the node, by the agent's books.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// The tasks the agent is working on.
    pub running: Vec<Uuid>,
    /// How many tasks it has refused since it was started.
    pub refused: u64,
}

/// The gateway's answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// After how many seconds the next one is expected.
    pub next_seconds: u32,
    /// Whether the agent should renew its certificate now.
    pub renew: bool,
    /// The node's status.
    pub status: String,
    /// Of the allocations that the heartbeat named, those that are over: they have nothing on the node any more, and no work
    /// for them will ever come. What is left of them in the agent's books is dead.
    #[serde(default)]
    pub over: Vec<Uuid>,
}
