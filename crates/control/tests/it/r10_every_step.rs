//! R10: every step of every workflow dies at every statement, before it and after it, and is done again: it settles, nothing
//! leaks, and it is known where it died.

// tidy: statements behind the store's back, on purpose

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use control::policies::Policies;
use control::{Assembled, allocation_group as group, assemble};
use domain::ids::AllocationGroupId;
use domain::machines::allocation::Status;
use spine::bus::Consumer;
use spine::relay;
use store::{Options, Store};
use testkit::{Act, Death, House, Turnstile};
use tokio::sync::Notify;
use uuid::Uuid;
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
    /// An allocation that is active.
    kept: Uuid,
}

/// How a workflow comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// Somebody asks for GPUs.
    Create,
    /// They give them back.
    Release,
    /// They want it restarted. One allocation goes through all trials, whatever the one before has left of it.
    Restart,
    /// Somebody asks for two at once.
    GroupCreate,
    /// They give both back.
    GroupRelease,
}

/// What a workflow is about: how it comes to be, and what it comes to.
struct Story {
    opening: Opening,
    acts: &'static [Act],
    ends: Status,
    claims: &'static str,
    /// Which of the passes, and every which of their statements, unless all are asked for.
    looks: (usize, usize),
}

/// Every statement of every pass.
const ALL: (usize, usize) = (PASSES_MAX, 1);

impl Story {
    /// `BERTH_R10_ALL=1` has every story die at every statement, which takes minutes.
    fn looks(&self) -> (usize, usize) {
        if std::env::var_os("BERTH_R10_ALL").is_some() { ALL } else { self.looks }
    }
}

/// What a trial is about: its allocations, and their group.
struct Subject {
    ids: Vec<Uuid>,
    group: Option<AllocationGroupId>,
}

impl Stage {
    async fn open() -> Stage {
        // Nodes of a script send no heartbeat, and are not missed.
        let policies = Policies { node_offline_after_seconds: 10_000_000, ..Policies::default() };
        let mut house = House::with(policies).await;
        house.node("h100.slice", &[0; 64]).await;
        let turnstile = Turnstile::new(&house.database.url(), &Arc::new(Notify::new()));
        let store =
            Store::open(turnstile.url(), Options { connections_max: 1, ..Options::default() })
                .await;
        let (store, clock) = (store.expect("a store"), house.ctx.clock.clone());
        let worker = assemble(store, clock, policies).await.expect("it stands");
        let kept = house.active("h100.slice", 1).await.id;
        Stage { house, worker, turnstile, kept }
    }

    /// Brings it about, up to where the workflow begins.
    async fn begin(&self, story: &Story) -> Subject {
        let house = &self.house;
        let alone = |id| Subject { ids: vec![id], group: None };
        match story.opening {
            Opening::Create => {
                house.first_node().will(story.acts);
                alone(house.create("h100.slice", 1).await.expect("it fits").id)
            }
            Opening::Release => {
                let id = house.active("h100.slice", 1).await.id;
                house.first_node().will(story.acts);
                house.release(id).await.expect("asked");
                alone(id)
            }
            Opening::Restart => {
                house.first_node().will(story.acts);
                house.restart(self.kept).await.expect("asked");
                alone(self.kept)
            }
            Opening::GroupCreate => {
                house.first_node().will(story.acts);
                self.group().await
            }
            Opening::GroupRelease => {
                let subject = self.group().await;
                house.settle().await;
                house.first_node().will(story.acts);
                let key = house.key("release_allocation_group");
                let id = subject.group.expect("it is one");
                group::release::request(&house.ctx, &house.tenant, id, Some(&key))
                    .await
                    .expect("asked");
                subject
            }
        }
    }

    async fn group(&self) -> Subject {
        let group = self.house.group("h100.slice", &[1, 1]).await.expect("it fits");
        let ids = group.members.iter().map(|member| member.id).collect();
        Subject { ids, group: Some(AllocationGroupId(group.id)) }
    }

    /// Whether it has come to what it should, and nothing of it is left to do.
    async fn has_ended(&self, story: &Story, subject: &Subject) -> bool {
        for id in &subject.ids {
            let claims = self.house.claims(*id).await;
            if self.house.status(*id).await != story.ends || claims != [story.claims] {
                return false;
            }
        }
        let Some(group) = subject.group else {
            return true;
        };
        let (ctx, tenant) = (&self.house.ctx, &self.house.tenant);
        let shown = group::view::show(ctx, tenant, group).await.expect("it is theirs");
        shown.status.to_string() == story.ends.to_string()
    }

