//! What happened to an allocation, step by step. Built from allow-lists: nothing here is copied from a task's parameters
//! or output.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::allocations::AllocationStatus;
use crate::Coded;
use crate::node::{PhaseStatusWord, PhaseWord};

codes! {
    /// What an item is about.
    pub enum ItemKind {
        AllocationState = "allocation_state",
        Placement = "placement",
        NodeTask = "node_task",
    }
}

/// [`ItemKind`], as it travels.
pub type ItemKindWord = Coded<ItemKind>;

codes! {
    /// How an item stands.
    pub enum ItemStatus {
        Waiting = "waiting",
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

/// [`ItemStatus`], as it travels.
pub type ItemStatusWord = Coded<ItemStatus>;

/// One phase of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelinePhase {
    /// Which.
    pub name: PhaseWord,
    /// How it stands.
    pub status: PhaseStatusWord,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
}

/// How long such things usually take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExpectedSeconds {
    /// Half of them are faster.
    pub p50: i64,
    /// Nine of ten are faster.
    pub p90: i64,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineItem {
    /// What it is about.
    pub kind: ItemKindWord,
    /// Which: a state, or a kind of task.
    pub name: String,
    /// How it stands.
    pub status: ItemStatusWord,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// How long it took, or has taken so far.
    pub duration_seconds: i64,
    /// What it is, in a sentence.
    pub summary: String,
    /// Why, when there is more to say: a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is done about it, or what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<Uuid>,
    /// Its phases, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<TimelinePhase>,
    /// How long such tasks usually take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_seconds: Option<ExpectedSeconds>,
    /// Who did it; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// The machine; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How often the task was handed out; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatches: Option<i64>,
}

/// `GET /allocations/{id}/timeline`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    /// Whose.
    pub allocation_id: Uuid,
    /// Where it stands.
    pub status: AllocationStatus,
    /// What happened, oldest first.
    pub items: Vec<TimelineItem>,
}
