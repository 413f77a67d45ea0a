//! Nodes that leave the fleet: drained, in maintenance, retired, cut off.

use std::time::Duration;

use control::Error;
use control::node::{admin, drain};
use domain::machines::allocation::Status;
use domain::machines::node;
use testkit::{Act, House};
use uuid::Uuid;
use wire::http::admin::{Because, Node};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    house
}

fn because(reason: &str) -> Because {
    Because { reason: reason.to_owned() }
}

fn node_of(house: &House) -> Uuid {
    house.first_node().identity.node_id.uuid()
}

async fn shown(house: &House) -> Node {
    admin::show(&house.ctx, &house.operator, node_of(house)).await.expect("a node")
}

async fn refused(
    answer: impl Future<Output = Result<control::idempotency::Answer<Node>, Error>>,
) -> String {
    match answer.await {
        Err(Error::Conflict(words)) => words,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_node_that_is_drained_takes_nothing_new_and_rests_when_it_is_empty() {
    let house = house().await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, node_of(&house));
    let id = house.active("h100.slice", 2).await.id;
    let why = because("a fan is failing");
    let draining = drain::drain(ctx, operator, node, &why, None).await.expect("draining").body;
    assert_eq!(draining.status.0, node::Status::Draining);
    assert_eq!(draining.reason.as_deref(), Some("a fan is failing"));
    assert!(matches!(house.create("h100.slice", 1).await, Err(Error::SkuUnavailable { .. })));
    let early = refused(drain::resume(ctx, operator, node, &because("ok"), None)).await;
    assert!(early.contains(&format!("allocation {id} (held)")), "{early}");
    let early = refused(drain::retire(ctx, operator, node, &because("sold"), None)).await;
    assert!(early.contains(&format!("allocation {id} (held)")), "{early}");
    assert!(early.ends_with("on it: retire it when it is empty"), "{early}");
    assert_eq!(early.matches("allocation").count(), 1, "each is named once: {early}");
    house.pass(Duration::from_secs(1)).await;
    assert_eq!(shown(&house).await.status.0, node::Status::Draining);

    house.release(id).await.expect("asked");
    house.settle().await;
    house.pass(Duration::from_secs(5)).await;
    assert_eq!(shown(&house).await.status.0, node::Status::Maintenance);
    assert!(matches!(house.create("h100.slice", 1).await, Err(Error::SkuUnavailable { .. })));
    house.beat_all().await;
    drain::resume(ctx, operator, node, &because("replaced"), None).await.expect("resumed");
    assert_eq!(shown(&house).await.reason, None);
    house.active("h100.slice", 4).await;
    for action in ["node.drain", "node.resume", "node.retire"] {
        let entries = house.entries(action).await;
        assert!(entries.iter().all(|(_, reason)| reason.is_some()), "{action}: {entries:?}");
    }
    house.close().await;
}

/// The machine's table keeps a draining node draining, whether it is heard of or not.
#[tokio::test]
async fn a_draining_node_that_falls_silent_and_comes_back_is_still_draining() {
    let house = house().await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, node_of(&house));
    let id = house.active("h100.slice", 1).await.id;
    drain::drain(ctx, operator, node, &because("move"), None).await.expect("draining");
    house.pass(Duration::from_secs(120)).await;
    assert_eq!(shown(&house).await.status.0, node::Status::Draining);
    house.beat_all().await;
    assert_eq!(shown(&house).await.status.0, node::Status::Draining);
    house.release(id).await.expect("asked");
    house.settle().await;
    house.pass(Duration::from_secs(120)).await;
    assert_eq!(shown(&house).await.status.0, node::Status::Maintenance);
    let silent = refused(drain::resume(ctx, operator, node, &because("moved"), None)).await;
    assert!(silent.contains("not heard of"), "{silent}");
    house.beat_all().await;
    drain::resume(ctx, operator, node, &because("moved"), None).await.expect("resumed");
    house.close().await;
}

#[tokio::test]
async fn an_empty_node_is_drained_at_once_and_retired_for_good() {
    let house = house().await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, node_of(&house));
    let mute = drain::drain(ctx, operator, node, &because("  "), None).await;
    assert!(matches!(mute, Err(Error::Invalid(_))), "{mute:?}");
    let tenant = drain::drain(ctx, &house.tenant, node, &because("mine"), None).await;
    assert!(matches!(tenant, Err(Error::Forbidden(_))), "{tenant:?}");
    let nobody = drain::retire(ctx, operator, Uuid::nil(), &because("x"), None).await;
    assert!(matches!(nobody, Err(Error::NotFound(_))), "{nobody:?}");
    let drained = drain::drain(ctx, operator, node, &because("old"), None).await.expect("drained");
    assert_eq!(drained.body.status.0, node::Status::Maintenance);
    let again = refused(drain::drain(ctx, operator, node, &because("old"), None)).await;
    assert!(again.starts_with("the node is maintenance"), "{again}");
    let gone = drain::retire(ctx, operator, node, &because("sold"), None).await.expect("retired");
    assert_eq!(gone.body.status.0, node::Status::Retired);
    assert_eq!(gone.body.certificate_expires_at, None, "its agent is cut off");
    let token = admin::reissue(ctx, operator, node, None).await;
    assert!(matches!(token.map(drop), Err(Error::Conflict(_))));
    let late = refused(drain::resume(ctx, operator, node, &because("back"), None)).await;
    assert!(late.contains("gone for good"), "{late}");
    drain::retire(ctx, operator, node, &because("sold"), None).await.expect("it is so already");
    house.close().await;
}

/// The agent has the task when it is cut off. Nobody waits for its lease.
#[tokio::test]
async fn what_an_agent_was_given_is_called_off_when_it_is_cut_off_and_the_allocation_says_so() {
    let house = house().await;
    let (ctx, operator, node) = (&house.ctx, &house.operator, node_of(&house));
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    admin::revoke(ctx, operator, node, &because("stolen"), None).await.expect("cut off");
    house.settle().await;
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::Failed);
    assert_eq!(shown.status_reason.as_deref(), Some("agent_revoked"));
    assert!(shown.status_text.contains("cut off by an operator"), "{}", shown.status_text);
    assert_eq!(house.claims(id).await, ["cleaning"], "nothing was proven");
    let provision = house.dispatches(id).await[0].clone();
    assert_eq!((provision.1.as_str(), provision.2), ("cancelled", 1));
    for _ in 0..6 {
        house.pass(Duration::from_secs(130)).await;
    }
    assert_eq!(house.claims(id).await, ["stuck"]);
    let stuck = refused(drain::retire(ctx, operator, node, &because("gone"), None)).await;
    assert!(stuck.contains(&format!("allocation {id} (stuck)")), "{stuck}");
    assert!(stuck.contains("clear its claims, and retire the node then"), "{stuck}");
    house.close().await;
}
