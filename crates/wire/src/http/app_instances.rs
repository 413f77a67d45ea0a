//! App instances: an application of a tenant, bound to an allocation or to a group.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

codes! {
    /// What a caller may do with an app instance now.
    pub enum AppAction {
        PutMembers = "put_members",
        End = "end",
    }
}

/// [`AppAction`], as it travels.
pub type AppActionWord = Coded<AppAction>;

/// `POST /app-instances`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAppInstance {
    /// For which project.
    pub project_id: Uuid,
    /// What it is called.
    #[schema(min_length = 1, max_length = 64)]
    pub name: String,
    /// Which application: a short word.
    #[schema(min_length = 1, max_length = 64)]
    pub app: String,
    /// The allocation that it is bound to; either this or the group.
    pub allocation_id: Option<Uuid>,
    /// The group that it is bound to; either this or the allocation.
    pub group_id: Option<Uuid>,
    /// Who plays which role in it.
    #[serde(default)]
    #[schema(max_items = 32)]
    pub members: Vec<NewAppMember>,
}

/// `PUT /app-instances/{id}/members`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppMembers {
    /// Who plays which role from now on; whoever is not named plays none.
    #[schema(max_items = 32)]
    pub members: Vec<NewAppMember>,
}

/// An allocation and the role it is to play.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAppMember {
    /// The allocation: the bound one, or a member of the bound group.
    pub allocation_id: Uuid,
    /// Its role: a short word, such as `head` or `worker`.
    #[schema(min_length = 1, max_length = 32)]
    pub role: String,
}

/// An app instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppInstance {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// Which application.
    pub app: String,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who made it.
    pub owner_id: Uuid,
    /// The allocation that it is bound to.
    pub allocation_id: Option<Uuid>,
    /// The group that it is bound to.
    pub group_id: Option<Uuid>,
    /// What it is bound to, by name.
    pub bound_name: String,
    /// Where that stands.
    pub bound_status: String,
    /// Who plays which role in it.
    pub members: Vec<AppMember>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was ended.
    pub ended_at: Option<Timestamp>,
    /// What the caller may do with it now.
    pub allowed_actions: Vec<AppActionWord>,
}

/// An allocation with its role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppMember {
    /// The allocation.
    pub allocation_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Where it stands.
    pub status: String,
    /// Its role.
    pub role: String,
}
