//! The relay: facts leave the outbox for the consumers that hear them, in order for every row, however many relays there
//! are.

use std::sync::Arc;

use lifecycle::Code as _;
use store::outbox::{self, Hearer, Relayed};
use store::{Ring, Store, fall};
use tokio_util::sync::CancellationToken;
use trace::Past;

use crate::bus::{Broker, Subscription};
use crate::pump::{SWEEP, around, tell};
use crate::{Error, Wake};

/// Moves one batch; answers how many facts have left the outbox.
///
/// # Errors
/// When the store fails; nothing has moved then.
pub async fn step(store: &Store, subscriptions: &[Subscription]) -> Result<usize, Error> {
    Ok(advance(store, subscriptions).await?.published)
}

/// [`step`], and a broker tells of it.
///
/// # Errors
/// When the store fails; nothing has moved then.
pub async fn step_telling(
    store: &Store,
    subscriptions: &[Subscription],
    broker: &dyn Broker,
) -> Result<usize, Error> {
    let Relayed { moved, published, .. } = advance(store, subscriptions).await?;
    broker.announce(moved);
    Ok(published)
}

async fn advance(store: &Store, subscriptions: &[Subscription]) -> Result<Relayed, Error> {
    let hearers: Vec<Hearer<'_>> = subscriptions
        .iter()
        .map(|each| Hearer { consumer: each.consumer, subjects: each.subjects })
        .collect();
    let relayed = outbox::relay(store, &hearers).await?;
    told(&relayed);
    if relayed.unreadable > 0 {
        let unreadable = u64::try_from(relayed.unreadable).unwrap_or(u64::MAX);
        metrics::counter!("berth_bus_dead_total", "consumer" => store::deliveries::RELAY)
            .increment(unreadable);
    }
    Ok(relayed)
}

/// How long each fact has waited, in its trace.
fn told(relayed: &Relayed) {
    if !trace::is_on() {
        return;
    }
    for moved in &relayed.moved {
        let Some(traceparent) = &moved.traceparent else { continue };
        let (subject, fact) = (moved.subject.code(), &moved.fact);
        trace::past(Past {
            name: format!("relay: {subject}"),
            traceparent,
            since: fact.occurred_at.into(),
            attributes: vec![
                ("subject", subject.to_owned()),
                ("event_id", moved.event_id.to_string()),
                ("machine", fact.machine.clone()),
                ("entity_id", fact.id.to_string()),
            ],
        });
    }
}

/// Moves what there is, as soon as it is there, until stopped.
pub async fn run(
    store: Store,
    subscriptions: Vec<Subscription>,
    broker: Option<Arc<dyn Broker>>,
    (wake, stop): (Wake, CancellationToken),
) {
    let bell = wake.on(Ring::Outbox);
    while !stop.is_cancelled() {
        let stepped = match &broker {
            Some(broker) => step_telling(&store, &subscriptions, broker.as_ref()).await,
            None => step(&store, &subscriptions).await,
        };
        let sweep = match stepped {
            Ok(moved) => {
                fall::over();
                // What came meanwhile has rung.
                if i64::try_from(moved).is_ok_and(|moved| moved >= outbox::BATCH) {
                    continue;
                }
                SWEEP
            }
            Err(error) => {
                tell(&error, "the relay could not move facts");
                around(SWEEP)
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            _ = tokio::time::timeout(sweep, bell.notified()) => {}
        }
    }
}
