//! Allocations that are written without a lock: by one statement, which sees for itself whether it is still as it was told. Whoever
//! is told that it is not has done nothing.

use domain::ids::{AllocationId, EventId, NodeId, OperationId};
use domain::machines::{Node, node};
use domain::placement::FreeSlot;
use jiff::Timestamp;
use lifecycle::Source;
use serde_json::json;
use serde_json::value::to_raw_value;
use store::admission::{self, Admitted, Answer, Times};
use store::allocations::{NewAllocation, Terms};
use store::audit_log::NewEntry;
use store::idempotency::KeyRef;
use store::lifecycle::{Birth, Heard, Report, apply};
use store::placement::{self, Place};
use store::terms::{self, Asked, Found, Spare};
use store::workflow_runs::NewRun;
use store::{Error, Tx};
use testkit::{Database, actor, new_id};

use crate::placement::{IMAGE, REGION, fleet, is_sound};

const SKU: &str = "slice";
const HEARD: Heard = Heard { by: "provisioner", alone: true };
/// Every table that such a statement writes to.
const WRITTEN: [&str; 7] = [
    "allocations",
    "claims",
    "lifecycle_log WHERE machine IN ('allocation', 'claim')",
    "outbox_events WHERE machine = 'allocation'",
    "workflow_runs",
    "audit_entries",
    "idempotency_keys",
];

/// Writes an allocation with a key at that place.
async fn write(database: &Database, key: &str, places: &[&Place]) -> Result<(), Error> {
    let at = Timestamp::now();
    let (state, body) = (json!({}), to_raw_value(&json!({ "made": true })).expect("it is written"));
    let new = |place: &&Place| NewAllocation {
        id: AllocationId(new_id()),
        project_id: new_id(),
        member_of: None,
        provision: OperationId(new_id()),
        sku: SKU.to_owned(),
        gpus: i16::try_from(place.slots.len()).expect("few"),
        terms: Terms::default(),
    };
    let new: Vec<NewAllocation> = places.iter().map(new).collect();
    let birth = Birth::new(EventId(new_id()), actor(Source::User));
    let births: Vec<Birth> = new.iter().map(|_| birth.clone()).collect();
    let entry = NewEntry { role: "user", outcome: "done", ..NewEntry::default() };
    let runs: Vec<String> = new.iter().map(|new| format!("provision/{}", new.id)).collect();
    let keys: Vec<String> = (0..new.len()).map(|number| format!("{key}-{number}")).collect();
    let admitted = new.iter().enumerate().map(|(number, allocation)| Admitted {
        allocation,
        birth: &births[number],
        trace: None,
        place: places[number],
        run: NewRun {
            id: &runs[number],
            workflow: "provision",
            entity_id: allocation.id.uuid(),
            state: &state,
        },
        entry: &entry,
        answer: Answer {
            key: KeyRef { principal: uuid::Uuid::nil(), route: "here", key: &keys[number] },
            fingerprint: b"the same",
            status: 201,
            body: &body,
        },
    });
    let times = Times { at, now: at, expired_before: Timestamp::UNIX_EPOCH };
    admission::write(&database.store, &admitted.collect::<Vec<_>>(), HEARD, times).await
}

/// Where there is room for so many who want that much, as far as they find it.
async fn found(database: &Database, gpus: &[i16], passed_by: &[NodeId]) -> Found {
    let passed_by: Vec<_> = passed_by.iter().map(|node| node.uuid()).collect();
    let asked = gpus.iter().map(|gpus| Asked {
        user: new_id(),
        project: new_id(),
        sku: SKU.to_owned(),
        gpus: *gpus,
        image: None,
        region: REGION.to_owned(),
        ssh_keys: Vec::new(),
        key: None,
    });
    let asked: Vec<Asked> = asked.collect();
    terms::find(&database.store, &asked, &passed_by, Timestamp::UNIX_EPOCH)
        .await
        .expect("it answers")
}

/// A SKU with one image, in slots.
async fn catalogue(database: &Database) {
    for statement in [
        "INSERT INTO images (code, name, sha256) VALUES ($1, $1, '')",
        "INSERT INTO skus (code, name, gpu_model, shape, gpus_allowed, price_micros_per_gpu_second, currency)
         VALUES ('slice', $1, 'any', 'gpu_slice', '{1,2,4,8}', 0, 'EUR')",
        "INSERT INTO sku_images (sku, image, position) VALUES ('slice', $1, 1)",
    ] {
        sqlx::query(statement).bind(IMAGE).execute(&database.sql).await.expect("a catalogue");
    }
}

fn first(spare: &Spare, gpus: usize) -> Place {
    Place { node: spare.node, slots: spare.slots[..gpus].to_vec() }
}

async fn counted(database: &Database) -> Vec<i64> {
    let mut counts = Vec::new();
    for table in WRITTEN {
        let query = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        counts.push(sqlx::query_scalar(query).fetch_one(&database.sql).await.expect("a count"));
    }
    counts
}

async fn drain(tx: &mut Tx, node: NodeId) -> Result<(), Error> {
    let drain =
        Report::new(node::Event::DrainRequested, EventId(new_id()), actor(Source::Operator));
    assert!(apply::<Node>(tx, node, &drain).await?.is_applied());
    Ok(())
}

