//! What does not agree: the database with what nodes report, or with what is charged for.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

codes! {
    /// What sort of disagreement.
    pub enum FindingKind {
        UnknownAllocation = "unknown_allocation",
        GuestOfEnded = "guest_of_ended",
        GuestWithoutClaim = "guest_without_claim",
        LeaseWithoutClaim = "lease_without_claim",
        ClaimWithoutGuest = "claim_without_guest",
        SlotOfAnother = "slot_of_another",
        UnknownSlot = "unknown_slot",
        GpusDiffer = "gpus_differ",
        TaskOver = "task_over",
        UsageOfNobody = "usage_of_nobody",
        UsageMissing = "usage_missing",
    }
}

/// [`FindingKind`], as it travels.
pub type FindingKindWord = Coded<FindingKind>;

codes! {
    /// Who sees to it.
    pub enum FindingOwner {
        Operator = "operator",
        NodeAgent = "node_agent",
        Billing = "billing",
    }
}

/// [`FindingOwner`], as it travels.
pub type FindingOwnerWord = Coded<FindingOwner>;

/// Something that does not agree. It is written down and shown; nothing is mended silently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Its identity.
    pub id: Uuid,
    /// What sort.
    pub kind: FindingKindWord,
    /// What does not agree, in a sentence.
    pub detail: String,
    /// Who sees to it.
    pub owner: FindingOwnerWord,
    /// What they do.
    pub advice: String,
    /// The node it is about.
    pub node_id: Option<Uuid>,
    /// The node, by name.
    pub node: Option<String>,
    /// The allocation it is about.
    pub allocation_id: Option<Uuid>,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
    /// When it was last seen.
    pub last_seen_at: Timestamp,
    /// For how long it has been, or was, so.
    pub age_seconds: i64,
    /// When it was seen no more.
    pub closed_at: Option<Timestamp>,
}

/// `POST /admin/findings/look`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Look {
    /// Whether everything agrees.
    pub clean: bool,
    /// How many disagreements are open.
    pub open: i64,
}
