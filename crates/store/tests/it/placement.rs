//! Placement under concurrency: exactly what fits is granted, nothing twice, and nothing is refused that would fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::ids::{AllocationId, EventId, NodeId, OperationId};
use domain::machines::{Node, node};
use lifecycle::Source;
use sqlx::Row as _;
use store::lifecycle::{Birth, Report, apply};
use store::placement::{self, Place, Wanted};
use store::{Error, Options, Store, allocations, claims, nodes};
use testkit::{Database, actor, new_id};
use tokio::task::JoinSet;

pub(crate) const REGION: &str = "north";
pub(crate) const IMAGE: &str = "ubuntu";

/// Ready nodes with that layout of NUMA nodes.
pub(crate) async fn fleet(
    database: &Database,
    sku: &str,
    count: usize,
    numa: &[i16],
    whole: bool,
) -> Vec<NodeId> {
    let mut made = Vec::new();
    for _ in 0..count {
        let id = NodeId(new_id());
        let new = nodes::NewNode {
            id,
            name: format!("node-{id}"),
            region: REGION.to_owned(),
            sku: sku.to_owned(),
            slots: numa.to_vec(),
            whole,
        };
        let birth = Birth::new(EventId(new_id()), actor(Source::Worker));
        let work = database.in_transaction(async |tx| {
            nodes::insert(tx, &new, &birth).await?;
            let enrolled =
                Report::new(node::Event::Enrolled, EventId(new_id()), actor(Source::Agent));
            assert!(apply::<Node>(tx, id, &enrolled).await?.is_applied());
            Ok(())
        });
        work.await.expect("a node");
        sqlx::query("INSERT INTO node_images (node_id, image) VALUES ($1, $2)")
            .bind(id.uuid())
            .bind(IMAGE)
            .execute(&database.sql)
            .await
            .expect("an image");
        made.push(id);
    }
    made
}

/// One request, as the story makes it; `late` undoes it at the very end.
async fn ask(
    store: &Store,
    sku: &str,
    gpus: Option<i16>,
    late: bool,
) -> Result<Option<Place>, Error> {
    let mut tx = store.begin().await?;
    let wanted = Wanted { region: REGION, sku, image: IMAGE, gpus };
    let Some((_, place)) = testkit::place(&mut tx, &wanted).await? else {
        return Ok(None);
    };
    if late {
        tx.rollback().await?;
        return Ok(None);
    }
    tx.commit().await?;
    Ok(Some(place))
}

/// Everybody at once: `clients` of them ask for sizes in turn, and every twentieth changes their mind at the end.
/// Answers how many GPUs were granted for each size, and which sizes were refused.
async fn storm(
    database: &Database,
    sku: &'static str,
    sizes: &'static [Option<i16>],
    requests: usize,
) -> Storm {
    let options = Options { connections_max: 48, ..Options::default() };
    let store = Store::open(&database.url(), options).await.expect("the store opens");
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..48 {
        let (store, next) = (store.clone(), Arc::clone(&next));
        clients.spawn(async move {
            let mut answers = Vec::new();
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                if turn >= requests {
                    return answers;
                }
                let (size, late) = (sizes[turn % sizes.len()], turn % 20 == 7);
                let answer = ask(&store, sku, size, late).await.expect("no fault");
                if !late {
                    answers.push((size, answer.is_some()));
                }
            }
        });
    }
    let answers: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    store.close().await;
    let granted =
        answers.iter().filter(|(_, granted)| *granted).map(|(size, _)| size.unwrap_or(1)).collect();
    let refused = answers.iter().filter(|(_, granted)| !*granted).map(|(size, _)| *size).collect();
    Storm { granted, refused }
}

struct Storm {
    granted: Vec<i16>,
    refused: Vec<Option<i16>>,
}

