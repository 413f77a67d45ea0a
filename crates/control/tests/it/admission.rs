//! Requests that come together are admitted together; each has its own answer, whatever becomes of the others.

use std::collections::BTreeSet;

use control::allocation::{create, view};
use control::idempotency::Key;
use control::{Error, assemble};
use domain::ids::{AllocationId, EventId};
use domain::machines::{Node, node};
use futures::future::join_all;
use jiff::Timestamp;
use lifecycle::Source;
use store::audit_log::{self, Answering, NewEntry};
use store::idempotency::{self, OwnKey, Taken};
use store::lifecycle::{Report, apply};
use store::{Options, Store};
use testkit::{House, actor, new_id};
use tokio::task::JoinSet;
use wire::http::allocations::{Allocation, NewAllocation};

fn asked(house: &House, sku: &str, gpus: i16) -> NewAllocation {
    NewAllocation {
        project_id: house.project,
        sku: sku.to_owned(),
        gpus,
        region: "eu-1".to_owned(),
        ssh_key_ids: Vec::new(),
        image: None,
        name: None,
    }
}

/// All of them at once, in one process.
async fn all(house: &House, sku: &str, sizes: &[i16]) -> Vec<Result<Allocation, Error>> {
    join_all(sizes.iter().map(|gpus| house.create(sku, *gpus))).await
}

/// Each slot that somebody was told is theirs.
fn slots(made: &[&Allocation]) -> Vec<(String, i16)> {
    let of = |one: &&Allocation| {
        let node = one.node.clone().expect("it is on a machine");
        one.slots.iter().map(move |slot| (node.clone(), *slot)).collect::<Vec<_>>()
    };
    made.iter().flat_map(of).collect()
}

#[tokio::test]
async fn who_comes_together_is_admitted_together_and_told_what_is_true() {
    let mut house = House::open().await;
    for _ in 0..4 {
        house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    }
    let made = all(&house, "h100.slice", &[1, 4, 2, 1, 8, 1, 2, 4, 1, 8]).await;
    let made: Vec<Allocation> = made.into_iter().map(|one| one.expect("there is room")).collect();
    let told = slots(&made.iter().collect::<Vec<_>>());
    assert_eq!(told.len(), 32, "all of it is taken");
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), 32, "nothing twice: {told:?}");
    // Several have one moment, because they have one transaction.
    let moments: BTreeSet<_> = made.iter().map(|one| one.created_at).collect();
    assert!(moments.len() < made.len() / 2, "{moments:?}");
    for one in &made {
        let id = AllocationId(one.id);
        let shown = view::show(&house.ctx, &house.tenant, id).await.expect("it is there");
        assert_eq!(&shown, one, "what they were told is what they see");
        assert_eq!(house.claims(one.id).await.len(), one.slots.len());
        assert_eq!(house.published(one.id).await, ["provisioning.requested"]);
        // What fits on one NUMA node is on one.
        let numas: BTreeSet<bool> = one.slots.iter().map(|slot| *slot < 4).collect();
        assert!(one.gpus == 8 || numas.len() == 1, "{:?}", one.slots);
    }
    assert_eq!(house.rows("audit_entries WHERE action = 'allocation.create'").await, 10);
    house.is_sound().await;
    house.close().await;
}

#[tokio::test]
async fn exactly_what_fits_is_granted_however_they_come() {
    let mut house = House::open().await;
    for _ in 0..2 {
        house.node("h100.slice", &[0; 8]).await;
    }
    house.node("h100.metal", &[0; 8]).await;
    let (slices, whole) =
        futures::join!(all(&house, "h100.slice", &[1; 40]), all(&house, "h100.metal", &[8; 5]));
    for (answers, fits) in [(&slices, 16), (&whole, 1)] {
        let made: Vec<&Allocation> = answers.iter().flatten().collect();
        assert_eq!(made.len(), fits);
        let told = slots(&made);
        assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len());
        let refused = |one: &&Result<_, _>| matches!(one, Err(Error::SkuUnavailable { .. }));
        assert_eq!(answers.iter().filter(refused).count(), answers.len() - fits);
    }
    house.is_sound().await;
    house.close().await;
}

/// Two processes look for the same nodes at the same time, and neither has locked them: who is slower looks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_what_fits_is_granted_by_two_processes() {
    let mut house = House::open().await;
    for _ in 0..4 {
        house.node("h100.slice", &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    }
    let store = Store::open(&house.database.url(), Options::default()).await.expect("it opens");
    let other = assemble(store.clone(), house.ctx.clock.clone(), house.ctx.policies()).await;
    let other = other.expect("another process").ctx;
    let mut asking = JoinSet::new();
    for turn in 0..80 {
        let ctx = if turn % 2 == 0 { house.ctx.clone() } else { other.clone() };
        let (caller, asked) = (house.tenant.clone(), asked(&house, "h100.slice", 1));
        let key = Key::of(caller.user_id, "POST /allocations", &format!("key-{turn}"), b"");
        asking.spawn(async move { create::request(&ctx, &caller, &asked, &key).await });
    }
    let answers = asking.join_all().await;
    let made: Vec<&Allocation> = answers.iter().flatten().map(|answer| &answer.body).collect();
    let told = slots(&made);
    assert_eq!((made.len(), told.iter().collect::<BTreeSet<_>>().len()), (32, 32), "{told:?}");
    let refused = |one: &&Result<_, _>| matches!(one, Err(Error::SkuUnavailable { .. }));
    assert_eq!(answers.iter().filter(refused).count(), 48);
    store.close().await;
    house.is_sound().await;
    house.close().await;
}

