//! TABLE: what is pruned, and after how long. What is not in it is emptied by its own story, goes as a whole partition, or is kept
//! for ever: docs/growth.md names every table. Each sweep can be had twice at once.
//! Doors: the timers `published_messages`, `idempotency_keys` and `growth`.

use jiff::{SignedDuration, Timestamp};
use store::prune::{self, Prune};
use store::{
    Store, api_tokens, charging, findings, log, node_agents, node_tasks, notifications, outbox,
    payment_events, seen, usage_windows, workflow_runs,
};

use crate::audit_log::chain;
use crate::policies::Policies;
use crate::{Ctx, Error};

const HOURS_A_DAY: i64 = 24;

/// What is pruned, and for how many days it is kept.
type Row = (&'static Prune, fn(&Policies) -> u32);

/// The table.
const TABLE: &[Row] = &[
    (&log::PRUNE_REFUSALS, |policies| policies.history_kept_days),
    (&node_tasks::PRUNE_PHASES, |policies| policies.history_kept_days),
    (&findings::PRUNE, |policies| policies.history_kept_days),
    (&node_agents::PRUNE_CERTIFICATES, |policies| policies.history_kept_days),
    (&api_tokens::PRUNE, |policies| policies.history_kept_days),
    (&workflow_runs::PRUNE, |policies| policies.workflow_kept_days),
    (&notifications::PRUNE, |policies| policies.notification_kept_days),
    (&payment_events::PRUNE, |policies| policies.payments_events_kept_days),
];

/// Prunes everything of the table that is old by the database's clock, which has stamped it; says how many rows are gone.
///
/// # Errors
/// When the store fails; what is gone by then stays so.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let (policies, now) = (ctx.policies(), charging::now(&ctx.store).await?);
    let mut gone = 0;
    for (what, kept_days) in TABLE {
        gone += counted(what, &ctx.store, days_before(now, kept_days(&policies))).await?;
    }
    let before = days_before(now, policies.usage_windows_kept_days);
    let days = usage_windows::drop_days(&ctx.store, before).await?;
    count("usage_windows", days);
    // Whole days of it, so that there is one cut a day.
    let before = days_before(now, policies.audit_retention_days);
    let midnight = before.as_second() - before.as_second().rem_euclid(24 * 60 * 60);
    let midnight = Timestamp::from_second(midnight).unwrap_or(Timestamp::MIN);
    let entries = chain::cut(&ctx.store, midnight).await?;
    count("audit_entries", entries);
    Ok(gone + days + entries)
}

/// Prunes messages that were published, and which were seen.
///
/// # Errors
/// When the store fails; what is gone by then stays so.
pub async fn sweep_messages(ctx: &Ctx) -> Result<u64, Error> {
    let before = days_before(ctx.clock.now(), ctx.policies().outbox_kept_days);
    let published = outbox::prune(&ctx.store, before).await?;
    count("outbox_events", published);
    Ok(published + counted(&seen::PRUNE, &ctx.store, before).await?)
}

/// Prunes one table, and counts what is gone.
pub(crate) async fn counted(
    what: &Prune,
    store: &Store,
    older_than: Timestamp,
) -> Result<u64, Error> {
    let gone = prune::run(store, what, older_than).await?;
    count(what.table, gone);
    Ok(gone)
}

fn count(table: &'static str, gone: u64) {
    if gone > 0 {
        metrics::counter!("berth_pruned_total", "table" => table).increment(gone);
        tracing::debug!(table, gone, "pruned");
    }
}

fn days_before(now: Timestamp, days: u32) -> Timestamp {
    let kept = SignedDuration::from_hours(i64::from(days) * HOURS_A_DAY);
    now.checked_sub(kept).unwrap_or(Timestamp::MIN)
}
