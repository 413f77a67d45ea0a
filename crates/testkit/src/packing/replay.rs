//! A trace through the product's own placement: every request is placed, written and claimed, and given back when its time
//! has come, each in a transaction on a real database.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use domain::ids::{AllocationId, EventId, NodeId, OperationId};
use domain::machines::allocation::{Event, Status};
use domain::machines::{Node, claim, node};
use lifecycle::Source;
use sqlx::PgPool;
use store::lifecycle::{Birth, Report, apply};
use store::placement::{Place, Wanted};
use store::{Error, Store, Tx, allocations, claims, nodes};

use super::trace::{Asked, MACHINE_GPUS, Trace};
use crate::rows::place;
use crate::{actor, new_id};

const REGION: &str = "north";
const SKU: &str = "slice";
const IMAGE: &str = "ubuntu";
/// The NUMA node of each GPU of a machine.
const NUMA: [i16; MACHINE_GPUS as usize] = [0, 0, 0, 0, 1, 1, 1, 1];

/// What the product has made of a trace.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// GPU-seconds that were granted.
    pub placed: u64,
    /// How many requests were granted.
    pub granted: usize,
    /// How many of each size were refused, by all their GPUs.
    pub refused: BTreeMap<u32, usize>,
    /// How many of those would have had room if everything had been moved together.
    pub refused_with_room: usize,
    /// How many machines' shares of a request are torn over two NUMA nodes and would fit on one.
    pub torn: usize,
    /// What was free, over time.
    pub pieces: Pieces,
}

/// What is free and of little use, in GPU-seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    /// All that is free.
    pub free: u64,
    /// What is free on machines with less than four.
    pub below_4: u64,
    /// What is free on machines with less than eight.
    pub below_8: u64,
    /// The most GPUs that were free at one moment on machines with less than eight.
    pub below_8_max: u64,
}

/// Replays a trace on an empty, migrated database, with a fleet that it makes there.
///
/// # Errors
/// When the database fails.
///
/// # Panics
/// When a slot is granted twice, or the database counts otherwise than the claims do.
pub async fn replay(store: &Store, sql: &PgPool, trace: &Trace) -> Result<Replayed, Error> {
    let fleet = Fleet::new(store, sql, trace.recipe.machines).await?;
    let mut run = Run { store, fleet, ends: BinaryHeap::new(), done: Replayed::default() };
    for asked in &trace.asked {
        run.pass(asked.at).await?;
        run.ask(asked).await?;
    }
    run.fleet.is_counted(sql).await?;
    run.pass(trace.seconds).await?;
    run.fleet.is_counted(sql).await?;
    assert_eq!(run.fleet.in_all(), u64::from(trace.recipe.capacity()), "all is given back");
    Ok(run.done)
}

/// Where a replay stands.
struct Run<'a> {
    store: &'a Store,
    fleet: Fleet,
    /// What is held, by when it is given back.
    ends: BinaryHeap<Held>,
    done: Replayed,
}

impl Run<'_> {
    /// Time goes on until `now`, and whose time has come gives back.
    async fn pass(&mut self, now: u64) -> Result<(), Error> {
        while self.ends.peek().is_some_and(|held| held.until <= now)
            && let Some(held) = self.ends.pop()
        {
            self.fleet.pass(held.until, &mut self.done.pieces);
            give_back(self.store, held.places.iter().map(|(id, _)| *id)).await?;
            held.places.iter().for_each(|(_, place)| self.fleet.freed(place));
        }
        self.fleet.pass(now, &mut self.done.pieces);
        Ok(())
    }

    async fn ask(&mut self, asked: &Asked) -> Result<(), Error> {
        let Some(places) = ask(self.store, asked).await? else {
            let has_room = self.fleet.in_all() >= u64::from(asked.total());
            *self.done.refused.entry(asked.total()).or_default() += 1;
            self.done.refused_with_room += usize::from(has_room);
            return Ok(());
        };
        self.done.placed += asked.work();
        self.done.granted += 1;
        for (_, place) in &places {
            self.fleet.taken(place);
            self.done.torn += usize::from(is_torn(place));
        }
        self.ends.push(Held { until: asked.until, number: self.done.granted, places });
        Ok(())
    }
}

