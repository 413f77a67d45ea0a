//! R26: the whole control plane is away, time passes, and it comes back. Nobody is lost for a silence that nobody could have
//! heard, nothing of a tenant's is touched, and what was under way ends truthfully.

use std::time::Duration;

use control::node::{admin, heartbeat};
use domain::machines::allocation::Status;
use domain::machines::node;
use testkit::{Act, House, ScriptedNode};
use uuid::Uuid;
use wire::bus::Subject;
use wire::node::{Access, TaskOutcome};

const AWAY: Duration = Duration::from_secs(3_600);

async fn house() -> House {
    let mut house = House::open().await;
    for _ in 0..2 {
        house.node("h100.slice", &[0, 0, 0, 0]).await;
    }
    runs(&house, 20, &[0, 1]).await;
    house
}

/// Everything runs for a while, with a gateway, and with those agents that are there.
async fn runs(house: &House, seconds: u64, there: &[usize]) {
    for _ in 0..seconds / 10 {
        house.ctx.clock.advance(Duration::from_secs(10));
        heartbeat::listen(&house.ctx).await.expect("it is said");
        for number in there {
            house.beat(&house.nodes()[*number]).await;
        }
        house.pass(Duration::ZERO).await;
    }
}

async fn stands(house: &House, of: &ScriptedNode) -> node::Status {
    let shown = admin::show(&house.ctx, &house.operator, of.identity.node_id.uuid()).await;
    shown.expect("it is there").status.0
}

fn provisioned() -> TaskOutcome {
    let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "tenant".to_owned() };
    TaskOutcome::Provisioned { access }
}

/// Whoever of us is back first: the workers, who find everybody's last sign of life an hour old, or the gateway.
#[tokio::test]
async fn r26_after_an_hour_without_us_everything_is_as_it_was_and_takes_requests_at_once() {
    for workers_first in [true, false] {
        let house = house().await;
        let id = house.active("h100.slice", 2).await.id;
        house.furnish(id).await;
        let (before, steps) = (house.kept(id).await, house.steps(id).await.len());
        let shown = house.show(id).await;

        house.ctx.clock.advance(AWAY);
        if !workers_first {
            heartbeat::listen(&house.ctx).await.expect("it is said");
        }
        house.pass(Duration::ZERO).await;
        for node in house.nodes() {
            assert_eq!(stands(&house, node).await, node::Status::Ready);
        }
        assert_eq!(house.show(id).await, shown, "not a word of it has changed");
        // The agents are not back yet, and what is asked for now waits for them.
        for node in house.nodes() {
            node.will(&[Act::StayAway]);
        }
        let next = house.create("h100.slice", 1).await.expect("there is room").id;
        runs(&house, 40, &[]).await;
        assert_eq!(house.status(next).await, Status::Provisioning);
        assert_eq!(stands(&house, house.first_node()).await, node::Status::Ready);
        house.nodes().iter().for_each(ScriptedNode::forget_script);
        runs(&house, 20, &[0, 1]).await;
        assert_eq!(house.status(next).await, Status::Active);
        assert_eq!((house.kept(id).await, house.steps(id).await.len()), (before, steps));
        house.close().await;
    }
}

/// The time that everybody has again is not for ever: who does not come back is silent.
#[tokio::test]
async fn r26_a_node_that_does_not_come_back_is_lost_once_it_was_listened_for_long_enough() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    house.ctx.clock.advance(AWAY);
    runs(&house, 50, &[1]).await;
    assert_eq!(stands(&house, &house.nodes()[0]).await, node::Status::Ready);
    runs(&house, 30, &[1]).await;
    assert_eq!(stands(&house, &house.nodes()[0]).await, node::Status::Offline);
    assert_eq!(stands(&house, &house.nodes()[1]).await, node::Status::Ready);
    assert_eq!(house.status(id).await, Status::Active, "it stays the tenant's");
    // A gateway that is only started again is no outage: a silence goes on.
    runs(&house, 30, &[0]).await;
    house.ctx.clock.advance(Duration::from_secs(4));
    runs(&house, 60, &[0]).await;
    assert_eq!(stands(&house, &house.nodes()[1]).await, node::Status::Offline);
    runs(&house, 20, &[0, 1]).await;
    house.close().await;
}

