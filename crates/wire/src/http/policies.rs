//! Policies as operators see and turn them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// What operators may turn, and how far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Policy {
    /// What it is called.
    pub key: String,
    /// What it means.
    pub meaning: String,
    /// What the value counts: `seconds`, `days`, `times`.
    pub unit: String,
    /// What it stands at.
    pub value: u32,
    /// What it is when nobody has turned it.
    pub default: u32,
    /// The least it may be.
    pub min: u32,
    /// The most it may be.
    pub max: u32,
    /// When it was turned; none when it is at its default.
    pub changed_at: Option<Timestamp>,
    /// Who turned it.
    pub changed_by: Option<Uuid>,
}

/// `PUT /admin/policies/{key}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPolicy {
    /// What it is to stand at.
    pub value: i64,
    /// Why; it is kept in the audit log.
    #[schema(min_length = 1, max_length = 256)]
    pub reason: String,
}
