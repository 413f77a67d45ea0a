//! Claims that wait for an operator.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::admin::ClaimStatus;
use super::allocations::AllocationStatus;

/// A slot or a whole node that an allocation holds, and that nobody else gets until somebody has seen to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Claim {
    /// Its identity.
    pub id: Uuid,
    /// How it stands.
    pub status: ClaimStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// Why it is stuck or set aside.
    pub reason: Option<String>,
    /// The allocation.
    pub allocation_id: Uuid,
    /// How that stands.
    pub allocation_status: AllocationStatus,
    /// The node.
    pub node_id: Uuid,
    /// The node, by name.
    pub node: String,
    /// The number of the slot; none for the whole node.
    pub slot: Option<i16>,
    /// What an operator does about it.
    pub advice: String,
    /// The commands that do it, the first to be tried first.
    #[serde(default)]
    pub commands: Vec<String>,
}
