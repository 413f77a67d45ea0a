//! Facts become notifications, in order of time: `hear` → who is concerned → what they are told → stored, with what goes to their
//! webhooks, in one transaction. A fact that comes again is told again to nobody: what names a notification is the step it tells
//! of. Doors: the consumer `notifier`.

use std::time::Duration;

use domain::ids::{AccountId, AllocationId, PaymentSessionId};
use lifecycle::Code as _;
use store::notifications::about::{self, OfAccount, OfAllocation, OfPayment};
use store::notifications::{self, Addressed, News};
use store::{Company, Tx};
use uuid::Uuid;
use wire::bus::{Fact, Message, Subject};

use super::words::{self, Consequences, Words};
use crate::{Ctx, Error};

/// An account is opened with nothing in it: that it is depleted then, and has something later, is no news to anybody.
const OPENED_SEQ: i64 = 2;
const FIRST_MONEY_SEQ: i64 = 3;

/// What there is to tell: to whom, and about what.
struct Told {
    to: Vec<Uuid>,
    words: Words,
    project_id: Option<Uuid>,
    allocation_id: Option<Uuid>,
    payment_session_id: Option<Uuid>,
}

/// Something has happened that people may want to know of.
///
/// # Errors
/// When the store fails; the message comes again then.
pub async fn hear(ctx: &Ctx, message: &Message) -> Result<(), Error> {
    // Many of them may be for the same person, who is then told of all of them at once.
    let doing = ("notifier", message.subject.0.code());
    let company = Company::Same { doing, about: message.fact.id };
    match hear_in(ctx, message, company).await {
        Err(error) if error.is_company() => hear_in(ctx, message, Company::Alone).await,
        heard => heard,
    }
}

async fn hear_in(ctx: &Ctx, message: &Message, company: Company) -> Result<(), Error> {
    let mut tx = ctx.store.begin_in(company).await?;
    let told = compose(ctx, &mut tx, message).await?;
    if told.is_empty() {
        return Ok(tx.rollback().await?);
    }
    let everybody: Vec<Uuid> = told.iter().flat_map(|told| told.to.iter().copied()).collect();
    // All of them at once, so that two such transactions lock them in the same order.
    let addressed = notifications::address(&mut tx, &everybody).await?;
    let Fact { machine, id, seq, .. } = &message.fact;
    let cause = format!("{machine}/{id}/{seq}");
    for told in &told {
        send(ctx, &mut tx, &addressed.only(&told.to), told, &cause).await?;
    }
    tx.commit().await?;
    Ok(())
}

async fn send(
    ctx: &Ctx,
    tx: &mut Tx,
    to: &Addressed,
    told: &Told,
    cause: &str,
) -> Result<(), Error> {
    let news = News {
        kind: told.words.kind.code(),
        cause,
        title: &told.words.title,
        body: &told.words.body,
        project_id: told.project_id,
        allocation_id: told.allocation_id,
        payment_session_id: told.payment_session_id,
        webhook_id: None,
        now: ctx.clock.now(),
    };
    let fresh = notifications::tell(tx, to, &news).await?;
    metrics::counter!("berth_notifications_total", "kind" => told.words.kind.code())
        .increment(fresh.len() as u64);
    Ok(())
}

