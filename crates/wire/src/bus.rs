//! The catalogue: every subject, who publishes it, and the one shape that every message has. A message is a pointer with a
//! little luggage: consumers load the row and trust the message only for what can't change.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Coded;

codes! {
    /// What a message is about.
    pub enum Subject {
        ProvisioningRequested = "provisioning.requested",
        ProvisioningActive = "provisioning.active",
        ProvisioningFailed = "provisioning.failed",
        RestartRequested = "provisioning.restart.requested",
        RestartCompleted = "provisioning.restart.completed",
        RestartFailed = "provisioning.restart.failed",
        ReleasingRequested = "provisioning.releasing.requested",
        ReleasingCompleted = "provisioning.releasing.completed",
        ReleaseFailed = "provisioning.release_failed",
        GroupChanged = "allocation_groups.changed",
        TaskFinished = "node.task.finished",
        NodeOnline = "node.online",
        NodeOffline = "node.offline",
        AttachRequested = "storage.attach.requested",
        DetachRequested = "storage.detach.requested",
        StorageChanged = "storage.changed",
        TerminalClosed = "terminal.closed",
        BalanceLow = "billing.balance.low",
        BalanceDepleted = "billing.balance.depleted",
        BalanceRecovered = "billing.balance.recovered",
        PaymentCredited = "payments.credited",
        PaymentFailedReconcile = "payments.failed_reconcile",
    }
}

/// [`Subject`], as it travels.
pub type SubjectWord = Coded<Subject>;

/// The version of [`Fact`] that is written today.
pub const VERSION: u16 = 1;

/// What every message says: this row of this machine took this step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The version of this shape.
    pub version: u16,
    /// The machine.
    pub machine: String,
    /// The row.
    pub id: Uuid,
    /// The number of the step.
    pub seq: i64,
    /// What happened.
    pub event: String,
    /// The identity of the report behind it.
    pub event_id: Uuid,
    /// The status before; none for a birth.
    pub from: Option<String>,
    /// The status after.
    pub to: String,
    /// The operation it belongs to.
    pub operation_id: Option<Uuid>,
    /// When.
    pub occurred_at: Timestamp,
}

/// One message as a consumer gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its identity: the same on every delivery, the deduplication id of every broker.
    pub id: Uuid,
    /// What it is about.
    pub subject: SubjectWord,
    /// What happened.
    pub fact: Fact,
    /// Where what was done stood in its trace, as W3C writes it; what is done about it goes on there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}
