//! Agents: who may speak for a node, and what their heartbeats write.

use domain::ids::{NodeId, NodeTaskId};
use domain::machines::{Node, NodeTask, node, node_task};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Reason, Source, Value};
use serde_json::value::{RawValue, to_raw_value};
use sqlx::Row as _;
use store::lifecycle::apply;
use store::node_agents::{self, NewCertificate, NewJoinToken, Spent};
use store::nodes::{self, Beat, Hearing, Said, Silent};
use store::views::fleet;
use store::{installation_keys, nodes::NewNode};
use testkit::{Database, new_id};
use uuid::Uuid;

use crate::report;

/// A moment that the database can keep, some seconds after a fixed one.
fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("in range")
}

async fn token(database: &Database, node: NodeId, secret: u8, until: i64) {
    let new = NewJoinToken { node, secret_hash: [secret; 32], expires_at: moment(until) };
    let added = database.in_transaction(async |tx| node_agents::insert_token(tx, &new).await);
    added.await.expect("a token");
}

async fn spend(database: &Database, node: NodeId, secret: u8, at: i64) -> Spent {
    let spent = database.in_transaction(async |tx| {
        node_agents::spend_token(tx, node, &[secret; 32], moment(at)).await
    });
    spent.await.expect("it answers")
}

/// An agent of the node, with a certificate that ends at second 1000.
async fn agent(database: &Database, node: NodeId, fingerprint: u8) -> Uuid {
    let agent_id = new_id();
    let added = database.in_transaction(async |tx| {
        node_agents::insert(tx, agent_id, node).await?;
        let fingerprint = [fingerprint; 32];
        let new = NewCertificate { agent_id, fingerprint, not_after: moment(1_000) };
        node_agents::insert_certificate(tx, &new).await
    });
    assert!(added.await.expect("an agent"));
    agent_id
}

async fn known(database: &Database, fingerprint: u8, at: i64) -> Option<node_agents::Shown> {
    let fingerprint = [fingerprint; 32];
    let (now, grace) = (moment(at), moment(at + 600));
    let found = node_agents::find(&database.store, &[[0; 32], fingerprint], now, grace).await;
    let [nobody, found] = found.expect("it answers")[..] else { panic!("an answer each") };
    assert_eq!(nobody, None);
    found
}

#[tokio::test]
async fn a_join_token_works_once_in_time_and_for_its_own_node() {
    let database = Database::new().await;
    let ((here, _), (there, _)) = (database.ready_node(1).await, database.ready_node(1).await);
    token(&database, here, 1, 900).await;
    token(&database, here, 2, 900).await;
    assert_eq!(spend(&database, there, 1, 0).await, Spent::Unknown, "another node's");
    assert_eq!(spend(&database, NodeId(new_id()), 1, 0).await, Spent::Unknown, "nobody's");
    assert_eq!(spend(&database, here, 9, 0).await, Spent::Unknown, "no token at all");
    assert_eq!(spend(&database, here, 1, 0).await, Spent::Now);
    assert_eq!(spend(&database, here, 1, 0).await, Spent::Before);
    assert_eq!(spend(&database, here, 2, 900).await, Spent::Expired);
    assert_eq!(spend(&database, here, 2, 899).await, Spent::Now);
    token(&database, here, 3, 900).await;
    let withdrawn =
        async |tx: &mut store::Tx| node_agents::withdraw_tokens(tx, here, moment(10)).await;
    database.in_transaction(withdrawn).await.expect("it answers");
    assert_eq!(spend(&database, here, 3, 11).await, Spent::Expired);
    database.remove().await;
}

#[tokio::test]
async fn a_certificate_speaks_for_its_node_until_it_ends_or_is_revoked() {
    let database = Database::new().await;
    let (node, _) = database.ready_node(1).await;
    let agent_id = agent(&database, node, 1).await;
    let shown = known(&database, 1, 0).await.expect("it is good");
    assert_eq!((shown.agent_id, shown.node, shown.not_after), (agent_id, node, moment(1_000)));
    assert_eq!(known(&database, 2, 0).await, None, "nobody's");
    assert_eq!(known(&database, 1, 1_000).await, None, "it has ended");
    let revoked = database
        .in_transaction(async |tx| node_agents::revoke(tx, node).await)
        .await
        .expect("it answers");
    assert_eq!(revoked, Some(agent_id));
    assert_eq!(known(&database, 1, 0).await, None, "revoked");
    let new = NewCertificate { agent_id, fingerprint: [3; 32], not_after: moment(1_000) };
    let renewed =
        database.in_transaction(async |tx| node_agents::insert_certificate(tx, &new).await);
    assert!(!renewed.await.expect("it answers"), "a revoked agent renews nothing");
    let lately = node_agents::revoked_since(&database.store, None).await.expect("it answers");
    assert_eq!(lately.nodes, [node]);
    let later = lately.asked_at.checked_add(SignedDuration::from_secs(60)).expect("in range");
    let later = node_agents::revoked_since(&database.store, Some(later)).await;
    assert!(later.expect("it answers").nodes.is_empty());
    // There is room for another one now.
    agent(&database, node, 4).await;
    assert!(known(&database, 4, 0).await.is_some());
    database.remove().await;
}

