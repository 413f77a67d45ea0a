//! What people are told, wherever they are: stored, read or unread, and on their stream of events.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

codes! {
    /// What sort of news somebody is told.
    pub enum NotificationKind {
        AllocationActive = "allocation.active",
        AllocationFailed = "allocation.failed",
        AllocationRestarted = "allocation.restarted",
        AllocationRestartFailed = "allocation.restart_failed",
        AllocationTakenBack = "allocation.taken_back",
        AllocationReleaseFailed = "allocation.release_failed",
        AllocationReleased = "allocation.released",
        BalanceLow = "balance.low",
        BalanceDepleted = "balance.depleted",
        BalanceRecovered = "balance.recovered",
        PaymentCredited = "payment.credited",
        PaymentInReview = "payment.in_review",
        PaymentFailedReconcile = "payment.failed_reconcile",
        WebhookTest = "webhook.test",
        Other = "other",
    }
}

/// [`NotificationKind`], as it travels.
pub type NotificationKindWord = Coded<NotificationKind>;

/// Something that somebody was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notification {
    /// Its identity: the same wherever it is delivered.
    pub id: Uuid,
    /// Its place among the caller's, without a gap; the id of the event on their stream.
    pub number: i64,
    /// What sort of news.
    pub kind: NotificationKindWord,
    /// Its first line.
    pub title: String,
    /// The rest of it.
    pub body: String,
    /// The project it is about.
    pub project_id: Option<Uuid>,
    /// The allocation it is about.
    pub allocation_id: Option<Uuid>,
    /// The payment it is about.
    pub payment_session_id: Option<Uuid>,
    /// Since when it is there.
    pub created_at: Timestamp,
    /// When it was read.
    pub read_at: Option<Timestamp>,
}

/// One page of what somebody was told, and how much of all of it is unread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Notifications {
    /// What is on it, newest first.
    pub items: Vec<Notification>,
    /// Where the next one begins; none when this is the last.
    pub next_cursor: Option<String>,
    /// How many the caller has not read, on whatever page.
    pub unread: i64,
}

/// `POST /notifications/read-all`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadAll {
    /// The number of the last that was seen: what has come since stays unread. All, when nobody says.
    #[schema(minimum = 0)]
    pub up_to: Option<i64>,
}

/// What `POST /notifications/read-all` has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HaveRead {
    /// How many were unread before, and are read now.
    pub read: u64,
}