/// Whoever asks is let in before the machine leaves, or is told that it is gone.
#[tokio::test]
async fn a_machine_that_is_leaving_is_waited_for_and_gets_nothing() {
    let mut house = House::open().await;
    let node = house.node("h100.slice", &[0; 8]).await.identity.node_id;
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let drain =
        Report::new(node::Event::DrainRequested, EventId(new_id()), actor(Source::Operator));
    let outcome = apply::<Node>(&mut tx, node, &drain).await.expect("it answers");
    assert!(outcome.is_applied(), "{outcome:?}");
    let leaves = async {
        while house.waiting_for_locks().await == 0 {}
        tx.commit().await.expect("it leaves");
    };
    let (answer, ()) = futures::join!(house.create("h100.slice", 1), leaves);
    assert!(matches!(answer, Err(Error::SkuUnavailable { .. })), "{answer:?}");
    assert_eq!(house.rows("allocations").await + house.rows("claims").await, 0);
    house.close().await;
}

/// One wrong request is refused, and those beside it do not notice.
#[tokio::test]
async fn who_is_refused_takes_nobody_along() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let answers = all(&house, "h100.slice", &[1, 3, 1, 99, 1]).await;
    let done: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(done, [true, false, true, false, true]);
    house.is_sound().await;
    house.close().await;
}

/// A client repeats itself here while another replica is at its first request: the key is one, and so is the effect. Whoever
/// shares a batch with that has their own answer.
#[tokio::test]
async fn a_key_that_another_replica_has_under_way_is_waited_for_and_answered_as_there() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let (user, route) = (house.tenant.user_id, "POST /allocations");
    let first = house.create("h100.slice", 1).await.expect("there is room");
    let shared = Key::of(user, route, "shared", b"");
    let there = OwnKey { principal: user, route, key: "shared".to_owned() };
    let (now, long_ago) = (house.ctx.clock.now(), Timestamp::UNIX_EPOCH);
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let taken = idempotency::take(&mut tx, there.clone(), &shared.fingerprint, now, long_ago).await;
    assert_eq!(taken.expect("it answers"), Taken::Free);
    let asked = asked(&house, "h100.slice", 1);
    let here = create::request(&house.ctx, &house.tenant, &asked, &shared);
    let beside = house.create("h100.slice", 1);
    let elsewhere = async {
        while house.waiting_for_locks().await == 0 {}
        let body = serde_json::to_value(&first).expect("it can be written");
        let answer = Answering { key: there, status: 201, body: Some(body) };
        let entry = NewEntry { role: "user", outcome: "done", ..NewEntry::default() };
        audit_log::append_answering(&mut tx, entry, answer).await.expect("it answers");
        tx.commit().await.expect("it is done there");
    };
    let (here, beside, ()) = futures::join!(here, beside, elsewhere);
    let here = here.expect("it is answered");
    assert!(here.replayed);
    assert_eq!(here.body, first, "as it was answered there");
    assert_ne!(beside.expect("there is room").id, first.id);
    assert_eq!(house.rows("allocations").await, 2);
    house.is_sound().await;
    house.close().await;
}

/// The connection of a batch breaks before it is written. Nobody is told of it: each is tried alone, and made once.
#[tokio::test]
async fn a_batch_that_breaks_is_made_one_by_one() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 8]).await;
    let (user, route) = (house.tenant.user_id, "POST /allocations");
    let shared = Key::of(user, route, "shared", b"");
    let there = OwnKey { principal: user, route, key: "shared".to_owned() };
    let (now, long_ago) = (house.ctx.clock.now(), Timestamp::UNIX_EPOCH);
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let taken = idempotency::take(&mut tx, there, &shared.fingerprint, now, long_ago).await;
    assert_eq!(taken.expect("it answers"), Taken::Free);
    let asked = asked(&house, "h100.slice", 1);
    let waits = create::request(&house.ctx, &house.tenant, &asked, &shared);
    // The batch waits for the key, and whoever has it dies with everybody else.
    let blow = async {
        while house.waiting_for_locks().await == 0 {}
        house.database.end_connections().await
    };
    let (beside, waits, ended) = futures::join!(all(&house, "h100.slice", &[1, 2, 1]), waits, blow);
    drop(tx);
    assert!(ended > 1, "{ended}");
    let mut made: Vec<Allocation> = beside.into_iter().map(|one| one.expect("made")).collect();
    made.push(waits.expect("made").body);
    let told = slots(&made.iter().collect::<Vec<_>>());
    assert_eq!((told.len(), told.iter().collect::<BTreeSet<_>>().len()), (5, 5), "{told:?}");
    assert_eq!(house.rows("allocations").await, 4);
    house.is_sound().await;
    house.close().await;
}
