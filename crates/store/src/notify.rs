//! Rings between processes: one channel of the database, to which each process sends what was rung in it, many rings at a
//! time. Nobody relies on it: what is lost is found by a sweep.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgListener, PgPoolOptions};
use uuid::Uuid;

use crate::{Error, Ring, Store};

/// The channel.
const CHANNEL: &str = "berth_rings";
/// How much goes into one notification; Postgres takes less than 8000 bytes.
const PAYLOAD_BYTES_MAX: usize = 7_000;
/// How many notifications are sent at once. If that is not enough, everybody is woken instead.
const PAYLOADS_MAX: usize = 8;

/// What was rung.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rung {
    /// These.
    These(Vec<Ring>),
    /// Perhaps everything: more than can be said, or it is not known what was missed.
    Everything,
}

/// A notification as it travels.
#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    from: Uuid,
    /// None is everything.
    rings: Option<Vec<String>>,
}

/// The end of the channel that one process speaks and listens at. It does not hear itself.
pub struct Line {
    store: Store,
    me: Uuid,
}

impl Line {
    /// A line on the database of `store`.
    #[expect(clippy::disallowed_methods, reason = "it only tells one process from another")]
    pub fn new(store: &Store) -> Line {
        Line { store: store.clone(), me: Uuid::now_v7() }
    }

    /// Tells the other processes, in one short statement.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn send(&self, rings: &HashSet<Ring>) -> Result<(), Error> {
        sqlx::query(
            "SELECT pg_notify($1, payload)
               FROM unnest($2::text[]) AS payload",
        )
        .bind(CHANNEL)
        .bind(payloads(self.me, rings))
        .execute(self.store.pool())
        .await?;
        Ok(())
    }

    /// Begins to listen, on a connection of its own that comes from no pool.
    ///
    /// # Errors
    /// When the database can't be reached.
    pub async fn listen(&self) -> Result<Ear, Error> {
        let options = self.store.pool().connect_options();
        let own = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let mut listener =
            PgListener::connect_with(&own.connect_lazy_with((*options).clone())).await?;
        listener.listen(CHANNEL).await?;
        Ok(Ear { listener, me: self.me })
    }
}

/// Somebody who listens.
pub struct Ear {
    listener: PgListener,
    me: Uuid,
}

impl Ear {
    /// Waits for what the other processes have rung.
    ///
    /// # Errors
    /// When the connection is lost and can't be had again.
    pub async fn hear(&mut self) -> Result<Rung, Error> {
        loop {
            let Some(heard) = self.listener.try_recv().await? else {
                return Ok(Rung::Everything);
            };
            match serde_json::from_str::<Payload>(heard.payload()) {
                Ok(payload) if payload.from == self.me => {}
                Ok(Payload { rings: Some(words), .. }) => {
                    return Ok(Rung::These(words.iter().filter_map(|word| ring(word)).collect()));
                }
                Ok(Payload { rings: None, .. }) => return Ok(Rung::Everything),
                // A process of another version: what it means is not known.
                Err(_) => return Ok(Rung::Everything),
            }
        }
    }
}

fn word(ring: &Ring) -> String {
    match ring {
        Ring::Outbox => "outbox".to_owned(),
        Ring::Consumer(name) => format!("consumer {name}"),
        Ring::Workflows => "workflows".to_owned(),
        Ring::Node(id) => format!("node {id}"),
        Ring::Allocation(id) => format!("allocation {id}"),
        Ring::AuditLog => "audit_log".to_owned(),
        Ring::Policies => "policies".to_owned(),
        Ring::User(id) => format!("user {id}"),
        Ring::Webhooks => "webhooks".to_owned(),
        Ring::Payment(id) => format!("payment {id}"),
        Ring::PaymentEvents => "payment_events".to_owned(),
    }
}

