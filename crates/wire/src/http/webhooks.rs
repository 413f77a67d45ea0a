//! Where people want to be told as well, and what arrives there.

use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::notifications::NotificationKindWord;
use crate::Coded;

/// The version of [`WebhookMessage`] that is sent today.
pub const VERSION: u16 = 1;
/// The header with the time and the signatures of a delivery: `t=…,v1=…`, a `v1` for each secret that is good.
pub const SIGNATURE: &str = "berth-signature";
/// The header with the identity of what is delivered, which is the same at every attempt.
pub const DELIVERY: &str = "berth-delivery";

codes! {
    /// How a delivery stands.
    pub enum DeliveryStatus {
        Pending = "pending",
        Delivered = "delivered",
        GivenUp = "given_up",
    }
}

codes! {
    /// Why an attempt to deliver failed. What the receiver said is not in it.
    pub enum DeliveryFault {
        UrlRefused = "url_refused",
        AddressRefused = "address_refused",
        NoConnection = "no_connection",
        TimedOut = "timed_out",
        Redirected = "redirected",
        NotTaken = "not_taken",
        WebhookRemoved = "webhook_removed",
        Broken = "broken",
    }
}

/// [`DeliveryStatus`], as it travels.
pub type DeliveryStatusWord = Coded<DeliveryStatus>;
/// [`DeliveryFault`], as it travels.
pub type DeliveryFaultWord = Coded<DeliveryFault>;

/// `POST /webhooks`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// Where: an `https` URL that leads to public addresses.
    #[schema(max_length = 2048)]
    pub url: String,
}

/// A webhook, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Its identity.
    pub id: Uuid,
    /// Where.
    pub url: String,
    /// Since when it is there.
    pub created_at: Timestamp,
    /// Until when the secret before the present one signs, too.
    pub previous_secret_until: Option<Timestamp>,
}

/// A webhook with its secret, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FreshWebhook {
    /// The webhook.
    pub webhook: Webhook,
    /// What deliveries are signed with. It can't be shown again.
    pub secret: String,
}

/// How the delivery of a notification to a webhook stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// What is delivered.
    pub notification_id: Uuid,
    /// What sort of news it is.
    pub kind: NotificationKindWord,
    /// How it stands.
    pub status: DeliveryStatusWord,
    /// Since when it is tried.
    pub queued_at: Timestamp,
    /// How often, since then.
    pub attempts: i32,
    /// When it is tried next.
    pub next_attempt_at: Option<Timestamp>,
    /// When it was tried last.
    pub attempted_at: Option<Timestamp>,
    /// When it was taken.
    pub delivered_at: Option<Timestamp>,
    /// When it was given up.
    pub given_up_at: Option<Timestamp>,
    /// The HTTP status that the last attempt was answered with.
    pub http_status: Option<u16>,
    /// Why the last attempt failed.
    pub fault: Option<DeliveryFaultWord>,
}

/// What arrives at a webhook: the body of the request, exactly as it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookMessage {
    /// The version of this shape.
    pub version: u16,
    /// The identity of the notification. What comes again has the same: take it once.
    pub id: Uuid,
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
}
