//! The gauges of what waits: written anew by a timer, so that who looks at them asks the database nothing.

use store::deliveries::RELAY;
use store::views::gauges;

use crate::doors::subscriptions;
use crate::node::heartbeat;
use crate::{Ctx, Error};

/// Writes the gauges anew; answers how many messages wait.
///
/// # Errors
/// When the store fails.
pub(crate) async fn measure(ctx: &Ctx) -> Result<u64, Error> {
    let silent_before = heartbeat::silent_before(ctx);
    let waiting = gauges::waiting(&ctx.store, ctx.clock.now(), silent_before).await?;
    metrics::gauge!("berth_outbox_waiting").set(waiting.outbox as f64);
    metrics::gauge!("berth_outbox_lag_seconds").set(waiting.outbox_seconds);
    metrics::gauge!("berth_workflow_runs", "state" => "due").set(waiting.runs_due as f64);
    metrics::gauge!("berth_workflow_runs", "state" => "open").set(waiting.runs_open as f64);
    metrics::gauge!("berth_workflow_lag_seconds").set(waiting.runs_due_seconds);
    metrics::gauge!("berth_node_tasks", "status" => "queued").set(waiting.tasks_queued as f64);
    metrics::gauge!("berth_node_tasks", "status" => "dispatched")
        .set(waiting.tasks_dispatched as f64);
    metrics::gauge!("berth_agents_online").set(waiting.nodes_heard as f64);
    let consumers: Vec<&str> = subscriptions::consumers().chain([RELAY]).collect();
    let mut depth = 0;
    for queue in gauges::queues(&ctx.store, &consumers).await? {
        let consumer = queue.consumer;
        depth += queue.depth;
        metrics::gauge!("berth_queue_depth", "consumer" => consumer.clone())
            .set(queue.depth as f64);
        metrics::gauge!("berth_queue_age_seconds", "consumer" => consumer.clone())
            .set(queue.seconds);
        metrics::gauge!("berth_dead_letters", "consumer" => consumer).set(queue.dead as f64);
    }
    Ok(u64::try_from(depth).unwrap_or_default())
}
