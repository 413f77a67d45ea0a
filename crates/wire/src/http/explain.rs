//! Why something is as it is: what it is doing, what it waits for, who takes the next step and by when, what was refused,
//! and what the caller may do. Built from allow-lists, like the timeline.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::allocation_groups::{GroupActionWord, GroupStatus};
use super::allocations::{ActionWord, AllocationStatus};
use super::claims::Claim;
use crate::Coded;

codes! {
    /// Who takes the next step.
    pub enum Owner {
        You = "you",
        Operator = "operator",
        Berth = "berth",
        Machine = "machine",
        Nobody = "nobody",
    }
}

/// [`Owner`], as it travels.
pub type OwnerWord = Coded<Owner>;

/// Something that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Awaited {
    /// What, in a sentence.
    pub what: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when at most, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextStep {
    /// Who takes it.
    pub owner: OwnerWord,
    /// By when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Timestamp>,
    /// Whether that has passed.
    pub overdue: bool,
    /// What happens then, or what it takes, in a sentence.
    pub then: String,
}

/// A step that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepTaken {
    /// Its number.
    pub seq: i64,
    /// What it is called in the timeline.
    pub name: String,
    /// When.
    pub at: Timestamp,
    /// What it was, in a sentence.
    pub summary: String,
    /// Why: a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
}

/// A report that changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedReport {
    /// What it was about: `allocation`, or `task:` and its id.
    pub about: String,
    /// What was reported.
    pub event: String,
    /// Why nothing changed: a stable word.
    pub why: String,
    /// The same as a sentence.
    pub sentence: String,
    /// When.
    pub at: Timestamp,
    /// Who; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
}

/// Something that the caller may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MayDo {
    /// What.
    pub action: ActionWord,
    /// What comes of it.
    pub sentence: String,
    /// The command that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A workflow that is at it; for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunAtIt {
    /// Its identity.
    pub id: String,
    /// Which workflow.
    pub workflow: String,
    /// What it waits for.
    pub waits_for: Option<String>,
    /// When it goes on at the latest; none when it is due now.
    pub wakes_at: Option<Timestamp>,
    /// How often its step has failed in a row.
    pub attempts: i32,
    /// Why, the last time.
    pub reason: Option<String>,
}

/// The machine; for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MachineState {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub status: String,
    /// Since when.
    pub since: Timestamp,
}

/// `GET /allocations/{id}/explain`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Of which allocation.
    pub allocation_id: Uuid,
    /// Where it stands.
    pub status: AllocationStatus,
    /// Since when.
    pub since: Timestamp,
    /// Why: a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it is doing, with what happens to money and data.
    pub doing: String,
    /// What it waits for; nothing when it rests.
    pub waits_for: Vec<Awaited>,
    /// The next step; none when there is no more.
    pub next_step: Option<NextStep>,
    /// What the caller may do now.
    pub may_do: Vec<MayDo>,
    /// The last steps, newest first.
    pub steps: Vec<StepTaken>,
    /// What was reported and changed nothing, newest first.
    pub refused: Vec<RefusedReport>,
    /// The workflows that are at it; for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunAtIt>,
    /// The machine; for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineState>,
    /// What it holds that is stuck or set aside; for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// Something that the caller may do with a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupMayDo {
    /// What.
    pub action: GroupActionWord,
    /// What comes of it.
    pub sentence: String,
    /// The command that does it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A member of a group, and whether the group waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberExplained {
    /// The allocation.
    pub allocation_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Whether the group is nothing without it.
    pub required: bool,
    /// Whether the group stands no better because of this one.
    pub holds_up: bool,
    /// Where it stands.
    pub status: AllocationStatus,
    /// Since when.
    pub since: Timestamp,
    /// Why: a stable word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it is doing, with what happens to money and data.
    pub doing: String,
    /// What it waits for; nothing when it rests.
    pub waits_for: Vec<Awaited>,
    /// Its next step; none when there is no more.
    pub next_step: Option<NextStep>,
    /// What the caller may do with it now.
    pub may_do: Vec<MayDo>,
}

/// `GET /allocation-groups/{id}/explain`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupExplanation {
    /// Of which group.
    pub group_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Where it stands.
    pub status: GroupStatus,
    /// Since when.
    pub since: Timestamp,
    /// What it is doing, with what happens to money.
    pub doing: String,
    /// The next step, which is that of a member; none when there is no more.
    pub next_step: Option<NextStep>,
    /// What the caller may do now.
    pub may_do: Vec<GroupMayDo>,
    /// Its members, in the order in which they were asked for.
    pub members: Vec<MemberExplained>,
    /// Its last steps, newest first.
    pub steps: Vec<StepTaken>,
    /// The workflows that are at it; for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunAtIt>,
}
