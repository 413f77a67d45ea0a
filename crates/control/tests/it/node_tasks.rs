//! Tasks on their way to a node: the oldest first, none that nobody waits for any more; and R24: one that its node can't take
//! ends with a reason, and the node's other work goes on.

// tidy: statements behind the store's back, on purpose

use std::time::Duration;

use control::node::{dispatch, task};
use domain::machines::allocation::Status;
use futures::FutureExt as _;
use jiff::SignedDuration;
use store::Ring;
use testkit::{Act, House, envelope_of};
use uuid::Uuid;
use wire::Coded;
use wire::node::{FailureReason, SignedTask, TaskOutcome};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await.will(&[Act::StayAway]);
    house
}

async fn queued(house: &House) -> Uuid {
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Provisioning);
    id
}

async fn claim(house: &House) -> Option<SignedTask> {
    dispatch::claim(&house.ctx, &house.first_node().identity, 1).await.expect("a claim").pop()
}

/// Identities are derived from names, so they say nothing about which came first.
#[tokio::test]
async fn tasks_are_handed_out_in_the_order_in_which_they_were_queued() {
    let house = house().await;
    let mut asked = Vec::new();
    for _ in 0..8 {
        asked.push(queued(&house).await);
    }
    let mut given = Vec::new();
    while let Some(next) = claim(&house).await {
        given.push(envelope_of(&next).allocation_id);
    }
    assert_eq!(given, asked);
    house.close().await;
}

async fn claim_up_to(house: &House, most: u16) -> Vec<Uuid> {
    let given = dispatch::claim(&house.ctx, &house.first_node().identity, most).await;
    let given = given.expect("a claim");
    given.iter().map(|task| envelope_of(task).allocation_id).collect()
}

#[tokio::test]
async fn as_many_are_handed_out_at_once_as_are_wanted_in_their_order_and_each_once() {
    let house = house().await;
    let mut asked = Vec::new();
    for _ in 0..7 {
        asked.push(queued(&house).await);
    }
    assert_eq!(claim_up_to(&house, 3).await, asked[..3]);
    // Two at once, as when a connection was lost and another took its place.
    let (one, other) = tokio::join!(claim_up_to(&house, 3), claim_up_to(&house, 3));
    let mut rest = [one, other].concat();
    rest.extend(claim_up_to(&house, 3).await);
    rest.sort_by_key(|id| asked.iter().position(|asked| asked == id));
    assert_eq!(rest, asked[3..]);
    assert!(claim_up_to(&house, 3).await.is_empty());
    house.close().await;
}

/// An agent reads only so much, and would never get what comes with too much else.
#[tokio::test]
async fn what_is_long_is_handed_out_with_little_else() {
    let house = house().await;
    let mut asked = Vec::new();
    for _ in 0..4 {
        asked.push(queued(&house).await);
    }
    let long = "UPDATE node_tasks SET params = jsonb_build_object('image', repeat('x', 2000000))";
    let long = format!("{long} WHERE allocation_id IN ('{}', '{}')", asked[1], asked[2]);
    house.database.tamper(&[long]).await;
    assert_eq!(claim_up_to(&house, 16).await, asked[..2]);
    assert_eq!(claim_up_to(&house, 16).await, asked[2..3]);
    assert_eq!(claim_up_to(&house, 16).await, asked[3..]);
    house.close().await;
}

#[tokio::test]
async fn what_rang_while_nobody_heard_it_is_rung_for_again() {
    let house = house().await;
    queued(&house).await;
    let node = house.first_node().identity.node_id;
    let bell = house.ctx.wake.on(Ring::Node(node.uuid()));
    task::ring_again(&house.ctx).await.expect("it looks");
    assert!(bell.notified().now_or_never().is_none(), "whoever was rung for may be on the way");
    let late = "UPDATE node_tasks SET created_at = created_at - interval '3 s'".to_owned();
    house.database.tamper(&[late]).await;
    task::ring_again(&house.ctx).await.expect("it looks");
    assert!(bell.notified().now_or_never().is_some());
    assert!(claim(&house).await.is_some());
    task::ring_again(&house.ctx).await.expect("it looks");
    assert!(bell.notified().now_or_never().is_none(), "it was fetched");
    house.close().await;
}

