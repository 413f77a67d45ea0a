//! The payment session: one checkout, from the request to the credit in the ledger. Money that arrives late is honoured.

use Event::*;
use Status::*;
use lifecycle::Source::{Operator, Outside, Timer, Worker};
use lifecycle::{
    Check, Column, Kind, Machine, Rule, Stamp, StatusSpec, Test, codes, lawful, on, parked,
    restful, terminal, transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where a payment session stands.
    pub enum Status {
        Initiated = "initiated",
        CheckoutCompleted = "checkout_completed",
        Credited = "credited",
        Expired = "expired",
        FailedReconcile = "failed_reconcile",
    }
}

codes! {
    /// What can happen to a payment session.
    pub enum Event {
        Completed = "checkout.completed",
        Expiring = "session.expired",
        CreditPosted = "credit.posted",
        CreditFailed = "credit.failed",
        Resolved = "reconcile.resolved",
    }
}

/// What was asked for, in the currency's minor unit.
pub const AMOUNT_MINOR: Column = Column::new("amount_minor", Kind::Int);
/// In which currency.
pub const CURRENCY: Column = Column::new("currency", Kind::Text);
/// When the checkout was completed.
pub const COMPLETED_AT: Column = Column::new("completed_at", Kind::Time);
/// The posting that credits it.
pub const LEDGER_ENTRY_ID: Column = Column::new("ledger_entry_id", Kind::Id);
/// What was credited.
pub const CREDITED_AMOUNT_MINOR: Column = Column::new("credited_amount_minor", Kind::Int);

/// What was paid is what was asked for.
pub const AMOUNT_MATCHES: Check =
    Check::new("amount_matches", Test::Same(AMOUNT_MINOR, AMOUNT_MINOR));
/// And in the same currency.
pub const CURRENCY_MATCHES: Check = Check::new("currency_matches", Test::Same(CURRENCY, CURRENCY));

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct PaymentSession;

impl Machine for PaymentSession {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "payment_session";
    const INITIAL: Status = Initiated;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Initiated, Outside, 86_400, Expiring, "the payer is at the checkout"),
        transient(CheckoutCompleted, Worker, 3_600, CreditFailed, "paid, not yet credited"),
        terminal(Credited, "in the ledger").entering(Stamp::now(ENDED_AT)),
        restful(Expired, "nobody paid in time; money that still arrives is honoured"),
        parked(FailedReconcile, Operator, 3_600, "what was paid is not what was asked for, or can't be credited"),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Completed).by(&[Outside])
            .moves(&[Initiated, Expired], CheckoutCompleted)
            .stamps(Stamp::now(COMPLETED_AT))
            .duplicate_in(&[CheckoutCompleted, Credited, FailedReconcile]),
        on(Expiring).by(&[Timer, Outside, Operator])
            .moves(&[Initiated], Expired)
            .duplicate_in(&[Expired])
            .late_in(&[CheckoutCompleted, Credited, FailedReconcile]),
        on(CreditPosted).by(&[Worker])
            .carries(AMOUNT_MINOR).needs(AMOUNT_MATCHES)
            .carries(CURRENCY).needs(CURRENCY_MATCHES)
            .moves(&[CheckoutCompleted], Credited)
            .takes(LEDGER_ENTRY_ID).takes(CREDITED_AMOUNT_MINOR)
            .publishes("payments.credited")
            .duplicate_in(&[Credited])
            .late_in(&[FailedReconcile])
            .bug_in(&[Initiated, Expired]),
        on(CreditFailed).by(&[Worker, Timer, Operator])
            .moves(&[CheckoutCompleted], FailedReconcile)
            .takes(REASON)
            .publishes("payments.failed_reconcile")
            .duplicate_in(&[FailedReconcile])
            .late_in(&[Credited])
            .bug_in(&[Initiated, Expired]),
        on(Resolved).by(&[Operator])
            .moves(&[FailedReconcile], Credited)
            .takes(REASON).takes(LEDGER_ENTRY_ID).takes(CREDITED_AMOUNT_MINOR)
            .publishes("payments.credited")
            .duplicate_in(&[Credited])
            .bug_in(&[Initiated, CheckoutCompleted, Expired]),
    ];
}

lawful!(PaymentSession);