    /// The statement at which the second process died, in the pass of that number; none if it had nothing left to die at.
    async fn trial(&self, story: &Story, pass: usize, (at, how): (usize, Death)) -> Option<String> {
        let house = &self.house;
        let subject = self.begin(story).await;
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
            if !self.has_ended(story, &subject).await {
                house.pass(LATER).await;
            }
        }
        let died_at = asked.last().cloned().unwrap_or_default();
        let place = format!("pass {pass}, statement {at} ({how:?}): {died_at}");
        assert!(self.has_ended(story, &subject).await, "{place}");
        assert!(house.first_node().held().is_empty(), "{place}");
        house.first_node().forget_script();
        // There is room for the next one.
        if story.opening == Opening::GroupCreate {
            for id in subject.ids {
                house.release(id).await.expect("asked");
            }
            house.settle().await;
        }
        answer.is_none().then(|| {
            assert_eq!(asked.len(), at, "it died where it should: {place}");
            died_at
        })
    }

    /// Every statement of every pass; answers where it died.
    async fn every_step(self, story: &Story) -> BTreeSet<String> {
        let mut died = BTreeSet::new();
        let (passes, stride) = story.looks();
        for pass in 0..passes {
            let before = died.len();
            for how in [Death::Before, Death::After] {
                // Another first one in every pass, so that it is not always the same that are left out.
                let mut at = 1 + pass % stride;
                while let Some(statement) = self.trial(story, pass, (at, how)).await {
                    let words: Vec<&str> = statement.split_whitespace().take(3).collect();
                    died.insert(format!("{how:?} {pass}.{at} {}", words.join(" ")));
                    at += stride;
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
        for statement in ["WITH due AS", "BEGIN", "COMMIT", "UPDATE workflow_runs AS"] {
            let there = died.iter().any(|at| at.starts_with(how) && at.contains(statement));
            assert!(there, "it never died {how} {statement}: {died:#?}");
        }
    }
}

#[tokio::test]
async fn r10_a_provision_that_dies_at_any_statement_ends_active() {
    let story = Story {
        opening: Opening::Create,
        acts: &[],
        ends: Status::Active,
        claims: "held",
        looks: ALL,
    };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_failed_provision_that_dies_at_any_statement_is_cleaned_up() {
    let acts = &[Act::Fail(FailureReason::SshNotReady)];
    let story =
        Story { opening: Opening::Create, acts, ends: Status::Failed, claims: "freed", looks: ALL };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_release_that_dies_at_any_statement_ends_released() {
    let acts = &[Act::LeaveResidue];
    let story = Story {
        opening: Opening::Release,
        acts,
        ends: Status::Released,
        claims: "freed",
        looks: ALL,
    };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_restart_that_dies_at_any_statement_ends_active() {
    let opening = Opening::Restart;
    let story = Story { opening, acts: &[], ends: Status::Active, claims: "held", looks: ALL };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_failed_restart_that_dies_at_any_statement_ends_failed() {
    let (opening, acts) = (Opening::Restart, &[Act::KeepBoot]);
    let story = Story { opening, acts, ends: Status::RestartFailed, claims: "held", looks: ALL };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}

#[tokio::test]
async fn r10_a_group_that_dies_at_any_statement_ends_active() {
    // Both members are begun in the first pass and settled in the second.
    let (opening, looks) = (Opening::GroupCreate, (2, 4));
    let story = Story { opening, acts: &[], ends: Status::Active, claims: "held", looks };
    let died = Stage::open().await.every_step(&story).await;
    assert!(died.len() >= 20, "{died:#?}");
}

#[tokio::test]
async fn r10_a_release_of_a_group_that_dies_at_any_statement_ends_released() {
    // The first pass is the group's own; after that each member is released like any other.
    let (opening, looks) = (Opening::GroupRelease, (1, 1));
    let story = Story { opening, acts: &[], ends: Status::Released, claims: "freed", looks };
    assert_died_everywhere(&Stage::open().await.every_step(&story).await);
}
