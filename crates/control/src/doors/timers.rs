//! TABLE: what is swept, and how often. A sweep is a safety net: everything it finds should have been told already.

use std::sync::Arc;
use std::time::Duration;

use domain::machines::allocation::Status;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use spine::timer::Timer;
use spine::workflow::NewRun;
use store::Ring;
use store::allocations::{self, Forgotten};

use crate::account::tokens;
use crate::allocation::{clean, provision, release, restart};
use crate::allocation_group;
use crate::audit_log::chain;
use crate::billing::charge;
use crate::node::{drain, heartbeat, task};
use crate::payment::{expire, inbox};
use crate::policies::turn;
use crate::webhook::deliver;
use crate::{Ctx, Error, findings, gauges, growth, idempotency, stuck};

/// How long something may stand there before a sweep looks after it.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Every timer.
pub fn table(ctx: &Ctx) -> Vec<Timer> {
    let seconds = Duration::from_secs;
    vec![
        timer(ctx, "silent_nodes", seconds(5), |ctx| Box::pin(heartbeat::sweep_offline(ctx))),
        timer(ctx, "drained_nodes", seconds(5), |ctx| Box::pin(drain::sweep(ctx))),
        timer(ctx, "node_tasks", seconds(5), |ctx| Box::pin(task::sweep(ctx))),
        timer(ctx, "forgotten_allocations", seconds(10), |ctx| Box::pin(take_up(ctx))),
        timer(ctx, "forgotten_group_releases", seconds(10), |ctx| Box::pin(pass_on(ctx))),
        timer(ctx, "three_way_audit", seconds(30), |ctx| Box::pin(findings::sweep(ctx))),
        timer(ctx, "forgotten_cleanups", seconds(10), |ctx| Box::pin(clean::take_up(ctx))),
        timer(ctx, "charging", seconds(10), |ctx| Box::pin(charge::sweep(ctx))),
        timer(ctx, "unpaid", seconds(15), |ctx| Box::pin(charge::take_back(ctx, None))),
        timer(ctx, "idempotency_keys", seconds(60), |ctx| Box::pin(idempotency::prune(ctx))),
        timer(ctx, "token_uses", seconds(60), |ctx| Box::pin(tokens::record_uses(ctx)))
            .everywhere(),
        timer(ctx, "published_messages", seconds(60), |ctx| Box::pin(growth::sweep_messages(ctx))),
        timer(ctx, "growth", seconds(300), |ctx| Box::pin(growth::sweep(ctx))),
        timer(ctx, "audit_links", seconds(5), |ctx| Box::pin(chain::link(ctx)))
            .woken_by(Ring::AuditLog),
        timer(ctx, "webhook_deliveries", seconds(5), |ctx| Box::pin(deliver::sweep(ctx)))
            .woken_by(Ring::Webhooks),
        timer(ctx, "payment_events", seconds(5), |ctx| Box::pin(inbox::sweep(ctx)))
            .woken_by(Ring::PaymentEvents),
        timer(ctx, "payment_sessions", seconds(60), |ctx| Box::pin(expire::sweep(ctx))),
        timer(ctx, "stuck", seconds(10), |ctx| Box::pin(stuck::measure(ctx))),
        timer(ctx, "gauges", seconds(15), |ctx| Box::pin(gauges::measure(ctx))),
        timer(ctx, "policies", seconds(5), |ctx| Box::pin(turn::refresh(ctx)))
            .woken_by(Ring::Policies)
            .everywhere(),
    ]
}

type Sweep = for<'a> fn(&'a Ctx) -> BoxFuture<'a, Result<u64, Error>>;

fn timer(ctx: &Ctx, name: &'static str, period: Duration, sweep: Sweep) -> Timer {
    let ctx = ctx.clone();
    let step =
        move || -> BoxFuture<'static, Result<u64, Box<dyn std::error::Error + Send + Sync>>> {
            let ctx = ctx.clone();
            Box::pin(async move { Ok(sweep(&ctx).await?) })
        };
    Timer { name, period, step: Arc::new(step), woken_by: None, everywhere: false }
}

/// An allocation that waits for a worker while nobody is at it gets a new run: the steps find out how far it is.
async fn take_up(ctx: &Ctx) -> Result<u64, Error> {
    let before = ctx.clock.now().checked_sub(FORGOTTEN_AFTER).unwrap_or_default();
    let mut tx = ctx.store.begin().await?;
    let forgotten = allocations::forgotten(&mut tx, before).await?;
    tx.rollback().await?;
    let mut taken_up = 0;
    for allocation in forgotten {
        let Some(run) = run_for(&allocation)? else {
            continue;
        };
        tracing::warn!(allocation_id = %allocation.id, run = run.id, "nobody was at it: taken up again");
        taken_up += u64::from(ctx.workflows.start(run).await?);
    }
    Ok(taken_up)
}

/// The release of a group that was noted and never passed on to its members.
async fn pass_on(ctx: &Ctx) -> Result<u64, Error> {
    let before = ctx.clock.now().checked_sub(FORGOTTEN_AFTER).unwrap_or_default();
    allocation_group::release::take_up(ctx, before).await
}

fn run_for(allocation: &Forgotten) -> Result<Option<NewRun>, Error> {
    let (workflow, state) = match allocation.status {
        Status::Requested | Status::Provisioning => {
            (provision::WORKFLOW, provision::start_state(allocation.operation)?)
        }
        Status::Restarting => (restart::WORKFLOW, restart::start_state(allocation.operation)?),
        Status::Releasing => (release::WORKFLOW, release::start_state(allocation.operation)?),
        Status::Active
        | Status::RestartFailed
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => return Ok(None),
    };
    // Named by what there was before it: two who sweep at once start one run, and one that ended with nothing done is
    // followed by another.
    let Forgotten { operation, seq, runs, .. } = allocation;
    let id = format!("{workflow}-again-{operation}-{seq}-{runs}");
    Ok(Some(NewRun { id, workflow, entity_id: allocation.id.uuid(), state }))
}
