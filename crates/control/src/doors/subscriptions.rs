//! TABLE: which consumer hears which subject, and which story that leads to. Business `if`s live in the stories.

use std::sync::Arc;

use domain::ids::{AccountId, AllocationId, EventId, NodeTaskId, OperationId};
use futures::future::BoxFuture;
use spine::bus::{Handle, HandleError, Subscription};
use spine::workflow::{Happened, NewRun};
use wire::bus::{Fact, Message, Subject};

use crate::allocation::{provision, release, restart};
use crate::billing::charge;
use crate::{Ctx, Error, notification};

/// How often a message is tried before it becomes a state.
const ATTEMPTS_MAX: i32 = 8;

/// One row of the table.
pub struct Entry {
    /// What the consumer is called.
    pub consumer: &'static str,
    /// What it does, for people.
    pub does: &'static str,
    /// What it hears.
    pub subjects: &'static [Subject],
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
        story: |ctx, message| Box::pin(start(ctx, message)),
        exhausted: Some(|ctx, message| Box::pin(never_started(ctx, message))),
    },
    Entry {
        consumer: "workflows",
        does: "tells the workflow that waits for a task how it ended",
        subjects: &[Subject::TaskFinished],
        story: |ctx, message| Box::pin(tell(ctx, message)),
        exhausted: None,
    },
    Entry {
        consumer: "billing",
        does: "takes back what an account that has nothing left does not pay for",
        subjects: &[Subject::BalanceDepleted],
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

/// A request has been committed: its workflow begins. Started twice, it is one run.
async fn start(ctx: Ctx, message: Message) -> Result<(), Error> {
    let fact = &message.fact;
    let request = EventId(fact.event_id);
    let operation = operation_of(fact)?;
    let subject = message.subject.0;
    let (id, workflow, state) = if subject == Subject::ProvisioningRequested {
        (provision::run_id(request), provision::WORKFLOW, provision::start_state(operation)?)
    } else if subject == Subject::RestartRequested {
        (restart::run_id(request), restart::WORKFLOW, restart::start_state(operation)?)
    } else {
        call_off(&ctx, AllocationId(fact.id)).await?;
        (release::run_id(request), release::WORKFLOW, release::start_state(operation)?)
    };
    ctx.workflows.start(NewRun { id, workflow, entity_id: fact.id, state }).await?;
    Ok(())
}

/// A release overtakes whatever may still be under way.
async fn call_off(ctx: &Ctx, id: AllocationId) -> Result<(), Error> {
    let overtaken = [provision::WORKFLOW, restart::WORKFLOW];
    for run in store::workflow_runs::open_of(&ctx.store, id.uuid(), &overtaken).await? {
        ctx.workflows.tell(&run, Happened::Cancelled).await?;
    }
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
