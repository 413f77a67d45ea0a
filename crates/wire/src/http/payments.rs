//! Paying in: checkouts, what becomes of them, and what operators see when they do not add up.

use domain::machines::payment_session::Status;
use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

/// Where a payment session stands.
pub type PaymentStatus = Coded<Status>;

codes! {
    /// What is going on, for who pays.
    pub enum PaymentProgress {
        /// The checkout is open: nobody has paid yet.
        AwaitingPayment = "awaiting_payment",
        /// Paid, or about to be; not in the balance yet.
        Processing = "processing",
        /// In the balance.
        Credited = "credited",
        /// Nobody paid in time.
        Expired = "expired",
        /// Something does not add up, and somebody looks at it.
        UnderReview = "under_review",
    }
}

/// [`PaymentProgress`], as it travels.
pub type PaymentProgressWord = Coded<PaymentProgress>;

codes! {
    /// What came of something that the payment provider told us.
    pub enum PaymentEventOutcome {
        /// The money is in the balance.
        Credited = "credited",
        /// What was paid is not what was asked for.
        Mismatched = "mismatched",
        /// The checkout is done, the money is on its way.
        AwaitingPayment = "awaiting_payment",
        /// Nobody paid.
        Expired = "expired",
        /// What was given back has left the balance.
        Refunded = "refunded",
        /// It was so already.
        Repeated = "repeated",
        /// It came too late to matter.
        Late = "late",
        /// It is of no concern to us.
        Ignored = "ignored",
        /// Nothing of ours belongs to it.
        Unmatched = "unmatched",
        /// It could not be settled, however often it was tried.
        Failed = "failed",
        /// More was given back than was ever credited.
        Exceeds = "exceeds",
    }
}

/// [`PaymentEventOutcome`], as it travels.
pub type PaymentEventOutcomeWord = Coded<PaymentEventOutcome>;

/// `POST /payments/checkout-session`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCheckoutSession {
    /// How much, in the minor unit of the account's currency: 2500 is 25.00 USD.
    #[schema(minimum = 1)]
    pub amount_minor: i64,
}

/// One checkout, from the request to the balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentSession {
    /// Its identity.
    pub id: Uuid,
    /// Where it stands.
    pub status: PaymentStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// What that means for who pays.
    pub progress: PaymentProgressWord,
    /// What is going on, in a sentence.
    pub status_text: String,
    /// What to do about it.
    pub advice: String,
    /// How much was asked for, in the currency's minor unit.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
    /// Where to pay; none when there is nothing to pay there any more.
    pub url: Option<String>,
    /// What was credited.
    pub credited_amount_minor: Option<i64>,
    /// What was given back since.
    pub refunded_minor: i64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// Until when it may be paid.
    pub expires_at: Option<Timestamp>,
    /// When it was paid.
    pub completed_at: Option<Timestamp>,
    /// When it was credited.
    pub ended_at: Option<Timestamp>,
}

/// A checkout as operators see it: what was asked for beside what was paid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentCase {
    /// The session, as whoever pays sees it.
    pub session: PaymentSession,
    /// Who asked for it.
    pub user_id: Option<Uuid>,
    /// Whose balance it is for.
    pub account_id: Uuid,
    /// What the provider calls the session.
    pub stripe_checkout_session_id: Option<String>,
    /// What the provider calls the payment.
    pub stripe_payment_intent_id: Option<String>,
    /// What the provider says was paid.
    pub paid_amount_minor: Option<i64>,
    /// In which currency.
    pub paid_currency: Option<String>,
    /// Why it stands there, as a stable word or as an operator said it.
    pub reason: Option<String>,
    /// The posting that credits it.
    pub posting_id: Option<Uuid>,
    /// What an operator does about it; none when there is nothing to do.
    pub operator_advice: Option<String>,
}

/// `GET /admin/payments/sessions`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentCases {
    /// What is on the page.
    pub items: Vec<PaymentCase>,
    /// Where the next one begins; none when this is the last.
    pub next_cursor: Option<String>,
    /// How much the provider has told us that nothing came of: see `/admin/payments/events?unmatched=true`.
    pub unmatched_events: i64,
}

/// `POST /admin/payments/sessions/{id}/resolve`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolvePayment {
    /// How much is credited, in the minor unit of the account's currency; 0 when the payer has it back, or never paid.
    #[schema(minimum = 0)]
    pub amount_minor: i64,
    /// Why; it is kept in the audit log and in the ledger.
    #[schema(min_length = 1, max_length = 256)]
    pub reason: String,
}

/// Something that the payment provider told us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PaymentEvent {
    /// What the provider calls it.
    pub id: String,
    /// What it is about, in the provider's words.
    pub kind: String,
    /// When we heard it.
    pub received_at: Timestamp,
    /// The session it turned out to be about.
    pub session_id: Option<Uuid>,
    /// What came of it; none while it is not settled.
    pub outcome: Option<PaymentEventOutcomeWord>,
    /// How often it was tried.
    pub attempts: i32,
    /// When it is tried again.
    pub due_at: Option<Timestamp>,
    /// What was in the way the last time.
    pub reason: Option<String>,
    /// What matters of it: ids, amounts and states.
    #[schema(value_type = Object)]
    pub facts: serde_json::Value,
}
