//! What stands longer than it may, with what can be done about it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that stands longer than it may.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StuckItem {
    /// What sort of thing: a machine such as `allocation`, or `message`, or `workflow_run`.
    pub machine: String,
    /// Which.
    pub id: String,
    /// What it is called, if it is called anything.
    pub name: Option<String>,
    /// Where it stands.
    pub status: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when it might have; none for what should not be there at all.
    pub deadline_at: Option<Timestamp>,
    /// For how long its time has been up.
    pub overdue_seconds: i64,
    /// How many times as long as it may it has been there.
    pub factor: Option<f64>,
    /// Whether it is twice as long, or should not be there at all.
    pub stuck: bool,
    /// Who owns the next step.
    pub owner: String,
    /// Why it stands there, as far as it is known.
    pub reason: String,
    /// What can be done.
    pub action: String,
    /// The command that does it, or shows more.
    pub command: String,
    /// The command for when that does not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
}

/// A status that may not last, and what stands in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StuckCount {
    /// Whose status.
    pub machine: String,
    /// The status.
    pub status: String,
    /// How long it may last, as policies have it. Some rows have a time of their own.
    pub seconds: u32,
    /// How many are over their time.
    pub overdue: i64,
    /// Since when the oldest stands there, whether or not its time is up.
    pub oldest_since: Option<Timestamp>,
}

/// `GET /admin/stuck`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stuck {
    /// When this was looked at.
    pub at: Timestamp,
    /// What stands longer than it may, the most overdue first.
    pub items: Vec<StuckItem>,
    /// How many there are, also those that are not listed.
    pub total: i64,
    /// Every status that may not last and has something in it.
    pub statuses: Vec<StuckCount>,
    /// How many messages could not be handled.
    pub dead_letters: i64,
    /// How many disagreements between the database and the fleet are open.
    pub findings_open: i64,
}