#[tokio::test]
async fn an_older_certificate_ends_once_a_newer_one_is_used() {
    let database = Database::new().await;
    let (node, _) = database.ready_node(1).await;
    let agent_id = agent(&database, node, 1).await;
    let new = NewCertificate { agent_id, fingerprint: [2; 32], not_after: moment(2_000) };
    let added = database.in_transaction(async |tx| node_agents::insert_certificate(tx, &new).await);
    assert!(added.await.expect("it answers"));
    assert!(!known(&database, 1, 0).await.expect("it is good").outlived_by_older);
    assert!(known(&database, 2, 0).await.expect("it is good").outlived_by_older);
    let ended = node_agents::end_older(&database.store, &[2; 32], moment(600)).await;
    ended.expect("it answers");
    assert!(!known(&database, 2, 0).await.expect("it is good").outlived_by_older);
    assert!(known(&database, 1, 599).await.is_some());
    assert_eq!(known(&database, 1, 600).await, None);
    assert!(known(&database, 2, 1_999).await.is_some());
    database.remove().await;
}

#[tokio::test]
async fn the_first_key_of_a_name_stays() {
    let database = Database::new().await;
    let key =
        |public: &str| installation_keys::StoredKey { private: vec![1], public: public.to_owned() };
    for public in ["first", "second"] {
        installation_keys::keep(&database.store, "task", &key(public)).await.expect("it answers");
    }
    let kept = installation_keys::find(&database.store, "task").await.expect("it answers");
    assert_eq!(kept.map(|kept| kept.public).as_deref(), Some("first"));
    let none = installation_keys::find(&database.store, "receipt").await.expect("it answers");
    assert!(none.is_none());
    database.remove().await;
}

fn inventory(gpus: usize, images: &[&str]) -> Box<RawValue> {
    let gpus = vec![serde_json::json!({}); gpus];
    to_raw_value(&serde_json::json!({ "gpus": gpus, "images": images })).expect("it is JSON")
}

fn heartbeat(node: NodeId, at: i64, images: &[&str]) -> Beat {
    Beat {
        node,
        agent_id: Uuid::nil(),
        at: moment(at),
        boot_id: Uuid::nil(),
        agent_version: "1.0".to_owned(),
        inventory: inventory(1, images),
        running: Vec::new(),
    }
}

async fn hear(database: &Database, beats: &[Beat]) -> Vec<nodes::Heard> {
    let said: Vec<Said<'_>> = beats.iter().map(|beat| Said { beat, known_at: None }).collect();
    hear_said(database, &said).await
}