/// Its lease ran out while nobody could have renewed it. It is not handed out again, and its one result counts.
#[tokio::test]
async fn r26_work_that_went_on_without_us_counts_when_it_is_told() {
    let house = house().await;
    let node = &house.nodes()[0];
    house.nodes().iter().for_each(|node| node.will(&[Act::FallSilent]));
    let id = house.create("h100.slice", 2).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    house.nodes().iter().for_each(ScriptedNode::forget_script);

    house.ctx.clock.advance(Duration::from_secs(300));
    house.pass(Duration::ZERO).await;
    runs(&house, 20, &[]).await;
    let at_work = house.nodes().iter().find(|node| !node.held().is_empty()).unwrap_or(node);
    let given = at_work.take_held();
    assert_eq!(given.len(), 1, "it was handed out once");
    let answer = at_work.answer(&house.ctx, &given[0], provisioned()).await;
    assert!(answer.applied, "{answer:?}");
    runs(&house, 20, &[0, 1]).await;
    assert_eq!(house.status(id).await, Status::Active);
    assert_eq!(house.tasks(id).await[0].dispatch, 1);
    house.close().await;
}

/// A provision is under way when we go, and its machine has not answered when we are back.
async fn away_in_the_middle(house: &House) -> Uuid {
    house.nodes().iter().for_each(|node| node.will(&[Act::FallSilent]));
    let id = house.create("h100.slice", 2).await.expect("it fits").id;
    house.settle().await;
    house.nodes().iter().for_each(ScriptedNode::forget_script);
    house.ctx.clock.advance(AWAY);
    heartbeat::listen(&house.ctx).await.expect("it is said");
    id
}

/// A deadline is a promise to the user, whoever was away: it has failed, for the time and not for the node, and is cleaned up.
#[tokio::test]
async fn r26_a_provision_whose_deadline_passed_without_us_has_failed_for_the_time_it_took() {
    let house = house().await;
    let id = away_in_the_middle(&house).await;
    house.pass(Duration::ZERO).await;
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("timeout"), "the node is not to blame");
    assert_eq!(shown.active_at, None, "nothing of it is billed");
    // The agent had done it in time, and tells so when it can: too late, and it is told that.
    let at_work = house.nodes().iter().find(|node| !node.held().is_empty()).expect("somebody");
    let late = at_work.take_held().remove(0);
    let answer = at_work.answer(&house.ctx, &late, provisioned()).await;
    assert!(!answer.applied, "{answer:?}");
    runs(&house, 60, &[0, 1]).await;
    assert_eq!(house.status(id).await, Status::Failed);
    assert_eq!(house.claims(id).await, ["freed", "freed"], "what it had built is cleaned up");
    house.close().await;
}

/// The agent is heard before any worker has looked at the clock: the machine is there, and nobody has been told otherwise.
#[tokio::test]
async fn r26_a_result_that_is_in_before_the_deadline_is_looked_at_counts_whatever_the_time() {
    let house = house().await;
    let id = away_in_the_middle(&house).await;
    let at_work = house.nodes().iter().find(|node| !node.held().is_empty()).expect("somebody");
    let given = at_work.take_held().remove(0);
    assert!(at_work.answer(&house.ctx, &given, provisioned()).await.applied);
    // The word of it is lost, and the deadline is all that the run hears of.
    house.withhold(Subject::TaskFinished).await;
    house.pass(Duration::ZERO).await;
    assert_eq!(house.status(id).await, Status::Active);
    assert_eq!(house.claims(id).await, ["held", "held"]);
    house.close().await;
}
