//! TABLE: which consumer hears which subject, and which story that leads to. Business `if`s live in the stories.

use std::sync::Arc;

use domain::ids::{AccountId, AllocationId, EventId, NodeTaskId, OperationId};
use futures::future::BoxFuture;
use spine::bus::{Handle, HandleError, Subscription};
use spine::workflow::Happened;
use store::lifecycle::Heard;
use wire::bus::{Fact, Message, Subject};

use crate::allocation::{provision, release, restart};
use crate::billing::charge;
use crate::{Ctx, Error, notification};

/// How often a message is tried before it becomes a state.
const ATTEMPTS_MAX: i32 = 8;

/// Of those that have nothing to do with each other.
const MANY: usize = 64;
/// Of those that often meet at the same row.
const FEW: usize = 3;

/// One row of the table.
pub struct Entry {
    /// What the consumer is called.
    pub consumer: &'static str,
    /// What it does, for people.
    pub does: &'static str,
    /// What it hears.
    pub subjects: &'static [Subject],
    /// How many messages it has in hand at once.
    at_once: usize,
    story: Story,
    exhausted: Option<Story>,
}

/// Every subscription.
pub const TABLE: &[Entry] = &[
    Entry {
        consumer: "provisioner",
        does: "starts the workflow that a request asks for",
        subjects: &[
            Subject::ProvisioningRequested,
            Subject::RestartRequested,
            Subject::ReleasingRequested,
        ],
        at_once: MANY,
        story: |ctx, message| Box::pin(start(ctx, message)),
        exhausted: Some(|ctx, message| Box::pin(never_started(ctx, message))),
    },
    Entry {
        consumer: "workflows",
        does: "tells the workflow that waits for a task how it ended",
        subjects: &[Subject::TaskFinished],
        at_once: MANY,
        story: |ctx, message| Box::pin(tell(ctx, message)),
        exhausted: None,
    },
    Entry {
        consumer: "billing",
        does: "takes back what an account that has nothing left does not pay for",
        subjects: &[Subject::BalanceDepleted],
        at_once: FEW,
        story: |ctx, message| Box::pin(take_back(ctx, message)),
        exhausted: None,
    },
    Entry {
        consumer: "notifier",
        does: "tells people what concerns them, and their webhooks",
        subjects: &[
            Subject::ProvisioningActive,
            Subject::ProvisioningFailed,
            Subject::RestartCompleted,
            Subject::RestartFailed,
            Subject::ReleasingRequested,
            Subject::ReleasingCompleted,
            Subject::ReleaseFailed,
            Subject::BalanceLow,
            Subject::BalanceDepleted,
            Subject::BalanceRecovered,
            Subject::PaymentCredited,
            Subject::PaymentFailedReconcile,
        ],
        // What is told to one person is numbered under their lock: many of them are told in one transaction, and not one after the other.
        at_once: MANY,
        story: |ctx, message| {
            Box::pin(async move { notification::tell::hear(&ctx, &message).await })
        },
        exhausted: None,
    },
];

/// The table, as the bus takes it.
pub fn table(ctx: &Ctx) -> Vec<Subscription> {
    let subscription = |entry: &Entry| Subscription {
        consumer: entry.consumer,
        subjects: entry.subjects,
        handle: handle(ctx, entry.story),
        exhausted: entry.exhausted.map(|story| handle(ctx, story)),
        attempts_max: ATTEMPTS_MAX,
        at_once: entry.at_once,
    };
    TABLE.iter().map(subscription).collect()
}

/// The name of every consumer.
pub fn consumers() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|entry| entry.consumer)
}

type Story = fn(Ctx, Message) -> BoxFuture<'static, Result<(), Error>>;

fn handle(ctx: &Ctx, story: Story) -> Handle {
    let ctx = ctx.clone();
    Arc::new(move |message| {
        let told = story(ctx.clone(), message);
        Box::pin(async move { told.await.map_err(|error| HandleError { reason: error.chain() }) })
    })
}

/// Who hears a request, and need not be told of it by whoever starts the run of it in the transaction that makes it true.
pub(crate) fn provisioner(subject: Subject) -> Heard {
    heard("provisioner", subject)
}

/// Who hears how a task ended, and need not be told of it by whoever tells the run in the transaction that ends the task.
pub(crate) fn workflows() -> Heard {
    heard("workflows", Subject::TaskFinished)
}

fn heard(by: &'static str, subject: Subject) -> Heard {
    let others = TABLE.iter().filter(|entry| entry.consumer != by);
    let alone = !others.into_iter().any(|entry| entry.subjects.contains(&subject));
    Heard { by, alone }
}

/// A request has been committed, by somebody who did not start its workflow: it begins. Started twice, it is one run.
async fn start(ctx: Ctx, message: Message) -> Result<(), Error> {
    let fact = &message.fact;
    let (id, request, operation) =
        (AllocationId(fact.id), EventId(fact.event_id), operation_of(fact)?);
    let subject = message.subject.0;
    let run = if subject == Subject::ProvisioningRequested {
        provision::run_of(id, request, operation)?
    } else if subject == Subject::RestartRequested {
        restart::run_of(id, request, operation)?
    } else {
        let mut tx = ctx.store.begin().await?;
        release::overtake(&mut tx, id).await?;
        ctx.workflows.start_in(&mut tx, &release::run_of(id, request, operation)?).await?;
        return Ok(tx.commit().await?);
    };
    ctx.workflows.start(run).await?;
    Ok(())
}

/// No worker could take a request: that too is a state, and not a line in a log.
async fn never_started(ctx: Ctx, message: Message) -> Result<(), Error> {
    let fact = &message.fact;
    let (id, operation) = (AllocationId(fact.id), operation_of(fact)?);
    if message.subject.0 == Subject::ProvisioningRequested {
        provision::exhausted(&ctx, id, operation).await
    } else if message.subject.0 == Subject::RestartRequested {
        restart::exhausted(&ctx, id, operation).await
    } else {
        release::exhausted(&ctx, id, operation).await
    }
}

/// A task has ended: whoever waits for it is told.
async fn tell(ctx: Ctx, message: Message) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    let task = store::node_tasks::find(&mut tx, NodeTaskId(message.fact.id)).await?;
    tx.rollback().await?;
    if let Some(run) = task.and_then(|task| task.run) {
        ctx.workflows.tell(&run, Happened::TaskFinished { task_id: message.fact.id }).await?;
    }
    Ok(())
}

/// An account has nothing left: what it has is taken back, unless there is a grace.
async fn take_back(ctx: Ctx, message: Message) -> Result<(), Error> {
    charge::take_back(&ctx, Some(AccountId(message.fact.id))).await.map(drop)
}

fn operation_of(fact: &Fact) -> Result<OperationId, Error> {
    let missing = || Error::Broken(format!("the message about {} names no operation", fact.id));
    fact.operation_id.map(OperationId).ok_or_else(missing)
}