#[tokio::test]
async fn nobody_is_given_what_nobody_waits_for_any_more() {
    let house = house().await;
    let id = queued(&house).await;
    house.ctx.clock.advance(Duration::from_secs(540));
    house.beat_all().await;
    let given = claim(&house).await.expect("there is a minute left");
    let envelope = envelope_of(&given);
    let left = envelope.expires_at.duration_since(house.ctx.clock.now());
    assert!(left <= SignedDuration::from_secs(60), "it may be begun for {left:#}");
    assert!(left > SignedDuration::from_secs(50), "it may be begun for {left:#}");

    let other = queued(&house).await;
    house.ctx.clock.advance(Duration::from_secs(601));
    assert_eq!(claim(&house).await, None, "its time is up, whether or not a sweep has seen it");
    house.first_node().forget_script();
    house.beat_all().await;
    house.pass(Duration::ZERO).await;
    for id in [id, other] {
        assert_eq!(house.status(id).await, Status::Failed);
    }
    house.close().await;
}

/// What is wrong with a task, how it got so, and how the agent says so.
const POISONS: [(&str, &str, FailureReason); 3] = [
    ("an unknown kind", "kind = 'slice.vm_paint'", FailureReason::UnknownKind),
    ("an unknown version", "params = '{\"v\": 99}'", FailureReason::Malformed),
    (
        "ten megabytes",
        "params = jsonb_build_object('image', repeat('x', 10000000))",
        FailureReason::Malformed,
    ),
];

#[tokio::test]
async fn r24_a_task_that_nobody_understands_fails_its_allocation_and_no_other() {
    let house = house().await;
    let node = house.first_node();
    for (what, poison, reason) in POISONS {
        let id = queued(&house).await;
        let poison = format!("UPDATE node_tasks SET {poison} WHERE allocation_id = '{id}'");
        house.database.tamper(&[poison]).await;
        let innocent = queued(&house).await;
        let given = claim(&house).await.expect("it is handed out");
        assert_eq!(envelope_of(&given).allocation_id, id);
        let message = "as the agent says".to_owned();
        let refused = TaskOutcome::Failed { reason: Coded(reason), phase: None, message };
        assert!(node.answer(&house.ctx, &given, refused).await.applied, "{what}");
        node.forget_script();
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::Failed, "{what}");
        assert_eq!(shown.status_reason, Some(reason.to_string()), "{what}");
        assert_eq!(house.claims(id).await, ["freed"], "{what}");
        assert_eq!(house.status(innocent).await, Status::Active, "{what}");
        node.will(&[Act::StayAway]);
    }
    house.close().await;
}

/// The agent dies of one task again and again, while another of the same node is queued behind it.
#[tokio::test]
async fn r24_what_is_queued_behind_a_task_that_is_never_answered_is_done_meanwhile() {
    let house = house().await;
    let node = house.first_node();
    let poisoned = queued(&house).await;
    let innocent = queued(&house).await;
    node.forget_script();
    node.will(&[Act::FallSilent]);
    house.settle().await;
    assert_eq!(house.status(poisoned).await, Status::Provisioning);
    assert_eq!(house.status(innocent).await, Status::Active);
    node.will(&[Act::FallSilent; 2]);
    for _ in 0..3 {
        house.ctx.clock.advance(Duration::from_secs(61));
        house.beat_all().await;
        house.pass(Duration::ZERO).await;
    }
    let shown = house.show(poisoned).await;
    assert_eq!((shown.status.0, shown.status_reason.as_deref()), (Status::Failed, Some("timeout")));
    assert_eq!(house.dispatches(poisoned).await[0].2, 3, "three times, and no more");
    assert_eq!(house.status(innocent).await, Status::Active);
    house.close().await;
}
