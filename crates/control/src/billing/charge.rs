//! Charging, again and again: what is due is charged, what could not be reached is given back, what has crossed a line says so, and
//! what nobody pays for any more is taken back. Each of them can be had twice, and finds nothing the second time.
//! Doors: the timers `charging` and `unpaid`; the consumer `billing`, on `billing.balance.depleted`.

use domain::ids::{AccountId, EventId, OperationId};
use domain::machines::REASON;
use domain::machines::allocation::Event;
use lifecycle::{Code as _, Source, Value};
use store::depletion::{self, Unpaid};
use store::lifecycle::{Actor, Report};
use store::{accounts, allocations, charging, node_outages, usage_windows};

use crate::allocation::reason::OurReason;
use crate::ids::derived;
use crate::{Ctx, Error};

/// Who takes back what is not paid for.
const BILLING: &str = "billing";

/// Charges what is due by the database's clock, which has stamped everything that is charged; says how many windows that were.
///
/// # Errors
/// When the store fails; what was charged by then stays charged.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let until = charging::now(&ctx.store).await?;
    if let Err(error) = usage_windows::make_days(&ctx.store, until).await {
        // There is a place for minutes without a day of their own: nobody goes uncharged for it.
        tracing::warn!(%error, "the days to come could not be made");
    }
    let charged = charging::charge_due(&ctx.store, until).await?;
    if charged.windows > 0 {
        metrics::counter!("berth_usage_windows_total").increment(charged.windows);
        tracing::debug!(windows = charged.windows, postings = charged.postings, "charged");
    }
    let given = node_outages::give_back(&ctx.store).await?;
    let crossed = cross(ctx).await?;
    Ok(charged.windows + given + crossed)
}

/// Lets the status of every account follow that has crossed a line.
async fn cross(ctx: &Ctx) -> Result<u64, Error> {
    let mut crossed = 0;
    loop {
        let crossing = accounts::list_crossing(&ctx.store).await?;
        let before = crossed;
        for account in crossing {
            let mut tx = ctx.store.begin().await?;
            let outcome = accounts::refold(&mut tx, account, "charged").await?;
            if outcome.as_ref().is_some_and(lifecycle::Outcome::is_retryable) {
                continue;
            }
            tx.commit().await?;
            crossed += u64::from(outcome.is_some_and(|outcome| outcome.is_applied()));
        }
        if crossed == before {
            return Ok(crossed);
        }
    }
}

/// Takes back what is not paid for, everybody's or one account's; says how much.
///
/// # Errors
/// When the store fails.
pub async fn take_back(ctx: &Ctx, of: Option<AccountId>) -> Result<u64, Error> {
    let policies = ctx.policies();
    if policies.billing_enforced == 0 {
        return Ok(0);
    }
    let grace = policies.billing_depletion_grace_seconds;
    let mut taken = 0;
    loop {
        let before = taken;
        for unpaid in depletion::list_unpaid(&ctx.store, of, grace).await? {
            taken += u64::from(take_one_back(ctx, &unpaid, grace).await?);
        }
        if taken == before {
            return Ok(taken);
        }
    }
}

/// Asks for its release, if nobody has paid meanwhile: the account is held until that is decided.
async fn take_one_back(ctx: &Ctx, unpaid: &Unpaid, grace: u32) -> Result<bool, Error> {
    let mut tx = ctx.store.begin().await?;
    let Some(why) = depletion::is_still(&mut tx, unpaid, grace).await? else {
        tx.rollback().await?;
        return Ok(false);
    };
    let reason = if unpaid.capped { OurReason::SpendingCap } else { OurReason::BalanceDepleted };
    let label = unpaid.allocation.to_string();
    let report = Report::new(
        Event::ReleaseRequested,
        EventId(derived(&why, &label)),
        Actor::new(Source::Worker, BILLING),
    )
    .about(OperationId(derived(&why, &format!("operation {label}"))))
    .because(why.clone())
    .with(REASON, Value::Text(reason.code().into()));
    let outcome = allocations::report(&mut tx, unpaid.allocation, &report).await?;
    if outcome.is_retryable() {
        return Ok(false);
    }
    tx.commit().await?;
    if outcome.is_applied() {
        tracing::info!(allocation_id = %unpaid.allocation, why, "taken back: nobody pays for it");
    }
    Ok(outcome.is_applied())
}
