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
        Pause = "pause",
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

codes! {
    /// What an expectation was learnt from, the closest first.
    pub enum Basis {
        Image = "image",
        Sku = "sku",
        Kind = "kind",
        Default = "default",
    }
}

/// [`Basis`], as it travels.
pub type BasisWord = Coded<Basis>;

/// How long such things usually take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExpectedSeconds {
    /// Half of them are faster.
    pub p50: i64,
    /// Nine of ten are faster.
    pub p90: i64,
    /// Learnt from past ones of the same SKU and image, of the same SKU, of the same kind; or a guess, while there are too
    /// few of them.
    pub basis: BasisWord,
}

/// One item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineItem {
    /// Its identity: the same whenever the timeline is read.
    pub id: String,
    /// What it is about.
    pub kind: ItemKindWord,
    /// Which: a state, or a kind of task.
    pub name: String,
    /// How it stands.
    pub status: ItemStatusWord,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended. The steps of the allocation last until the next one.
    pub completed_at: Option<Timestamp>,
    /// How long it took, or has taken so far. Over the steps of the allocation these add up to `total_seconds`.
    pub duration_seconds: i64,
    /// The step of the allocation in which it began: the `id` of another item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
    /// When the machine took the task for the last time; before, it waited in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Timestamp>,
    /// How much of the duration the task waited in the queue; the rest is work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_seconds: Option<i64>,
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
    /// When it was asked for.
    pub started_at: Timestamp,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// The time from the request to the end, or until now: the sum over its `allocation_state` items.
    pub total_seconds: i64,
    /// How long it usually takes from the request until it is ready, while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_seconds: Option<ExpectedSeconds>,
    /// What happened, oldest first.
    pub items: Vec<TimelineItem>,
}

codes! {
    /// What an event of the stream is about.
    pub enum EventKind {
        State = "state",
        Task = "task",
        Phase = "phase",
    }
}

/// [`EventKind`], as it travels.
pub type EventKindWord = Coded<EventKind>;

/// One event of `GET /allocations/{id}/events`: a step of the allocation, of a task, or a phase that a task has told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TimelineEvent {
    /// What it is about; also the name of the event.
    pub kind: EventKindWord,
    /// The `id` of the item of the timeline that it changes.
    pub item: String,
    /// Which: a state, a kind of task, or a phase.
    pub name: String,
    /// How that stands now.
    pub status: ItemStatusWord,
    /// Where the allocation stands from here on, for a step of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_status: Option<AllocationStatus>,
    /// When it happened.
    pub at: Timestamp,
    /// What it is, in a sentence.
    pub summary: String,
    /// Why, for what failed: a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The last event of a stream, by the name `end`: nothing will happen any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamEnd {
    /// How it ended.
    pub status: AllocationStatus,
}