async fn hear_said(database: &Database, said: &[Said<'_>]) -> Vec<nodes::Heard> {
    let hearing = Hearing { lease_until: moment(60), roughly: SignedDuration::from_secs(30) };
    let heard = database.in_transaction(async |tx| nodes::hear(tx, said, hearing).await);
    heard.await.expect("it is written")
}

async fn last_heard(database: &Database, node: NodeId) -> Timestamp {
    let found = fleet::find(&database.store, node).await.expect("it answers").expect("it is there");
    found.heartbeat_at.expect("it was heard of")
}

#[tokio::test]
async fn heartbeats_of_many_nodes_are_one_statement_and_never_go_back() {
    let database = Database::new().await;
    let ((one, _), (two, _)) = (database.ready_node(2).await, database.ready_node(1).await);
    let gone = NodeId(new_id());
    let beats = [heartbeat(one, 10, &["a"]), heartbeat(two, 11, &[]), heartbeat(gone, 12, &[])];
    let mut heard = hear(&database, &beats).await;
    heard.sort_by_key(|heard| heard.slots);
    assert_eq!(heard.iter().map(|heard| heard.node).collect::<Vec<_>>(), [two, one]);
    assert!(heard.iter().all(|heard| heard.status == node::Status::Ready && heard.images_changed));
    assert_eq!(last_heard(&database, one).await, moment(10));
    let again = hear(&database, &[heartbeat(one, 5, &["a"])]).await;
    assert!(!again[0].images_changed);
    assert_eq!(last_heard(&database, one).await, moment(10), "an older one changes nothing");
    database.remove().await;
}

#[tokio::test]
async fn who_was_heard_of_lately_is_not_silent_though_that_is_known_only_roughly() {
    let database = Database::new().await;
    let ((one, _), (two, _)) = (database.ready_node(1).await, database.ready_node(1).await);
    hear(&database, &[heartbeat(one, 10, &[]), heartbeat(two, 10, &[])]).await;
    hear(&database, &[heartbeat(one, 39, &[])]).await;
    let silent = async |before| {
        let silent = nodes::list_silent(&database.store, moment(before), None, 10).await;
        let silent = silent.expect("it answers");
        silent.iter().map(|silent| (silent.node, silent.heard_after)).collect::<Vec<_>>()
    };
    assert_eq!(silent(39).await, [(two, moment(10))], "of the other it is known since 10 roughly");
    assert_eq!(silent(40).await.len(), 2);
    hear(&database, &[heartbeat(one, 40, &[]), heartbeat(two, 5, &[])]).await;
    assert_eq!(silent(41).await, [(two, moment(10)), (one, moment(40))]);
    database.remove().await;
}

#[tokio::test]
async fn a_known_inventory_is_not_written_again_unless_another_was_written_since() {
    let database = Database::new().await;
    let (node, _) = database.ready_node(1).await;
    let first = heartbeat(node, 10, &["a"]);
    let written = hear(&database, std::slice::from_ref(&first)).await[0];
    assert_eq!((written.slots, written.images_changed), (Some(1), true));
    let shown = async || -> String {
        let row = sqlx::query("SELECT inventory::text FROM nodes WHERE id = $1").bind(node.uuid());
        row.fetch_one(&database.sql).await.expect("it is there").get(0)
    };
    let stands = shown().await;
    let known = |beat, heard: nodes::Heard| Said { beat, known_at: Some(heard.inventory_at) };
    // Whatever it says: it is not looked at.
    let next = Beat { inventory: inventory(7, &["b"]), ..heartbeat(node, 20, &[]) };
    let again = hear_said(&database, &[known(&next, written)]).await[0];
    assert_eq!((again.slots, again.images_changed), (None, false));
    assert!(again.inventory_at > written.inventory_at, "it is as of now");
    assert_eq!((shown().await, last_heard(&database, node).await), (stands.clone(), moment(20)));
    let stale = heartbeat(node, 30, &["c"]);
    assert!(hear_said(&database, &[known(&stale, written)]).await.is_empty());
    assert_eq!((shown().await, last_heard(&database, node).await), (stands, moment(20)));
    database.remove().await;
}

#[tokio::test]
async fn an_old_sign_of_life_does_not_end_a_silence() {
    let database = Database::new().await;
    let (node, _) = database.ready_node(1).await;
    hear(&database, &[heartbeat(node, 10, &[])]).await;
    let say = async |event, source, at: i64| {
        let report = report(event, source)
            .with(node::HEARTBEAT_AT, Value::Time(moment(at).as_microsecond()));
        let said = database.in_transaction(async |tx| apply::<Node>(tx, node, &report).await);
        said.await.expect("it answers")
    };
    let before = moment(70);
    let silent = nodes::list_silent(&database.store, before, None, 10).await.expect("it answers");
    assert_eq!(silent, [Silent { node, heartbeat_at: moment(10), heard_after: moment(10) }]);
    let rest = nodes::list_silent(&database.store, before, Some(silent[0]), 10).await;
    assert!(rest.expect("it answers").is_empty());
    assert!(say(node::Event::HeartbeatLost, Source::Timer, 10).await.is_applied());
    hear(&database, &[heartbeat(node, 80, &[])]).await;
    let old = say(node::Event::HeartbeatRegained, Source::Agent, 10).await;
    assert_eq!(old.reason(), Some(&Reason::Superseded("latest_heartbeat")));
    assert!(say(node::Event::HeartbeatRegained, Source::Agent, 80).await.is_applied());
    database.remove().await;
}

#[tokio::test]
async fn a_heartbeat_extends_the_leases_of_its_own_agent_alone() {
    let database = Database::new().await;
    let task = NodeTaskId(database.newborn("node_task").await);
    let row = sqlx::query("SELECT node_id FROM node_tasks WHERE id = $1").bind(task.uuid());
    let node = NodeId(row.fetch_one(&database.sql).await.expect("it is there").get(0));
    let (ours, theirs) = (new_id(), new_id());
    let dispatch = report(node_task::Event::Dispatching, Source::Agent)
        .with(node_task::NODE_ID, Value::Id(node.uuid().as_u128()))
        .with(node_task::AGENT_ID, Value::Id(ours.as_u128()));
    let moved = database.in_transaction(async |tx| apply::<NodeTask>(tx, task, &dispatch).await);
    assert!(moved.await.expect("it answers").is_applied());
    let lease = async |agent_id: Uuid, running: Vec<NodeTaskId>| -> Option<String> {
        hear(&database, &[Beat { agent_id, running, ..heartbeat(node, 0, &[]) }]).await;
        let row = sqlx::query("SELECT lease_until::text FROM node_tasks WHERE id = $1")
            .bind(task.uuid())
            .fetch_one(&database.sql);
        row.await.expect("it is there").get(0)
    };
    assert_eq!(lease(theirs, vec![task]).await, None, "another agent's word");
    assert_eq!(lease(ours, vec![]).await, None, "it does not say so");
    assert!(lease(ours, vec![task]).await.is_some());
    database.remove().await;
}

#[tokio::test]
async fn images_are_what_was_told_last() {
    let database = Database::new().await;
    let ((one, _), (two, _)) = (database.ready_node(1).await, database.ready_node(1).await);
    let keep = async |of: &[NodeId], images: &[(NodeId, &str)]| {
        let kept = database.in_transaction(async |tx| nodes::keep_images(tx, of, images).await);
        kept.await.expect("it is written");
        let rows = sqlx::query("SELECT image FROM node_images WHERE node_id = $1 ORDER BY image")
            .bind(one.uuid())
            .fetch_all(&database.sql);
        let rows = rows.await.expect("it answers");
        rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>()
    };
    assert_eq!(
        keep(&[one, two], &[(one, "a"), (one, "b"), (two, "a"), (one, "b")]).await,
        ["a", "b"]
    );
    assert_eq!(keep(&[one], &[(one, "b"), (one, "c")]).await, ["b", "c"]);
    assert_eq!(keep(&[two], &[]).await, ["b", "c"]);
    assert!(keep(&[one], &[]).await.is_empty());
    database.remove().await;
}

#[tokio::test]
async fn operators_see_slots_claims_certificates_and_what_differs() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    agent(&database, fixture.node, 1).await;
    let mut beat = heartbeat(fixture.node, 10, &[]);
    beat.inventory = inventory(2, &[]);
    hear(&database, &[beat]).await;
    let shown = fleet::find(&database.store, fixture.node).await.expect("it answers");
    let shown = shown.expect("it is there");
    assert_eq!((shown.free_slots, shown.slots.len()), (0, 1));
    let claim = shown.slots[0].claim.as_ref().expect("it is claimed");
    assert_eq!((claim.id, claim.allocation_id), (fixture.claim.uuid(), fixture.allocation.uuid()));
    assert_eq!(shown.agent_version.as_deref(), Some("1.0"));
    assert_eq!(shown.certificate_expires_at, Some(moment(1_000)));
    assert_eq!(shown.reason.as_deref(), Some("the agent reports 2 GPUs, the record has 1 slots"));
    assert_eq!(shown.claim, None);
    let (other, _) = database.ready_node(3).await;
    let first = fleet::list(&database.store, None, 1).await.expect("it answers");
    assert_eq!((first.len(), first[0].id), (1, fixture.node.uuid()));
    let rest = fleet::list(&database.store, Some(fixture.node), 10).await.expect("it answers");
    assert_eq!((rest.len(), rest[0].id, rest[0].free_slots), (1, other.uuid(), 3));
    database.remove().await;
}