#[tokio::test]
async fn what_is_written_is_all_there_and_a_slot_is_given_once() {
    let database = Database::new().await;
    catalogue(&database).await;
    fleet(&database, SKU, 1, &[0, 0, 0, 0], false).await;
    let spare = &found(&database, &[1], &[]).await.spares[0][0];
    let [one, other] =
        [0..2, 2..3].map(|slots| Place { node: spare.node, slots: spare.slots[slots].to_vec() });
    write(&database, "first", &[&one, &other]).await.expect("there is room");
    assert_eq!(counted(&database).await, [2, 3, 5, 2, 2, 2, 2]);
    // Somebody who looked before that: all of theirs or nothing.
    let free = first(&Spare { slots: spare.slots[3..].to_vec(), ..spare.clone() }, 1);
    let late = write(&database, "late", &[&free, &other]).await;
    assert!(matches!(late, Err(Error::Conflict)), "{late:?}");
    assert_eq!(counted(&database).await, [2, 3, 5, 2, 2, 2, 2], "nothing of it has happened");
    write(&database, "again", &[&free]).await.expect("it is free");
    is_sound(&database).await;
}

#[tokio::test]
async fn a_key_that_was_answered_meanwhile_undoes_everything() {
    let database = Database::new().await;
    catalogue(&database).await;
    fleet(&database, SKU, 1, &[0, 0, 0, 0], false).await;
    let spare = &found(&database, &[1], &[]).await.spares[0][0];
    write(&database, "key", &[&first(spare, 1)]).await.expect("there is room");
    let before = counted(&database).await;
    let free = Place { node: spare.node, slots: spare.slots[1..2].to_vec() };
    let again = write(&database, "key", &[&free]).await;
    assert!(matches!(again, Err(Error::Conflict)), "{again:?}");
    assert_eq!(counted(&database).await, before);
    is_sound(&database).await;
}

#[tokio::test]
async fn a_node_that_has_left_or_that_somebody_is_at_gets_nothing() {
    let database = Database::new().await;
    catalogue(&database).await;
    let nodes = fleet(&database, SKU, 2, &[0, 0], false).await;
    let both = found(&database, &[2, 2], &[]).await.spares.remove(0);
    let places: Vec<Place> = both.iter().map(|spare| first(spare, 2)).collect();
    let places: Vec<&Place> = places.iter().collect();
    assert_eq!(places.len(), 2, "both have room");
    let before = counted(&database).await;
    let mut tx = database.store.begin().await.expect("a transaction");
    placement::lock_candidates(&mut tx, &nodes[..1], &[]).await.expect("it is locked");
    let locked = write(&database, "locked", &places).await;
    assert!(matches!(locked, Err(Error::Conflict)), "nobody waits for a node: {locked:?}");
    tx.rollback().await.expect("it ends");
    database.in_transaction(async |tx| drain(tx, nodes[1]).await).await.expect("it leaves");
    let left = write(&database, "left", &places).await;
    assert!(matches!(left, Err(Error::Conflict)), "{left:?}");
    assert_eq!(counted(&database).await, before);
    let here = places.into_iter().find(|place| place.node == nodes[0]).expect("it is the other");
    write(&database, "here", &[here]).await.expect("it stays");
    is_sound(&database).await;
}

/// As many nodes as all of a kind need, the tightest first; none that is passed by; torn ones only for what fits on no NUMA node.
#[tokio::test]
async fn rooms_are_found_as_they_are_when_they_are_locked() {
    let database = Database::new().await;
    catalogue(&database).await;
    let wide = fleet(&database, SKU, 2, &[0, 0, 0, 0, 1, 1, 1, 1], false).await;
    let narrow = fleet(&database, SKU, 1, &[0, 0, 1], false).await[0];
    let nodes = |found: &Found, kind: usize| -> Vec<NodeId> {
        found.spares[kind].iter().map(|spare| spare.node).collect()
    };
    let few = found(&database, &[1, 1, 1], &[]).await;
    assert_eq!((nodes(&few, 0), &few.kinds), (vec![narrow], &vec![0, 0, 0]));
    let many = found(&database, &[1; 5], &[]).await;
    assert_eq!(nodes(&many, 0), [narrow, wide[0].min(wide[1])]);
    let mixed = found(&database, &[4, 8, 4], &[]).await;
    assert_eq!(mixed.kinds, [0, 1, 0]);
    let both = [wide[0].min(wide[1]), wide[0].max(wide[1])];
    assert_eq!(nodes(&mixed, 0), both, "two of four fit on one, and the eight will have it");
    assert!(mixed.spares[0].iter().all(|spare| spare.on_one));
    assert_eq!(nodes(&mixed, 1).len(), 2);
    assert!(mixed.spares[1].iter().all(|spare| !spare.on_one && spare.slots.len() == 8));
    let aside = found(&database, &[1], &[narrow]).await;
    assert_eq!(nodes(&aside, 0), [wide[0].min(wide[1])]);
    assert!(nodes(&found(&database, &[8, 8, 8], &wide).await, 0).is_empty());
    let slots: Vec<&FreeSlot> = aside.spares[0][0].slots.iter().collect();
    assert_eq!(slots.len(), 8, "all of it is told");
}