/// A request that was granted. The first to be given back is the greatest.
struct Held {
    until: u64,
    /// Among all that were granted: of two that end at once the first comes first, in every replay.
    number: usize,
    places: Vec<(AllocationId, Place)>,
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> Ordering {
        (other.until, other.number).cmp(&(self.until, self.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

/// One request as the stories make it: all of it, or nothing.
async fn ask(store: &Store, asked: &Asked) -> Result<Option<Vec<(AllocationId, Place)>>, Error> {
    let mut tx = store.begin().await?;
    let mut places = Vec::new();
    for _ in 0..asked.members {
        match member(&mut tx, asked.gpus).await? {
            Some(placed) => places.push(placed),
            None => {
                tx.rollback().await?;
                return Ok(None);
            }
        }
    }
    tx.commit().await?;
    Ok(Some(places))
}

async fn member(tx: &mut Tx, gpus: u32) -> Result<Option<(AllocationId, Place)>, Error> {
    let gpus = i16::try_from(gpus).expect("a machine has few");
    let wanted = Wanted { region: REGION, sku: SKU, image: IMAGE, gpus: Some(gpus) };
    place(tx, &wanted).await
}

/// Gives back what was never handed to a node: there is nothing to clean, so that all of it is one transaction.
async fn give_back(store: &Store, held: impl Iterator<Item = AllocationId>) -> Result<(), Error> {
    let mut tx = store.begin().await?;
    for id in held {
        let operation = OperationId(tx.new_id());
        let report =
            |event, source| Report::new(event, EventId(new_id()), actor(source)).about(operation);
        let wish = report(Event::ReleaseRequested, Source::User);
        let leaving = allocations::report(&mut tx, id, &wish).await?;
        assert!(leaving.landed_on(Status::Releasing), "{leaving:?}");
        let mut live = claims::lock_live(&mut tx, id).await?;
        for event in [claim::Event::CleaningBegan, claim::Event::Freeing] {
            let worker = actor(Source::Worker);
            let step = Report::new(event, EventId(new_id()), worker).about(operation);
            let outcomes = claims::report_all(&mut tx, &mut live, &step).await?;
            assert!(outcomes.iter().all(lifecycle::Outcome::is_applied), "{outcomes:?}");
        }
        let proof = report(Event::ReleaseCompleted, Source::Worker);
        let gone = allocations::report(&mut tx, id, &proof).await?;
        assert!(gone.landed_on(Status::Released), "{gone:?}");
    }
    tx.commit().await
}

fn is_torn(place: &Place) -> bool {
    let fits_on_one = place.slots.len() <= NUMA.len() / 2;
    fits_on_one && place.slots.iter().any(|slot| slot.numa != place.slots[0].numa)
}

/// What is free on each machine, by what the product has answered.
struct Fleet {
    free: HashMap<NodeId, Vec<i16>>,
    now: u64,
}

impl Fleet {
    /// Machines that are ready and have the image.
    async fn new(store: &Store, sql: &PgPool, machines: u32) -> Result<Fleet, Error> {
        let mut free = HashMap::new();
        for number in 0..machines {
            let id = NodeId(new_id());
            let new = nodes::NewNode {
                id,
                name: format!("node-{number}"),
                region: REGION.to_owned(),
                sku: SKU.to_owned(),
                slots: NUMA.to_vec(),
                whole: false,
            };
            let birth = Birth::new(EventId(new_id()), actor(Source::Worker));
            let enrolled =
                Report::new(node::Event::Enrolled, EventId(new_id()), actor(Source::Agent));
            let mut tx = store.begin().await?;
            nodes::insert(&mut tx, &new, &birth).await?;
            assert!(apply::<Node>(&mut tx, id, &enrolled).await?.is_applied());
            tx.commit().await?;
            free.insert(id, (0..).take(NUMA.len()).collect());
        }
        let images = "INSERT INTO node_images (node_id, image) SELECT id, $1 FROM nodes";
        sqlx::query(images).bind(IMAGE).execute(sql).await.expect("the image is at hand");
        Ok(Fleet { free, now: 0 })
    }

    fn in_all(&self) -> u64 {
        self.free.values().map(|free| free.len() as u64).sum()
    }

    /// Time goes on, and what is free is free for so much longer.
    fn pass(&mut self, now: u64, pieces: &mut Pieces) {
        let below = |limit: usize| {
            let small = self.free.values().map(Vec::len).filter(|free| *free < limit);
            small.sum::<usize>() as u64
        };
        let (passed, small) = (now - self.now, below(MACHINE_GPUS as usize));
        pieces.free += passed * self.in_all();
        pieces.below_4 += passed * below(4);
        pieces.below_8 += passed * small;
        if passed > 0 {
            pieces.below_8_max = pieces.below_8_max.max(small);
        }
        self.now = now;
    }

    fn taken(&mut self, place: &Place) {
        let free = self.free.get_mut(&place.node).expect("a machine of ours");
        for slot in &place.slots {
            let place = free.iter().position(|index| *index == slot.index);
            free.swap_remove(place.expect("it is nobody else's"));
        }
    }

    fn freed(&mut self, place: &Place) {
        let free = self.free.get_mut(&place.node).expect("a machine of ours");
        free.extend(place.slots.iter().map(|slot| slot.index));
    }

    /// The database says the same of every machine.
    async fn is_counted(&self, sql: &PgPool) -> Result<(), Error> {
        let rows: Vec<(uuid::Uuid, i16)> =
            sqlx::query_as("SELECT id, free_slots FROM nodes").fetch_all(sql).await?;
        assert_eq!(rows.len(), self.free.len());
        for (id, free) in rows {
            assert_eq!(self.free[&NodeId(id)].len(), usize::try_from(free).unwrap_or(0), "{id}");
        }
        Ok(())
    }
}
