//! Allocation groups as tenants see them: several allocations that are had all together or not at all.

use domain::derived::allocation_group::Status;
use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::allocations::AllocationStatus;
use crate::Coded;
use crate::node::Access;

/// A group's status, as it travels.
pub type GroupStatus = Coded<Status>;

/// How many members a group has at most.
pub const MEMBERS_MAX: usize = 32;

codes! {
    /// What a caller may do with a group now.
    pub enum GroupAction {
        Release = "release",
    }
}

/// [`GroupAction`], as it travels.
pub type GroupActionWord = Coded<GroupAction>;

/// `POST /allocation-groups`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// For which project.
    pub project_id: Uuid,
    /// What it is called; made up when nobody says.
    #[schema(min_length = 1, max_length = 64)]
    pub name: Option<String>,
    /// Of what it consists: at most 32 allocations in all.
    #[schema(min_items = 1, max_items = 32)]
    pub members: Vec<NewMember>,
    /// Who may log in to the members that do not say it themselves.
    #[serde(default)]
    #[schema(max_items = 16)]
    pub ssh_key_ids: Vec<Uuid>,
}

/// A member to be, or several that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// What.
    #[schema(max_length = 64)]
    pub sku: String,
    /// How many GPUs, each.
    #[schema(minimum = 1, maximum = 1024)]
    pub gpus: i16,
    /// Where.
    #[schema(max_length = 64)]
    pub region: String,
    /// Which image; the SKU's first when nobody says.
    #[schema(max_length = 64)]
    pub image: Option<String>,
    /// What it is called; of several, the name is followed by a number.
    #[schema(min_length = 1, max_length = 64)]
    pub name: Option<String>,
    /// Whether the group is nothing without it; it is when nobody says.
    pub required: Option<bool>,
    /// Who may log in; those of the group when nobody says.
    #[schema(max_items = 16)]
    pub ssh_key_ids: Option<Vec<Uuid>>,
    /// How many that are alike; one when nobody says.
    #[schema(minimum = 1, maximum = 32)]
    pub count: Option<u16>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllocationGroup {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who asked for it.
    pub owner_id: Option<Uuid>,
    /// Where it stands: it follows from its members.
    pub status: GroupStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// The same as a sentence.
    pub status_text: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When the whole of it was given back.
    pub release_requested_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its members, in the order in which they were asked for.
    pub members: Vec<GroupMember>,
    /// A number that grows with every step of the group and of its members; also its `ETag`.
    pub version: i64,
    /// What the caller may do with it now.
    pub allowed_actions: Vec<GroupActionWord>,
}

/// A member of a group: an allocation like any other, with its own lifecycle and its own price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupMember {
    /// The allocation.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Whether the group is nothing without it.
    pub required: bool,
    /// Where it stands.
    pub status: AllocationStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// Why it is there, when there is more to say than the status does: a stable word.
    pub status_reason: Option<String>,
    /// The same as a sentence.
    pub status_text: String,
    /// What it was sold as.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
    /// Where it is.
    pub region: String,
    /// The machine it is on, by name.
    pub node: Option<String>,
    /// The numbers of its slots; empty for a whole machine.
    pub slots: Vec<i16>,
    /// How to reach it, once there is something to reach.
    pub access: Option<Access>,
    /// The price of one GPU for one second, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// The currency.
    pub currency: String,
}
