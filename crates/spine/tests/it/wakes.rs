//! Wake-ups between processes: two hubs on one database hear each other, many rings are one notification, and a hub does not
//! hear itself.

use spine::{Wake, wake};
use store::Ring;
use store::notify::{Line, Rung};
use testkit::{Database, new_id};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use conformance::bed::PATIENCE;

#[tokio::test]
async fn a_ring_crosses_to_another_hub_on_the_same_database_and_many_cross_together() {
    let database = Database::new().await;
    let (here, there, stop) = (Wake::new(), Wake::new(), CancellationToken::new());
    let node = Ring::Node(new_id());
    let (own, far) = (here.on(node.clone()), there.on(node.clone()));
    let workflows = there.on(Ring::Workflows);
    let mut bridges = JoinSet::new();
    for hub in [&here, &there] {
        bridges.spawn(wake::bridge(database.store.clone(), hub.clone(), stop.clone()));
    }
    // Who begins to listen wakes everybody, because something may have been missed.
    for waiter in [&own, &far, &workflows] {
        timeout(PATIENCE, waiter.notified()).await.expect("the bridge stands");
    }
    let mut third = Line::new(&database.store).listen().await.expect("a third one listens");

    // Nothing else runs before the next await, so all of these are there when the first is sent.
    let bell = database.store.clone().ringing(here.bell());
    for _ in 0..1_000 {
        here.ring(&node);
        here.ring(&Ring::Outbox);
    }
    timeout(PATIENCE, far.notified()).await.expect("it crosses");
    own.notified().await;
    let heard = timeout(PATIENCE, third.hear()).await.expect("it is sent").expect("it is heard");
    let Rung::These(mut rings) = heard else { panic!("{heard:?}") };
    rings.sort_by_key(|ring| format!("{ring:?}"));
    assert_eq!(rings, [node.clone(), Ring::Outbox], "two thousand rings are one notification");
    assert!(futures::FutureExt::now_or_never(workflows.notified()).is_none(), "nobody else");

    // What a commit rings crosses too; and what was rung there did not come back here.
    let run = store::workflow_runs::NewRun {
        id: "r",
        workflow: "w",
        entity_id: new_id(),
        state: &serde_json::Value::Null,
    };
    store::workflow_runs::start(&bell, &run).await.expect("it starts");
    timeout(PATIENCE, workflows.notified()).await.expect("it crosses");
    assert!(futures::FutureExt::now_or_never(own.notified()).is_none(), "a hub heard itself");
    let next = timeout(PATIENCE, third.hear()).await.expect("it is sent").expect("it is heard");
    assert_eq!(next, Rung::These(vec![Ring::Workflows]));

    stop.cancel();
    bridges.join_all().await;
    drop((third, bell));
    database.remove().await;
}
