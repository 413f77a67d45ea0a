//! The balance of an account, as far as it has consequences. Crossings are events, so a warning is sent once a crossing,
//! however often somebody looks.

use Event::*;
use Status::*;
use lifecycle::Source::Derived;
use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful};

codes! {
    /// Where a balance stands.
    pub enum Status {
        Healthy = "healthy",
        LowBalance = "low_balance",
        Depleted = "depleted",
    }
}

codes! {
    /// Which line a balance crosses.
    pub enum Event {
        SankLow = "balance.low",
        RanOut = "balance.depleted",
        RoseToLow = "balance.lifted",
        Recovered = "balance.recovered",
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Balance;

impl Machine for Balance {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "balance";
    const INITIAL: Status = Healthy;

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(Healthy, "above the warning line"),
        restful(LowBalance, "at or under the warning line"),
        restful(Depleted, "at or under zero; nothing new is started"),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(SankLow).by(&[Derived]).publishes("billing.balance.low")
            .moves(&[Healthy], LowBalance)
            .duplicate_in(&[LowBalance])
            .bug_in(&[Depleted]),
        on(RanOut).by(&[Derived]).publishes("billing.balance.depleted")
            .moves(&[Healthy, LowBalance], Depleted)
            .duplicate_in(&[Depleted]),
        on(RoseToLow).by(&[Derived]).publishes("billing.balance.recovered")
            .moves(&[Depleted], LowBalance)
            .duplicate_in(&[LowBalance])
            .bug_in(&[Healthy]),
        on(Recovered).by(&[Derived]).publishes("billing.balance.recovered")
            .moves(&[LowBalance, Depleted], Healthy)
            .duplicate_in(&[Healthy]),
    ];
}

lawful!(Balance);

/// The status of an account with this balance, both amounts in the currency's minor unit.
pub fn derive(balance_minor: i64, low_balance_threshold_minor: i64) -> Status {
    if balance_minor <= 0 {
        Depleted
    } else if balance_minor <= low_balance_threshold_minor {
        LowBalance
    } else {
        Healthy
    }
}