/// The reverse of [`word`]. A word of a newer version is nobody's here.
fn ring(word: &str) -> Option<Ring> {
    match word.split_once(' ') {
        None if word == "outbox" => Some(Ring::Outbox),
        None if word == "workflows" => Some(Ring::Workflows),
        None if word == "audit_log" => Some(Ring::AuditLog),
        None if word == "policies" => Some(Ring::Policies),
        None if word == "webhooks" => Some(Ring::Webhooks),
        Some(("consumer", name)) => Some(Ring::Consumer(name.to_owned())),
        Some(("node", id)) => id.parse().ok().map(Ring::Node),
        Some(("allocation", id)) => id.parse().ok().map(Ring::Allocation),
        Some(("user", id)) => id.parse().ok().map(Ring::User),
        None if word == "payment_events" => Some(Ring::PaymentEvents),
        Some(("payment", id)) => id.parse().ok().map(Ring::Payment),
        None | Some(_) => None,
    }
}

/// The notifications that say all of it.
fn payloads(from: Uuid, rings: &HashSet<Ring>) -> Vec<String> {
    let everything = || vec![written(&Payload { from, rings: None })];
    let mut payloads = Vec::new();
    let mut chunk: Vec<String> = Vec::new();
    // The sender, the names of the fields and the signs around them.
    const AROUND: usize = 80;
    let mut bytes = AROUND;
    for word in rings.iter().map(word) {
        // Quotes and a comma; a name that needs escapes is none of ours, but would still fit into what Postgres takes.
        let more = word.len() + 3;
        if bytes + more > PAYLOAD_BYTES_MAX {
            let full = std::mem::take(&mut chunk);
            payloads.push(written(&Payload { from, rings: Some(full) }));
            bytes = AROUND;
        }
        if payloads.len() >= PAYLOADS_MAX || AROUND + more > PAYLOAD_BYTES_MAX {
            return everything();
        }
        bytes += more;
        chunk.push(word);
    }
    payloads.push(written(&Payload { from, rings: Some(chunk) }));
    payloads
}

fn written(payload: &Payload) -> String {
    serde_json::to_string(payload).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uuid::Uuid;

    use super::{PAYLOAD_BYTES_MAX, PAYLOADS_MAX, Payload, payloads, ring, word};
    use crate::Ring;

    fn nodes(count: u128) -> HashSet<Ring> {
        (0..count).map(|number| Ring::Node(Uuid::from_u128(number))).collect()
    }

    fn said(payloads: &[String]) -> Option<HashSet<Ring>> {
        let mut rings = HashSet::new();
        for payload in payloads {
            let payload: Payload = serde_json::from_str(payload).expect("it is ours");
            rings.extend(payload.rings?.iter().filter_map(|word| ring(word)));
        }
        Some(rings)
    }

    #[test]
    fn every_ring_is_understood_as_it_was_meant() {
        let rings = [
            Ring::Outbox,
            Ring::Workflows,
            Ring::Consumer("a b".into()),
            Ring::Node(Uuid::max()),
            Ring::Allocation(Uuid::max()),
            Ring::AuditLog,
            Ring::Policies,
            Ring::User(Uuid::max()),
            Ring::Webhooks,
            Ring::Payment(Uuid::max()),
            Ring::PaymentEvents,
        ];
        for each in rings {
            assert_eq!(ring(&word(&each)), Some(each));
        }
        assert_eq!(ring("of a later version"), None);
    }

    #[test]
    fn many_rings_are_a_few_notifications_that_postgres_takes_and_too_many_are_everything() {
        for count in [0, 1, 100, 1_000] {
            let payloads = payloads(Uuid::max(), &nodes(count));
            assert!(payloads.len() <= PAYLOADS_MAX);
            assert!(payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES_MAX));
            assert_eq!(said(&payloads), Some(nodes(count)));
        }
        for many in [nodes(5_000), HashSet::from([Ring::Consumer("x".repeat(8_000))])] {
            let payloads = payloads(Uuid::max(), &many);
            assert_eq!((payloads.len(), said(&payloads)), (1, None), "everything");
        }
    }
}