/// The hint of every node says what its claims say, and no slot is held twice.
pub(crate) async fn is_sound(database: &Database) {
    let wrong: i64 = sqlx::query(
        "SELECT count(*)
           FROM nodes
          WHERE free_slots <> CASE WHEN whole
                THEN (NOT EXISTS (SELECT 1 FROM claims WHERE node_id = nodes.id AND status <> 'freed'))::int
                ELSE (SELECT count(*) FROM slots
                       WHERE slots.node_id = nodes.id
                         AND NOT EXISTS (SELECT 1 FROM claims WHERE slot_id = slots.id AND status <> 'freed'))
                END",
    )
    .fetch_one(&database.sql)
    .await
    .expect("an answer")
    .get(0);
    assert_eq!(wrong, 0, "the count of free slots is not what the claims say");
    let twice: i64 = sqlx::query(
        "SELECT count(*) FROM (SELECT slot_id FROM claims WHERE status <> 'freed' GROUP BY slot_id, node_id HAVING count(*) > 1 AND slot_id IS NOT NULL) AS held",
    )
    .fetch_one(&database.sql)
    .await
    .expect("an answer")
    .get(0);
    assert_eq!(twice, 0, "a slot is held twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_equal_sizes_are_granted_exactly_as_often_as_they_fit() {
    for (sizes, fit) in [(&[Some(1)], 160), (&[Some(4)], 40), (&[Some(8)], 20)] {
        let database = Database::new().await;
        fleet(&database, "slice", 20, &[0, 0, 0, 0, 1, 1, 1, 1], false).await;
        let storm = storm(&database, "slice", sizes, 600).await;
        assert_eq!(storm.granted.len(), fit, "{sizes:?}");
        is_sound(&database).await;
        database.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_of_mixed_sizes_none_is_refused_that_would_still_fit() {
    let database = Database::new().await;
    fleet(&database, "slice", 20, &[0, 0, 0, 0, 1, 1, 1, 1], false).await;
    let storm = storm(&database, "slice", &[Some(1), Some(8), Some(2), Some(4)], 600).await;
    is_sound(&database).await;
    for size in storm.refused {
        let again = ask(&database.store, "slice", size, false).await.expect("no fault");
        assert!(again.is_none(), "{size:?} was refused and fits");
    }
    let used: i16 = storm.granted.iter().sum();
    assert!(used > 150, "only {used} of 160 slots were used");
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_whole_machines_are_granted_once_each() {
    let database = Database::new().await;
    fleet(&database, "metal", 25, &[0, 0, 1, 1], true).await;
    let storm = storm(&database, "metal", &[None], 400).await;
    assert_eq!(storm.granted.len(), 25);
    is_sound(&database).await;
    database.remove().await;
}

/// Takes that many slots, and says on which node and on which NUMA nodes.
async fn take(database: &Database, gpus: i16) -> Option<(NodeId, Vec<i16>)> {
    let place = ask(&database.store, "slice", Some(gpus), false).await.expect("no fault")?;
    Some((place.node, place.slots.iter().map(|slot| slot.numa).collect()))
}

#[tokio::test]
async fn one_numa_node_comes_before_the_tighter_fit() {
    let database = Database::new().await;
    // Four free slots, but two on each NUMA node; and a whole empty node.
    let torn = fleet(&database, "slice", 1, &[0, 0, 1, 1], false).await[0];
    let empty = fleet(&database, "slice", 1, &[0, 0, 0, 0, 1, 1, 1, 1], false).await[0];
    assert_eq!(take(&database, 4).await, Some((empty, vec![0; 4])));
    // The best fit for two is the smaller node, on one NUMA node.
    let (node, numa) = take(&database, 2).await.expect("it fits");
    assert_eq!((node, numa.len()), (torn, 2));
    assert_eq!(numa[0], numa[1]);
    database.remove().await;
}

#[tokio::test]
async fn what_fits_on_no_numa_node_is_torn_rather_than_refused() {
    let database = Database::new().await;
    let torn = fleet(&database, "slice", 1, &[0, 0, 1, 1], false).await[0];
    let (node, numa) = take(&database, 3).await.expect("it fits");
    assert_eq!((node, numa), (torn, vec![0, 0, 1]));
    assert!(take(&database, 2).await.is_none());
    database.remove().await;
}

#[tokio::test]
async fn a_node_that_is_not_ready_or_lacks_the_image_is_not_offered() {
    let database = Database::new().await;
    let [first, second] = fleet(&database, "slice", 2, &[0, 0], false).await[..] else {
        panic!("two nodes");
    };
    sqlx::query("DELETE FROM node_images WHERE node_id = $1")
        .bind(first.uuid())
        .execute(&database.sql)
        .await
        .expect("it is gone");
    let drain =
        Report::new(node::Event::DrainRequested, EventId(new_id()), actor(Source::Operator));
    let work = database.in_transaction(async |tx| apply::<Node>(tx, second, &drain).await);
    assert!(work.await.expect("no fault").is_applied());
    assert!(take(&database, 1).await.is_none());
    database.remove().await;
}

/// The one node that fits is being looked at by somebody who then leaves enough of it.
#[tokio::test]
async fn who_waits_for_a_node_gets_what_is_left_of_it() {
    let database = Database::new().await;
    fleet(&database, "slice", 1, &[0; 8], false).await;
    let mut first = database.store.begin().await.expect("a transaction");
    let wanted = Wanted { region: REGION, sku: "slice", image: IMAGE, gpus: Some(4) };
    let place = placement::find(&mut first, &wanted).await.expect("no fault").expect("it fits");
    let second = ask(&database.store, "slice", Some(4), false);
    let finish = async {
        // The second is waiting for the node by the time the database says so.
        loop {
            let waiting: i64 = sqlx::query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
                .fetch_one(&database.sql)
                .await
                .expect("an answer")
                .get(0);
            if waiting > 0 {
                break;
            }
        }
        let id = AllocationId(first.new_id());
        let new = allocations::NewAllocation {
            id,
            project_id: first.new_id(),
            member_of: None,
            provision: OperationId(first.new_id()),
            sku: "slice".to_owned(),
            gpus: 4,
            terms: allocations::Terms::default(),
        };
        let birth = Birth::new(EventId(first.new_id()), actor(Source::User));
        allocations::insert(&mut first, &new, birth.clone()).await.expect("no fault");
        let slots: Vec<_> = place.slots.iter().map(|slot| slot.id).collect();
        claims::insert_all(&mut first, id, place.node, &slots, &birth).await.expect("no fault");
        first.commit().await.expect("committed");
    };
    let (second, ()) = tokio::join!(second, finish);
    assert!(second.expect("no fault").is_some(), "four slots were left, and it was refused");
    is_sound(&database).await;
    database.remove().await;
}