#[tokio::test]
async fn a_name_is_given_once_and_slots_keep_their_numa_nodes() {
    let database = Database::new().await;
    let birth = || {
        store::lifecycle::Birth::new(
            domain::ids::EventId(new_id()),
            testkit::actor(Source::Operator),
        )
    };
    let node = |whole| NewNode {
        id: NodeId(new_id()),
        name: "rack-1".to_owned(),
        region: "north".to_owned(),
        sku: "h100".to_owned(),
        slots: vec![0, 0, 1],
        whole,
    };
    let (one, two) = (node(true), node(false));
    let insert = async |node: &NewNode| {
        let made = database.in_transaction(async |tx| nodes::insert(tx, node, &birth()).await);
        made.await.expect("it answers").map(|slots| slots.len())
    };
    assert_eq!(insert(&one).await, Some(3));
    assert_eq!(insert(&two).await, None);
    let shown =
        fleet::find(&database.store, one.id).await.expect("it answers").expect("it is there");
    assert_eq!(
        shown.slots.iter().map(|slot| (slot.index, slot.numa)).collect::<Vec<_>>(),
        [(0, 0), (1, 0), (2, 1)]
    );
    assert_eq!(
        (shown.free_slots, shown.status.0),
        (1, node::Status::Enrolling),
        "one whole machine"
    );
    database.remove().await;
}
