//! The three-way audit: every disagreement between claims, inventory and usage becomes a finding, and nothing else changes.

use std::time::Duration;

use control::{Error, findings};
use testkit::{Act, House, Inventory, new_id};
use uuid::Uuid;
use wire::http::findings::{Finding, FindingKind, FindingOwner};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    house
}

/// Two heartbeats later the first node says what it has, and everything is compared.
async fn later(house: &House, has: &Inventory) -> Vec<Finding> {
    house.ctx.clock.advance(Duration::from_secs(25));
    house.first_node().beat(&house.ctx, has).await.expect("heard");
    look(house).await
}

async fn look(house: &House) -> Vec<Finding> {
    let (ctx, operator) = (&house.ctx, &house.operator);
    let looked = findings::look(ctx, operator, None).await.expect("looked").body;
    let page = findings::list(ctx, operator, false, None, None).await.expect("a page");
    assert_eq!(usize::try_from(looked.open), Ok(page.items.len()));
    assert_eq!(looked.clean, page.items.is_empty());
    page.items
}

fn kinds(findings: &[Finding]) -> Vec<FindingKind> {
    let mut kinds: Vec<FindingKind> = findings.iter().map(|finding| finding.kind.0).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn while_everything_agrees_there_is_no_finding() {
    let house = house().await;
    let id = house.active("h100.slice", 2).await.id;
    let truth = house.truth_of(house.first_node().identity.node_id).await;
    assert_eq!(truth.guests, [(id, vec![0, 1])]);
    assert_eq!(kinds(&later(&house, &truth).await), []);
    house.close().await;
}

/// What cost another system its tenants' machines: a node said that a slot is free, and it was believed.
#[tokio::test]
async fn a_slot_that_its_node_calls_free_stays_claimed_and_somebody_is_told() {
    let house = house().await;
    let id = house.active("h100.slice", 1).await.id;
    let empty = Inventory { gpus: 4, ..Inventory::default() };
    let found = later(&house, &empty).await;
    assert_eq!(kinds(&found), [FindingKind::ClaimWithoutGuest]);
    assert_eq!((found[0].allocation_id, found[0].owner.0), (Some(id), FindingOwner::Operator));
    assert!(found[0].advice.contains("The claim stays"), "{found:?}");
    assert_eq!(house.claims(id).await, ["held"]);
    let refused = house.create("h100.slice", 4).await;
    assert!(matches!(refused, Err(Error::SkuUnavailable { .. })), "the slot was given away");

    // Seen again it is the same finding; seen no more it is closed, and stays in the list for who asks for all.
    let again = later(&house, &empty).await;
    assert_eq!((again.len(), again[0].id), (1, found[0].id));
    let truth = house.truth_of(house.first_node().identity.node_id).await;
    assert_eq!(kinds(&later(&house, &truth).await), []);
    let all = findings::list(&house.ctx, &house.operator, true, None, None).await.expect("a page");
    assert!(all.items.len() == 1 && all.items[0].closed_at.is_some(), "{all:?}");
    house.close().await;
}

#[tokio::test]
async fn what_passes_each_other_on_the_way_is_no_finding() {
    let house = house().await;
    house
        .first_node()
        .beat(&house.ctx, &Inventory { gpus: 4, ..Inventory::default() })
        .await
        .expect("heard");
    let id = house.active("h100.slice", 1).await.id;
    // The heartbeat is from before the guest was there.
    assert_eq!(kinds(&look(&house).await), []);
    house.release(id).await.expect("asked");
    house.settle().await;
    // And this one from when it still was.
    let former = Inventory { gpus: 4, guests: vec![(id, vec![0])], ..Inventory::default() };
    house.first_node().beat(&house.ctx, &former).await.expect("heard");
    assert_eq!(kinds(&look(&house).await), []);
    house.database.remove().await;
}

/// What is in the house when everything is looked at.
struct Scene {
    /// Two that are active, with their slots.
    one: (Uuid, Vec<i16>),
    two: (Uuid, Vec<i16>),
    /// One that is over, and a task of it.
    over: Uuid,
    task: Uuid,
    /// One that is in no database.
    stranger: Uuid,
}

/// What a node may say, and what does not agree then.
fn sorts(scene: &Scene) -> Vec<(Inventory, Vec<FindingKind>)> {
    use FindingKind::{
        ClaimWithoutGuest, GpusDiffer, GuestOfEnded, LeaseWithoutClaim, SlotOfAnother, TaskOver,
        UnknownAllocation, UnknownSlot,
    };
    let Scene { one, two, over, task, stranger } = scene;
    let guests = vec![one.clone(), two.clone()];
    let well = Inventory { gpus: 4, guests, ..Inventory::default() };
    let with_guest = |id: Uuid| {
        let mut has = well.clone();
        has.guests.push((id, vec![3]));
        has
    };
    let with_lease = |has: Inventory, id: Uuid| Inventory { leases: vec![(id, vec![3])], ..has };
    let swapped = vec![(one.0, two.1.clone()), (two.0, one.1.clone())];
    let at = |task: Uuid| Inventory { running: vec![task], ..well.clone() };
    vec![
        (with_guest(*over), vec![GuestOfEnded]),
        (with_lease(well.clone(), *over), vec![LeaseWithoutClaim]),
        (with_lease(with_guest(*stranger), *stranger), vec![UnknownAllocation]),
        (with_lease(well.clone(), *stranger), vec![UnknownAllocation]),
        (Inventory { guests: swapped, ..well.clone() }, vec![ClaimWithoutGuest, SlotOfAnother]),
        (Inventory { gpus: 3, ..well.clone() }, vec![GpusDiffer]),
        (Inventory { gpus: 5, ..well.clone() }, vec![UnknownSlot, GpusDiffer]),
        (at(*task), vec![TaskOver]),
        (at(*stranger), vec![TaskOver]),
    ]
}

#[tokio::test]
async fn every_sort_of_disagreement_is_found_and_nothing_is_mended() {
    let house = house().await;
    let over = house.active("h100.slice", 1).await.id;
    house.release(over).await.expect("asked");
    house.settle().await;
    let task = house.dispatches(over).await[0].0;
    let one = house.active("h100.slice", 1).await;
    let two = house.active("h100.slice", 1).await;
    let stranger = new_id();
    let scene = Scene { one: (one.id, one.slots), two: (two.id, two.slots), over, task, stranger };
    let sorts = sorts(&scene);
    let looks = sorts.len();
    for (has, expected) in sorts {
        let found = later(&house, &has).await;
        assert_eq!(kinds(&found), expected, "{has:?}: {found:#?}");
        assert!(found.iter().all(|finding| !finding.advice.is_empty() && finding.node.is_some()));
    }
    assert_eq!(house.claims(one.id).await, ["held"]);
    assert_eq!(house.claims(two.id).await, ["held"]);
    assert_eq!(house.claims(over).await, ["freed"]);
    let tenant = findings::look(&house.ctx, &house.tenant, None).await;
    assert!(matches!(tenant, Err(Error::Forbidden(_))));
    assert_eq!(house.entries("fleet.audit").await.len(), looks, "each look has its entry");
    house.database.remove().await;
}

/// The allocation is on the first node, and something runs for it on the second.
#[tokio::test]
async fn a_guest_on_a_node_where_its_allocation_holds_nothing_is_found() {
    let mut house = house().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    let id = house.active("h100.slice", 1).await.id;
    house.ctx.clock.advance(Duration::from_secs(25));
    for node in house.nodes() {
        let truth = house.truth_of(node.identity.node_id).await;
        let has = if truth.guests.is_empty() {
            Inventory { guests: vec![(id, vec![2])], ..truth }
        } else {
            truth
        };
        node.beat(&house.ctx, &has).await.expect("heard");
    }
    assert_eq!(kinds(&look(&house).await), [FindingKind::GuestWithoutClaim]);
    house.database.remove().await;
}

/// R24: a node that refuses a dirty GPU keeps its other slots in the offer.
#[tokio::test]
async fn r24_a_dirty_gpu_costs_its_own_slot_and_no_other() {
    use wire::node::FailureReason;
    let house = house().await;
    house.first_node().will(&[Act::Fail(FailureReason::DeviceDirty)]);
    house.first_node().will(&[Act::Fail(FailureReason::DeviceDirty); 5]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..6 {
        house.ctx.clock.advance(Duration::from_secs(61));
        house.beat_all().await;
        house.pass(Duration::ZERO).await;
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status.to_string(), "failed");
    assert_eq!(shown.status_reason.as_deref(), Some("device_dirty"));
    assert_eq!(house.claims(id).await, ["stuck"]);
    assert!(matches!(house.create("h100.slice", 4).await, Err(Error::SkuUnavailable { .. })));
    let next = house.active("h100.slice", 2).await;
    assert!(!next.slots.contains(&0), "the dirty slot was given away: {:?}", next.slots);
    house.close().await;
}

/// What is charged agrees with what is there, by construction: only a hand in the database can make it otherwise.
#[tokio::test]
async fn a_record_left_open_and_an_active_allocation_without_one_are_found() {
    let house = house().await;
    let one = house.active("h100.slice", 1).await.id;
    let two = house.active("h100.slice", 1).await.id;
    let truth = house.truth_of(house.first_node().identity.node_id).await;
    assert_eq!(kinds(&later(&house, &truth).await), [], "everything agrees");
    house.close_record(two).await;
    let found = later(&house, &truth).await;
    assert_eq!(kinds(&found), [FindingKind::UsageMissing]);
    assert_eq!((found[0].allocation_id, found[0].owner.0), (Some(two), FindingOwner::Billing));
    house.release(one).await.expect("asked");
    house.settle().await;
    house.open_record(one).await;
    let truth = house.truth_of(house.first_node().identity.node_id).await;
    let found = later(&house, &truth).await;
    assert_eq!(kinds(&found), [FindingKind::UsageOfNobody, FindingKind::UsageMissing]);
    house.database.remove().await;
}
