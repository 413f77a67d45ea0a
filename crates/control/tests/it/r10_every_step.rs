//! R10: every step of every workflow dies at every statement, before it and after it, and is done again: it settles, nothing
//! leaks, and it is known where it died.

// tidy: statements behind the store's back, on purpose

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::policies::Policies;
use control::{Assembled, assemble};
use domain::machines::allocation::Status;
use spine::bus::postgres::Consumer;
use spine::relay;
use store::{Options, Store};
use testkit::{Act, Death, House, Turnstile};
use tokio::sync::Notify;
use wire::node::FailureReason;

/// Longer than any lease of the dead.
const LATER: Duration = Duration::from_secs(40);
/// More passes of the spine than a workflow has.
const PASSES_MAX: usize = 12;

/// A house, and a second process that dies.
struct Stage {
    house: House,
    worker: Assembled,
    turnstile: Turnstile,
}

/// What a workflow is about: how it comes to be, and what it comes to.
struct Story {
    acts: &'static [Act],
    released: bool,
    ends: Status,
    claims: &'static str,
}

impl Stage {
    async fn open() -> Stage {
        // Nodes of a script send no heartbeat, and are not missed.
        let policies = Policies { node_offline_after_seconds: 10_000_000, ..Policies::default() };
        let mut house = House::with(policies).await;
        house.node("h100.slice", &[0; 64]).await;
        let turnstile = Turnstile::new(&house.database.url(), &Arc::new(Notify::new()));
        let store = Store::open(turnstile.url(), Options { connections_max: 1 }).await;
        let (store, clock) = (store.expect("a store"), house.ctx.clock.clone());
        let worker = assemble(store, clock, policies).await.expect("it stands");
        Stage { house, worker, turnstile }
    }

    /// The statement at which the second process died, in the pass of that number; none if it had nothing left to die at.
    async fn trial(&self, story: &Story, pass: usize, (at, how): (usize, Death)) -> Option<String> {
        let house = &self.house;
        let id = if story.released {
            let id = house.active("h100.slice", 1).await.id;
            house.first_node().will(story.acts);
            house.release(id).await.expect("asked");
            id
        } else {
            house.first_node().will(story.acts);
            house.create("h100.slice", 1).await.expect("it fits").id
        };
        for _ in 0..pass {
            self.worker.spine.step_all().await.expect("the spine moves");
            house.let_nodes_work().await;
        }
        // Messages arrive; then the engine steps what is due, and dies.
        let spine = self.worker.spine.clone();
        relay::step(&spine.store, &spine.subscriptions).await.expect("relayed");
        for subscription in &spine.subscriptions {
            let (store, clock) = (spine.store.clone(), spine.clock.clone());
            Consumer::new(store, clock, subscription.clone()).step().await.expect("delivered");
        }
        let step = async move { spine.workflows.step().await.map_err(|error| error.to_string()) };
        let (answer, asked) = self.turnstile.run(step, Some((at, how))).await;
        // Whoever takes over finds the leases of the dead at their end, and after a residue tries again.
        for _ in 0..2 {
            if house.status(id).await != story.ends || house.claims(id).await != [story.claims] {
                house.pass(LATER).await;
            }
        }
        let died_at = asked.last().cloned().unwrap_or_default();
        let place = format!("pass {pass}, statement {at} ({how:?}): {died_at}");
        assert_eq!(house.status(id).await, story.ends, "{place}");
        assert_eq!(house.claims(id).await, [story.claims], "{place}");
        assert!(house.first_node().held().is_empty(), "{place}");
        answer.is_none().then(|| {
            assert_eq!(asked.len(), at, "it died where it should: {place}");
            died_at
        })
    }

    /// Every statement of every pass; answers where it died.
    async fn every_step(self, story: &Story) -> BTreeSet<String> {
        let mut died = BTreeSet::new();
        for pass in 0..PASSES_MAX {
            let before = died.len();
            for how in [Death::Before, Death::After] {
                let mut at = 1;
                while let Some(statement) = self.trial(story, pass, (at, how)).await {
                    let words: Vec<&str> = statement.split_whitespace().take(3).collect();
                    died.insert(format!("{how:?} {pass}.{at} {}", words.join(" ")));
                    at += 1;
                }
            }
            let moved = died.len() - before;
            // Who has nothing to do still asks for it.
            if moved <= 2 {
                break;
            }
        }
        self.house.settle().await;
        self.house.close().await;
        died
    }
}

/// It really died there: in the middle of the transaction, at its commit, and before the engine noted the step.
fn assert_died_everywhere(died: &BTreeSet<String>) {
    for how in ["Before", "After"] {
        for statement in ["UPDATE workflow_runs AS", "BEGIN", "COMMIT", "UPDATE workflow_runs SET"]
        {
            let there = died.iter().any(|at| at.starts_with(how) && at.contains(statement));
            assert!(there, "it never died {how} {statement}: {died:#?}");
        }
    }
}

#[tokio::test]
async fn r10_a_provision_that_dies_at_any_statement_ends_active() {
    let story = Story { acts: &[], released: false, ends: Status::Active, claims: "held" };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_failed_provision_that_dies_at_any_statement_is_cleaned_up() {
    let acts = &[Act::Fail(FailureReason::SshNotReady)];
    let story = Story { acts, released: false, ends: Status::Failed, claims: "freed" };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_release_that_dies_at_any_statement_ends_released() {
    let acts = &[Act::LeaveResidue];
    let story = Story { acts, released: true, ends: Status::Released, claims: "freed" };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}
