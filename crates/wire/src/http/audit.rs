//! The audit log as it is shown, and what a verification of its chain says.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// One deed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Its identity.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// As what it was done: `user`, `operator`, `agent`, `system`.
    pub role: String,
    /// Who, when it was a person, and for who may know.
    pub user_id: Option<Uuid>,
    /// Their address, as it is now.
    pub user: Option<String>,
    /// With which token.
    pub token_id: Option<Uuid>,
    /// What was done.
    pub action: String,
    /// To what kind of thing.
    pub target_kind: String,
    /// To which.
    pub target: String,
    /// In which project.
    pub project_id: Option<Uuid>,
    /// `done`; `denied` for who was not let in.
    pub outcome: String,
    /// Why, as they said it.
    pub reason: Option<String>,
    /// What changed.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
    /// The request.
    pub request_id: Option<Uuid>,
    /// The address it came from.
    pub source: Option<String>,
    /// Its place in the chain; none in the moment before it is linked.
    pub position: Option<i64>,
}

/// Where the chain ends. Kept elsewhere, it proves later that nothing before it was changed or cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditHead {
    /// The place of the last link.
    pub position: i64,
    /// Its hash, in hexadecimal.
    pub hash: String,
}

/// Where the chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditBreak {
    /// At which place; none for an entry that no link leads to.
    pub position: Option<i64>,
    /// What is wrong.
    pub what: String,
}

/// `GET /admin/audit/verify`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerdict {
    /// Whether nothing is wrong.
    pub sound: bool,
    /// How many links there are.
    pub links: i64,
    /// How many entries wait for their link.
    pub unlinked: i64,
    /// The last link that was cut off because its entry had got older than entries are kept. None when the chain is there from its
    /// first link on.
    pub beginning: Option<AuditHead>,
    /// Where the chain ends: keep it elsewhere. None when there is no link yet.
    pub head: Option<AuditHead>,
    /// What is wrong, in order; at most 20 are listed.
    pub breaks: Vec<AuditBreak>,
    /// How many there are.
    pub break_count: i64,
}
