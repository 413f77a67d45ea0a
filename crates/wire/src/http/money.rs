//! Money as people see it: what they have, what it goes for, and every line behind it.

use domain::derived::balance::Status;
use domain::ledger::PostingKind;
use jiff::Timestamp;
use lifecycle::codes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Coded;

/// The status of a balance, as it travels.
pub type BalanceStatus = Coded<Status>;
/// What a line of the ledger is about, as it travels.
pub type PostingKindWord = Coded<PostingKind>;

/// What an account has, and for how long that lasts. Amounts are whole numbers of the currency's minor unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Balance {
    /// The account.
    pub account_id: Uuid,
    /// Its currency.
    pub currency: String,
    /// What it has.
    pub balance_minor: i64,
    /// The same as people write it.
    pub balance: String,
    /// Where that stands.
    pub status: BalanceStatus,
    /// Since when.
    pub status_at: Timestamp,
    /// At or under this its owner is warned.
    pub low_balance_threshold_minor: i64,
    /// What an hour costs at present, rounded up.
    pub burn_minor_per_hour: i64,
    /// How many allocations that is for.
    pub running: i64,
    /// For how many minutes it lasts at that; none when nothing is spent.
    pub runway_minutes: Option<i64>,
    /// What that means, in a sentence or two.
    pub sentence: String,
}

/// `PUT /balance/threshold`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewThreshold {
    /// At or under this you are warned.
    #[schema(minimum = 0)]
    pub low_balance_threshold_minor: i64,
}

codes! {
    /// What usage is summed by.
    pub enum UsageBy {
        Day = "day",
        Sku = "sku",
        Project = "project",
        Allocation = "allocation",
    }
}

/// [`UsageBy`], as it travels.
pub type UsageByWord = Coded<UsageBy>;

/// What was used in a stretch of time, and what it cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// The currency.
    pub currency: String,
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// What it is summed by.
    pub by: UsageByWord,
    /// The sums.
    pub items: Vec<UsageSum>,
    /// What all of it cost.
    pub total_minor: i64,
}

/// The usage of one day, SKU, project or allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageSum {
    /// Which: a day as `2026-11-16`, a SKU's code, a project's or an allocation's id.
    pub key: String,
    /// The same for people: the name, where there is one.
    pub name: String,
    /// How many seconds of one GPU.
    pub gpu_seconds: i64,
    /// What was charged for it.
    pub charged_minor: i64,
    /// What of that was given back.
    pub given_back_minor: i64,
}

/// A line of the ledger, as the tenant whose it is sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerLine {
    /// Its number: later ones are greater.
    pub number: i64,
    /// The posting it belongs to.
    pub posting_id: Uuid,
    /// What it is about.
    pub kind: PostingKindWord,
    /// How much; negative when it was taken.
    pub amount_minor: i64,
    /// What the account had after it.
    pub balance_after_minor: i64,
    /// The currency.
    pub currency: String,
    /// When.
    pub posted_at: Timestamp,
    /// For which time.
    pub from_at: Option<Timestamp>,
    /// Until when.
    pub until_at: Option<Timestamp>,
    /// The payment session, record or outage behind it.
    pub source_id: Option<Uuid>,
    /// Why, where somebody said so.
    pub reason: Option<String>,
}

/// Everything behind one posting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Charge {
    /// The line.
    pub line: LedgerLine,
    /// What it is, in a sentence.
    pub sentence: String,
    /// The windows it consists of; at most 200 of them are told.
    pub windows: Vec<ChargedWindow>,
    /// How many there are.
    pub windows_total: i64,
}

/// One minute of one record, and what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChargedWindow {
    /// The allocation.
    pub allocation_id: Uuid,
    /// What it is called.
    pub allocation: Option<String>,
    /// What it was sold as.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
    /// The price of one GPU for one second that was agreed, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// The minute.
    pub window_at: Timestamp,
    /// How many millionths of a second of it.
    pub micros: i64,
    /// What it cost.
    pub amount_minor: i64,
    /// Whether it was given back.
    pub given_back: bool,
    /// The step of the allocation that began the stretch, its moment.
    pub opened_at: Timestamp,
    /// The number of that step.
    pub opened_seq: i64,
    /// The machine.
    pub node: Option<String>,
    /// When the machine was last heard of before the minute was charged.
    pub heartbeat_at: Option<Timestamp>,
}

/// What a project may cost in a month, and has cost in this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Spending {
    /// The project.
    pub project_id: Uuid,
    /// The currency.
    pub currency: Option<String>,
    /// The month, as `2026-11`.
    pub month: String,
    /// What it has cost.
    pub spent_minor: i64,
    /// What it may cost; none is as much as the account has.
    pub spend_cap_minor: Option<i64>,
}

/// `PUT /projects/{id}/spending-cap`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSpendingCap {
    /// What it may cost in a calendar month (UTC); null lifts the cap.
    #[schema(minimum = 0)]
    pub spend_cap_minor: Option<i64>,
}

/// An account, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Account {
    /// The account.
    pub id: Uuid,
    /// Whose it is.
    pub owner: Option<String>,
    /// Its currency.
    pub currency: String,
    /// What it has.
    pub balance_minor: i64,
    /// Where that stands.
    pub status: BalanceStatus,
    /// Since when.
    pub status_at: Timestamp,
}

/// `POST /admin/ledger/adjustments`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAdjustment {
    /// Whose.
    pub account_id: Uuid,
    /// How much they get; negative takes it.
    pub amount_minor: i64,
    /// Why: it stands in the ledger.
    #[schema(max_length = 256)]
    pub reason: String,
}

/// `PUT /admin/skus/{code}/price`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPrice {
    /// The price of one GPU for one second, in millionths of the currency's unit.
    #[schema(minimum = 0, maximum = 100_000_000)]
    pub price_micros_per_gpu_second: i64,
    /// From when; never backwards. None is from the next minute on.
    #[serde(default)]
    pub from: Option<Timestamp>,
    /// Whether those who have one already pay it too.
    #[serde(default)]
    pub running: bool,
    /// Why.
    #[schema(max_length = 256)]
    pub reason: String,
}

/// A price that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Price {
    /// The SKU.
    pub sku: String,
    /// The price of one GPU for one second, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// From when.
    pub from: Timestamp,
    /// How many running allocations pay it too.
    pub running: i64,
}

/// The ledger, computed again from usage and payments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerAudit {
    /// Whether nothing differs and every invariant of money holds.
    pub clean: bool,
    /// What the ledger says of each thing, and what comes out when it is computed again.
    pub sums: Vec<LedgerSum>,
    /// The invariants of money.
    pub invariants: Vec<super::admin::Invariant>,
}

/// One sum, twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LedgerSum {
    /// The currency.
    pub currency: String,
    /// Of what.
    pub what: String,
    /// What the ledger says.
    pub ledger_minor: i64,
    /// What it is when it is computed again.
    pub computed_minor: i64,
    /// How many lines or records it is made of.
    pub count: i64,
}
