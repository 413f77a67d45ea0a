//! `make up`, as long as there is no API: a private Postgres, one allocation walked through its life by the real writer, with
//! the answers that would have been accidents elsewhere, and where to look next.

#![expect(clippy::print_stdout, reason = "it is a tour")]

use anyhow::Context as _;
use domain::ids::{AllocationId, ClaimId, EventId, NodeId, OperationId};
use domain::machines::allocation::Event;
use domain::machines::{Node, node};
use lifecycle::{Outcome, Source};
use store::lifecycle::{Actor, Birth, Report, apply};
use store::{Options, Store, allocations, claims, nodes};

use crate::server::Server;

/// Walks the tour on a server of its own.
///
/// # Errors
/// What is missing, in a sentence that says what to do.
pub fn run() -> anyhow::Result<bool> {
    println!("Starting a private Postgres …");
    let server = Server::start()?;
    server.block_on(walk(&server.url(testkit::TEMPLATE)))?;
    println!(
        "
That is the core that everything else will stand on. To look at next:
  docs/generated/lifecycles.md   every machine as a diagram and a matrix
  ARCHITECTURE.md                how one transition travels
  make test                      all of it, on a Postgres of its own
  make prove                     100 million random events, mutation, races, a model check
"
    );
    Ok(true)
}

async fn walk(url: &str) -> anyhow::Result<()> {
    let store = Store::open(url, Options::default()).await?;
    let tour = Tour { store, id: AllocationId(testkit::new_id()) };
    let (provision, first, second) = (operation(), operation(), operation());
    println!("\nA tenant asks for a GPU:");
    tour.create(provision).await?;
    tour.say(Event::ProvisionStarted, Source::Worker, provision).await?;
    tour.say(Event::ProvisionSucceeded, Source::Worker, provision).await?;
    println!("\nThe tenant gives it back; the node can't clean it up; the tenant asks again:");
    tour.say(Event::ReleaseRequested, Source::User, first).await?;
    tour.say(Event::ReleaseExhausted, Source::Worker, first).await?;
    tour.say(Event::ReleaseRequested, Source::User, second).await?;
    println!(
        "\nNow the answer to the first clean-up arrives, late, and the provision is reported once more:"
    );
    tour.say(Event::ReleaseCompleted, Source::Worker, first).await?;
    tour.say(Event::ProvisionSucceeded, Source::Worker, provision).await?;
    println!(
        "\nSomebody without the right to it tries to have it written off; then the proof comes:"
    );
    tour.say(Event::ReleaseAbandoned, Source::User, second).await?;
    tour.say(Event::ReleaseCompleted, Source::Worker, second).await?;
    tour.tell().await?;
    tour.store.close().await;
    Ok(())
}

struct Tour {
    store: Store,
    id: AllocationId,
}

fn operation() -> OperationId {
    OperationId(testkit::new_id())
}

fn event_id() -> EventId {
    EventId(testkit::new_id())
}

impl Tour {
    async fn create(&self, provision: OperationId) -> anyhow::Result<()> {
        let worker = || Actor::new(Source::Worker, "tour");
        let birth = || Birth::new(event_id(), worker());
        let id = NodeId(testkit::new_id());
        let (name, region, sku) =
            ("rack-1-node-1".to_owned(), "north".to_owned(), "h100".to_owned());
        let mut tx = self.store.begin().await?;
        let new = nodes::NewNode { id, name, region, sku: sku.clone(), slots: 1 };
        let slots = nodes::insert(&mut tx, &new, &birth()).await?;
        let enrolled = Report::new(
            node::Event::Enrolled,
            event_id(),
            Actor::new(Source::Agent, "rack-1-node-1"),
        );
        apply::<Node>(&mut tx, id, &enrolled).await?.require().context("the node enrols")?;
        let (project_id, gpus, member_of) = (testkit::new_id(), 1, None);
        let new =
            allocations::NewAllocation { id: self.id, project_id, member_of, provision, sku, gpus };
        allocations::insert(&mut tx, &new, birth()).await?;
        let (allocation, slot) = (self.id, slots.first().copied());
        let claim = claims::NewClaim { id: ClaimId(testkit::new_id()), allocation, node: id, slot };
        claims::insert(&mut tx, &claim, &birth()).await?;
        tx.commit().await?;
        println!("  {:<20} -> requested", "born");
        Ok(())
    }

    async fn say(
        &self,
        event: Event,
        source: Source,
        operation: OperationId,
    ) -> anyhow::Result<()> {
        let report = Report::new(event, event_id(), Actor::new(source, "tour")).about(operation);
        let mut tx = self.store.begin().await?;
        let outcome = allocations::report(&mut tx, self.id, &report).await?;
        tx.commit().await?;
        let answer = match outcome {
            Outcome::Applied { from, to, .. } => format!("{from} -> {to}"),
            Outcome::Duplicate(standing) => format!("already so; it is {}", standing.status),
            Outcome::Refused(refusal) => format!("nothing changes: {refusal}"),
        };
        println!("  {event:<20} {answer}");
        Ok(())
    }

    async fn tell(&self) -> anyhow::Result<()> {
        let log = self.store.transitions("allocation", self.id.uuid()).await?;
        println!("\nWhat the log keeps for ever:");
        let began = log.first().map_or(0, |step| step.occurred_at_micros);
        for step in &log {
            let after = (step.occurred_at_micros - began) as f64 / 1_000.0;
            println!(
                "  {:>2}  {after:>8.1} ms  {:<20} {:<9} {}",
                step.seq, step.event, step.source, step.to
            );
        }
        println!("\nAnd what it refused, and why:");
        for refused in self.store.refusals("allocation", self.id.uuid()).await? {
            let why = refused.name.map_or_else(String::new, |name| format!(" ({name})"));
            println!("  {:<20} {}{why}", refused.event, refused.reason);
        }
        Ok(())
    }
}