async fn compose(ctx: &Ctx, tx: &mut Tx, message: &Message) -> Result<Vec<Told>, Error> {
    let fact = &message.fact;
    match message.subject.0 {
        Subject::ProvisioningActive => {
            of_allocation(tx, fact, Whom::Owner, |id, of| Some(words::active(id, of))).await
        }
        Subject::ProvisioningFailed => {
            of_allocation(tx, fact, Whom::Owner, |id, of| Some(words::failed(id, of))).await
        }
        Subject::RestartCompleted => {
            of_allocation(tx, fact, Whom::Owner, |id, of| Some(words::restarted(id, of))).await
        }
        Subject::RestartFailed => {
            of_allocation(tx, fact, Whom::Owner, |id, of| Some(words::restart_failed(id, of))).await
        }
        Subject::ReleasingRequested => {
            of_allocation(tx, fact, Whom::Owner, words::taken_back).await
        }
        Subject::ReleasingCompleted => of_allocation(tx, fact, Whom::Admins, words::released).await,
        Subject::ReleaseFailed => {
            of_allocation(tx, fact, Whom::Admins, |id, of| Some(words::release_failed(id, of)))
                .await
        }
        Subject::BalanceLow => of_account(ctx, tx, fact, words::low).await,
        Subject::BalanceDepleted => of_account(ctx, tx, fact, words::depleted).await,
        // Who was never told that it is used up is not told that it no longer is.
        Subject::BalanceRecovered if fact.seq == FIRST_MONEY_SEQ => Ok(Vec::new()),
        Subject::BalanceRecovered => of_account(ctx, tx, fact, |of, _| words::recovered(of)).await,
        Subject::PaymentCredited => credited(tx, fact).await,
        Subject::PaymentFailedReconcile => failed_reconcile(tx, fact).await,
        Subject::ProvisioningRequested
        | Subject::RestartRequested
        | Subject::GroupChanged
        | Subject::TaskFinished
        | Subject::NodeOnline
        | Subject::NodeOffline
        | Subject::AttachRequested
        | Subject::DetachRequested
        | Subject::StorageChanged
        | Subject::TerminalClosed => Ok(Vec::new()),
    }
}

/// Whom something that happened to an allocation concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// Whoever has it.
    Owner,
    /// And whoever answers for its project: something is stuck, or no longer is.
    Admins,
}

async fn of_allocation(
    tx: &mut Tx,
    fact: &Fact,
    whom: Whom,
    say: fn(Uuid, &OfAllocation) -> Option<Words>,
) -> Result<Vec<Told>, Error> {
    let Some(of) = about::allocation(tx, AllocationId(fact.id), fact.seq).await? else {
        return Ok(Vec::new());
    };
    let Some(words) = say(fact.id, &of) else {
        return Ok(Vec::new());
    };
    let mut to: Vec<Uuid> = of.owner.into_iter().collect();
    if whom == Whom::Admins {
        to.extend(about::admins(tx, of.project).await?);
    }
    let (project_id, allocation_id) = (Some(of.project), Some(fact.id));
    Ok(vec![Told { to, words, project_id, allocation_id, payment_session_id: None }])
}

async fn of_account(
    ctx: &Ctx,
    tx: &mut Tx,
    fact: &Fact,
    say: fn(&OfAccount, Consequences) -> Words,
) -> Result<Vec<Told>, Error> {
    if fact.seq == OPENED_SEQ {
        return Ok(Vec::new());
    }
    let Some(of) = about::account(tx, AccountId(fact.id)).await? else {
        return Ok(Vec::new());
    };
    let policies = ctx.policies();
    let then = Consequences {
        enforced: policies.billing_enforced == 1,
        grace: Duration::from_secs(u64::from(policies.billing_depletion_grace_seconds)),
    };
    let (to, words) = (of.owner.into_iter().collect(), say(&of, then));
    let (project_id, allocation_id, payment_session_id) = (None, None, None);
    Ok(vec![Told { to, words, project_id, allocation_id, payment_session_id }])
}

async fn credited(tx: &mut Tx, fact: &Fact) -> Result<Vec<Told>, Error> {
    let of = about::payment(tx, PaymentSessionId(fact.id)).await?;
    let told =
        |of: OfPayment| of_payment(fact, of.owner.into_iter().collect(), words::credited(&of));
    Ok(of.map(told).into_iter().collect())
}

/// First those who have something to do: an operator who pays is told that.
async fn failed_reconcile(tx: &mut Tx, fact: &Fact) -> Result<Vec<Told>, Error> {
    let Some(of) = about::payment(tx, PaymentSessionId(fact.id)).await? else {
        return Ok(Vec::new());
    };
    let operators = about::operators(tx).await?;
    Ok(vec![
        of_payment(fact, operators, words::failed_reconcile(fact.id, &of)),
        of_payment(fact, of.owner.into_iter().collect(), words::in_review(&of)),
    ])
}

fn of_payment(fact: &Fact, to: Vec<Uuid>, words: Words) -> Told {
    let payment_session_id = Some(fact.id);
    Told { to, words, project_id: None, allocation_id: None, payment_session_id }
}
