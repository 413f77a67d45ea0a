//! What moves by itself, and the time that passes.

use std::time::Duration;

use super::chain;
use crate::sim::Sim;
use crate::story::{Heard, Plan};

/// No run lets more time pass: messages are kept for a day, and the checks look for them.
const PASSED_MAX: Duration = Duration::from_secs(18 * 3_600);

/// What waits to be moved. Mostly only that is looked at, because nothing comes of the rest.
const DUE: &str = "
    SELECT EXISTS (SELECT 1 FROM outbox_events WHERE published_at IS NULL),
           EXISTS (SELECT 1 FROM bus_deliveries WHERE dead_at IS NULL),
           EXISTS (
               SELECT 1 FROM workflow_runs
                WHERE done_at IS NULL AND wake_at <= 'epoch'::timestamptz + $1 * interval '1 microsecond')";

/// Whether messages wait to be published, and to be heard, and runs to be stepped.
async fn due(sim: &mut Sim<'_>) -> anyhow::Result<(bool, bool, bool)> {
    if sim.dice.chance(10) {
        return Ok((true, true, true));
    }
    let now = sim.bed.clock.now().as_microsecond();
    Ok(sqlx::query_as(DUE).bind(now).fetch_one(&mut sim.bed.sql).await?)
}

pub(super) async fn relay(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let (unpublished, _, _) = due(sim).await?;
    Ok(unpublished.then(relaying))
}

pub(super) async fn consumers(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let (_, unheard, _) = due(sim).await?;
    let chosen = sim.dice.below(64);
    Ok(unheard.then(|| consuming(chosen)))
}

pub(super) async fn workflows(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let (_, _, waiting) = due(sim).await?;
    Ok(waiting.then(stepping))
}

/// What a process does by itself when it is left alone.
pub(super) async fn everything(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let (unpublished, unheard, waiting) = due(sim).await?;
    Ok((unpublished || unheard || waiting).then(moving))
}

fn relaying() -> Plan {
    Plan::new("relay", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine::relay::step(&spine.store, &spine.subscriptions).await) }
    })
}

fn consuming(chosen: usize) -> Plan {
    Plan::new("consumer", move |assembled| {
        let spine = assembled.spine.clone();
        async move {
            let subscriptions = &spine.subscriptions;
            let subscription = subscriptions[chosen % subscriptions.len()].clone();
            let (store, clock) = (spine.store.clone(), spine.clock.clone());
            let consumer = spine::bus::Consumer::new(store, clock, subscription);
            moved(consumer.step().await)
        }
    })
}

fn stepping() -> Plan {
    Plan::new("workflows", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine.workflows.step().await) }
    })
}

fn moving() -> Plan {
    Plan::new("everything due", |assembled| {
        let spine = assembled.spine.clone();
        async move { moved(spine.step_all().await) }
    })
}

pub(super) fn timer(sim: &mut Sim<'_>) -> Option<Plan> {
    let chosen = sim.dice.below(64);
    Some(Plan::new(format!("timer {chosen}"), move |assembled| {
        // Charging goes by the clock of the database, which no seed moves: it runs when everything has come to rest.
        let mut timers = assembled.spine.timers.clone();
        timers.retain(|timer| !control::doors::BILLING.contains(&timer.name));
        async move { Heard::Moved(told(timers[chosen % timers.len()].step().await)) }
    }))
}

pub(super) fn time(sim: &mut Sim<'_>) -> Option<Plan> {
    let lengths = [1, 3, 10, 40, 65, 130, 300, 1_100, 3_600];
    let chosen = sim.dice.weighted(&[6, 6, 6, 6, 5, 5, 3, 2, 1]);
    let time = Duration::from_secs(lengths[chosen]);
    if sim.passed + time < PASSED_MAX {
        sim.passed += time;
        sim.bed.clock.advance(time);
        sim.say(format!("{} s pass", time.as_secs()));
    }
    None
}

fn moved(count: Result<usize, spine::Error>) -> Heard {
    Heard::Moved(told(count.map(|count| count as u64)))
}

fn told(count: Result<u64, spine::Error>) -> Result<u64, String> {
    count.map_err(|error| chain(&error))
}
