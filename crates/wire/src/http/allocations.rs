//! Allocations as tenants see them.

use domain::machines::allocation::Status;
use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::catalogue::ShapeWord;
use crate::Coded;
use crate::node::Access;

/// An allocation's status, as it travels.
pub type AllocationStatus = Coded<Status>;

codes! {
    /// What a caller may do with an allocation now.
    pub enum Action {
        Restart = "restart",
        Release = "release",
        ForceRelease = "force_release",
        Abandon = "abandon",
        Clean = "clean",
    }
}

/// [`Action`], as it travels.
pub type ActionWord = Coded<Action>;

/// `POST /allocations`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAllocation {
    /// For which project.
    pub project_id: Uuid,
    /// What.
    #[schema(max_length = 64)]
    pub sku: String,
    /// How many GPUs.
    #[schema(minimum = 1, maximum = 1024)]
    pub gpus: i16,
    /// Where.
    #[schema(max_length = 64)]
    pub region: String,
    /// Who may log in.
    #[schema(max_items = 16)]
    pub ssh_key_ids: Vec<Uuid>,
    /// Which image; the SKU's first when nobody says.
    #[schema(max_length = 64)]
    pub image: Option<String>,
    /// What it is called; made up when nobody says.
    #[schema(min_length = 1, max_length = 64)]
    pub name: Option<String>,
}

/// An allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Allocation {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who asked for it.
    pub owner_id: Option<Uuid>,
    /// The group it is a member of, if it is one.
    #[serde(default)]
    pub group_id: Option<Uuid>,
    /// Where it stands.
    pub status: AllocationStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// Why it is there, when there is more to say than the status does: a stable word.
    pub status_reason: Option<String>,
    /// The same as a sentence, with what happens to money and data.
    pub status_text: String,
    /// What it was sold as.
    pub sku: String,
    /// A whole machine, or GPUs of one.
    pub shape: ShapeWord,
    /// How many GPUs.
    pub gpus: i16,
    /// Where it is.
    pub region: String,
    /// The image.
    pub image: String,
    /// The machine it is on, by name.
    pub node: Option<String>,
    /// The numbers of its slots; empty for a whole machine.
    pub slots: Vec<i16>,
    /// How to reach it, once there is something to reach.
    pub access: Option<Access>,
    /// The price of one GPU for one second, in millionths of the currency's unit, as agreed when it was asked for.
    pub price_micros_per_gpu_second: i64,
    /// The currency.
    pub currency: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it first became usable.
    pub active_at: Option<Timestamp>,
    /// When it was given back: billing stopped then.
    pub release_requested_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The number of its last step; also its `ETag`.
    pub seq: i64,
    /// What the caller may do with it now.
    pub allowed_actions: Vec<ActionWord>,
}

/// `POST /admin/allocations/{id}/force-release`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForceRelease {
    /// Why: shown to the tenant.
    #[schema(min_length = 1, max_length = 256)]
    pub reason: String,
}
