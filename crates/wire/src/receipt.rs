//! The release receipt: what was stopped, wiped and returned, when, and the last billed second. Signed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::node::CleanupProof;

/// What the receipt says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// The version of this shape.
    pub version: u16,
    /// The allocation that was released.
    pub allocation_id: Uuid,
    /// Whose it was.
    pub project_id: Uuid,
    /// What it was sold as.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
    /// The region it stood in.
    pub region: String,
    /// The slots that were given back; empty for a whole machine.
    pub slots: Vec<i16>,
    /// The operation that cleaned up.
    pub operation_id: Uuid,
    /// When it became usable; none if it never did.
    pub active_at: Option<Timestamp>,
    /// The last billed second: billing stopped when release was asked for.
    pub billed_until: Option<Timestamp>,
    /// When the clean-up was proven.
    pub released_at: Timestamp,
    /// The node's proof; none when nothing was ever handed to a node.
    pub proof: Option<CleanupProof>,
}

/// A receipt with its signature over the exact text of `document`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedReceipt {
    /// What it says.
    pub receipt: Receipt,
    /// The exact text that was signed.
    pub document: String,
    /// The signature, in URL-safe base64.
    pub signature: String,
    /// The public key that verifies it, in URL-safe base64.
    pub public_key: String,
}
