//! Requests are judged and get their places: those that came together by one look at their terms and at where there is room, and by one
//! statement that writes all of it; whoever does not fit into that alone. Nothing is locked in between (decision 37). Each has the
//! answer that was kept with its key.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use domain::ids::{AllocationId, NodeId};
use domain::machines::allocation::Status;
use domain::placement::stock::{Left, Stock};
use jiff::Timestamp;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use spine::workflow::NewRun;
use store::admission::{self, Admitted, Answer, Times};
use store::allocations::NewAllocation;
use store::audit_log::NewEntry;
use store::idempotency::{OwnKey, StoredAnswer, Taken};
use store::lifecycle::Birth;
use store::placement::{self, Place, Wanted};
use store::terms::{self, Asked, Found, SkuTerms, Spare, Terms};
use store::views::allocations::Row;
use store::{Store, idempotency};
use wire::bus::Subject;
use wire::http::allocations::Allocation;

use super::in_hand::{InHand, Taken as Nodes};
use super::judge::{self, Ask, Unmet};
use super::provision;
use super::view::{Viewer, shown};
use crate::audit_log::{Action, Deed};
use crate::doors::subscriptions;
use crate::idempotency::Key;
use crate::policies::Policies;
use crate::{Caller, Error};

/// What a request that was done is answered with.
pub(super) const CREATED: u16 = 201;

/// How often those who came together are tried together, when somebody else was faster.
const ATTEMPTS_MAX: usize = 3;

/// A request, with everything that its verdict depends on.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    caller: Caller,
    wanted: wire::http::allocations::NewAllocation,
    key: OwnKey,
    fingerprint: [u8; 32],
    trace: Option<String>,
}

/// A request that was judged, with everything that will be written of it but its place.
#[derive(Clone, Debug)]
struct Wish {
    /// The allocation.
    new: NewAllocation,
    /// How it came to be.
    birth: Birth,
    /// Who asks, and as what.
    viewer: Viewer,
    /// What the audit log says of it.
    entry: NewEntry,
    /// The key of the request.
    key: OwnKey,
    /// What was asked.
    fingerprint: [u8; 32],
    /// Where it is in a trace.
    trace: Option<String>,
    /// What is asked for.
    sku: SkuTerms,
}

/// What becomes of a request among others.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// This.
    Settled(Settled),
    /// Nothing is decided: others were in its way, or one of them was wrong. It is to be asked for alone.
    Alone,
    /// It was alone, and failed.
    Failed(Error),
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Settled {
    /// It is done.
    Made(Box<Allocation>),
    /// It was done before.
    Answered(StoredAnswer),
    /// They can't have it.
    Unmet(Unmet),
    /// Of this, no node has enough.
    Full(SkuTerms),
}

impl Request {
    pub(super) fn new(
        caller: &Caller,
        wanted: &wire::http::allocations::NewAllocation,
        key: &Key,
    ) -> Request {
        let (caller, wanted, trace) = (caller.clone(), wanted.clone(), trace::current());
        Request { caller, wanted, key: key.own(), fingerprint: key.fingerprint, trace }
    }

    /// What is asked for.
    pub(super) fn ask(&self) -> Ask<'_> {
        Ask {
            project: self.wanted.project_id,
            sku: &self.wanted.sku,
            gpus: self.wanted.gpus,
            region: &self.wanted.region,
            image: self.wanted.image.as_deref(),
            name: self.wanted.name.as_deref(),
            ssh_keys: &self.wanted.ssh_key_ids,
            place: String::new(),
            keys_place: String::new(),
        }
    }

    fn question(&self) -> Asked {
        judge::question(&self.caller, &self.ask(), Some(self.key.clone()))
    }

    /// Everything that will be written of it, on these terms; or what it comes to without.
    fn judged(&self, store: &Store, policies: &Policies, terms: Terms) -> Result<Wish, Settled> {
        if let Some(answer) = terms.answered {
            return Err(Settled::Answered(answer));
        }
        let ask = self.ask();
        let judged = judge::judged(policies, &ask, &terms).map_err(Settled::Unmet)?;
        let (id, sku) = (AllocationId(store.new_id()), judged.sku.clone());
        let viewer = Viewer::of(&self.caller, Some(judged.role));
        let (new, birth) = judge::agreed(|| store.new_id(), &self.caller, id, (&ask, judged), None);
        let deed = Deed::new(&self.caller, Action::AllocationCreate, "allocation", id)
            .in_project(ask.project)
            .with(json!({ "sku": ask.sku, "gpus": ask.gpus, "region": ask.region }));
        Ok(Wish {
            new,
            birth,
            viewer,
            entry: deed.done(),
            key: self.key.clone(),
            fingerprint: self.fingerprint,
            trace: self.trace.clone(),
            sku,
        })
    }
}

impl Wish {
    fn market(&self) -> Market {
        let terms = &self.new.terms;
        (terms.region.clone(), self.new.sku.clone(), terms.image.clone())
    }

    fn wanted(&self) -> Wanted<'_> {
        let terms = &self.new.terms;
        let gpus = (!terms.whole).then_some(self.new.gpus);
        Wanted { region: &terms.region, sku: &self.new.sku, image: &terms.image, gpus }
    }

    /// The allocation at its place, as the one who asked sees it.
    fn shown(&self, place: &Place, node: &str, at: Timestamp) -> Allocation {
        let terms = &self.new.terms;
        let mut slots: Vec<i16> = place.slots.iter().map(|slot| slot.index).collect();
        slots.sort_unstable();
        let row = Row {
            id: self.new.id.uuid(),
            name: terms.name.clone(),
            project_id: self.new.project_id,
            owner_id: terms.owner_id,
            group_id: None,
            status: Status::Requested,
            status_at: at,
            reason: None,
            sku: self.new.sku.clone(),
            whole: terms.whole,
            gpus: self.new.gpus,
            region: terms.region.clone(),
            image: terms.image.clone(),
            access: None,
            price_micros_per_gpu_second: terms.price_micros_per_gpu_second,
            currency: terms.currency.clone(),
            created_at: at,
            active_at: None,
            release_requested_at: None,
            ended_at: None,
            seq: 1,
            node: Some(node.to_owned()),
            node_silent_since: None,
            slots,
            role: self.viewer.role,
        };
        shown(row, self.viewer)
    }
}

/// Judges and admits those who came together. One verdict each, in their order.
pub(crate) async fn together(
    (store, in_hand): (&Store, &InHand),
    policies: &Policies,
    times: (Timestamp, Timestamp),
    requests: Vec<Request>,
) -> Vec<Verdict> {
    let mut attempts = 1;
    loop {
        match attempt((store, in_hand), policies, times, &requests).await {
            Ok(verdicts) => return verdicts,
            Err(Error::Store(store::Error::Conflict)) if attempts < ATTEMPTS_MAX => attempts += 1,
            // A race that was lost is run again, alone.
            Err(error)
                if requests.len() == 1
                    && !matches!(error, Error::Store(store::Error::Conflict)) =>
            {
                return vec![Verdict::Failed(error)];
            }
            // Whatever it was, and even if nobody knows whether it was committed: alone, each of them finds out by its key.
            Err(error) => {
                let count = requests.len();
                tracing::info!(
                    error = error.chain(),
                    count,
                    "a batch of requests failed: each is tried alone"
                );
                return requests.iter().map(|_| Verdict::Alone).collect();
            }
        }
    }
}

async fn attempt(
    (store, in_hand): (&Store, &InHand),
    policies: &Policies,
    (now, expired_before): (Timestamp, Timestamp),
    requests: &[Request],
) -> Result<Vec<Verdict>, Error> {
    let questions: Vec<Asked> = requests.iter().map(Request::question).collect();
    let turn = in_hand.turn().await;
    let found = terms::find(store, &questions, &turn.passed_by, expired_before).await?;
    let (at, mut placed) = (found.at, placed(store, policies, found, requests));
    let nodes = placed.iter().filter_map(|one| Some(one.as_ref().ok()?.place.node.uuid()));
    let nodes = turn.take(nodes.collect());
    let made = placed.iter().filter_map(|one| one.as_ref().ok()).collect::<Vec<_>>();
    if !made.is_empty() {
        write(store, nodes, &made, Times { at, now, expired_before }).await?;
    }
    let verdict = |one: Result<Placed, Verdict>| match one {
        Ok(placed) => Verdict::Settled(Settled::Made(Box::new(placed.shown))),
        Err(verdict) => verdict,
    };
    Ok(placed.drain(..).map(verdict).collect())
}

/// Writes them by themselves, and gives their nodes back.
async fn write(store: &Store, nodes: Nodes, placed: &[&Placed], times: Times) -> Result<(), Error> {
    let written = Written::of(placed)?;
    let heard = subscriptions::provisioner(Subject::ProvisioningRequested);
    let done = admission::write(store, &written.admitted(placed), heard, times).await;
    if let Err(store::Error::Conflict) = done {
        nodes.lost();
    }
    Ok(done?)
}

/// A wish with its place, and how whoever asked sees it.
struct Placed {
    wish: Wish,
    place: Place,
    shown: Allocation,
}

/// Judges each, and finds a place for whoever may have one. Who finds none has to be asked for alone: others may have it in hand.
fn placed(
    store: &Store,
    policies: &Policies,
    found: Found,
    requests: &[Request],
) -> Vec<Result<Placed, Verdict>> {
    let Found { at, terms, kinds, spares } = found;
    let judged = requests
        .iter()
        .zip(terms)
        .map(|(request, terms)| request.judged(store, policies, terms).map_err(Verdict::Settled));
    let mut wishes: Vec<Option<Result<Wish, Verdict>>> = judged.map(Some).collect();
    let wish_of = |one: &Option<Result<Wish, Verdict>>| Some(one.as_ref()?.as_ref().ok()?.new.gpus);
    // The largest first: what is hard to place is placed while there is room.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|index| Reverse(wish_of(&wishes[*index])));
    let (mut shelf, mut shelved) = (Shelf::default(), BTreeSet::new());
    for (wish, kind) in wishes.iter().zip(&kinds) {
        if let Some(Ok(wish)) = wish
            && shelved.insert(*kind)
        {
            shelf.add(wish, &spares[*kind]);
        }
    }
    let mut all: Vec<Option<Result<Placed, Verdict>>> = wishes.iter().map(|_| None).collect();
    for index in order {
        all[index] = wishes[index].take().map(|wish| {
            let wish = wish?;
            let taken = shelf.take(&wish, &spares[kinds[index]]);
            let (place, node) = taken.ok_or(Verdict::Alone)?;
            let shown = wish.shown(&place, &node, at);
            Ok(Placed { wish, place, shown })
        });
    }
    all.into_iter().map(|one| one.unwrap_or(Err(Verdict::Alone))).collect()
}

/// Judges and admits one who is asked for alone: waits for nodes that others are looking at, and is sure of the answer.
///
/// # Errors
/// [`store::Error::Conflict`] when a race was lost.
pub(super) async fn alone(
    store: &Store,
    policies: &Policies,
    (now, expired_before): (Timestamp, Timestamp),
    request: &Request,
) -> Result<Settled, Error> {
    let mut tx = store.begin().await?;
    let terms = terms::of(&mut tx, request.question(), expired_before).await?;
    let wish = match request.judged(store, policies, terms) {
        Ok(wish) => wish,
        Err(settled) => {
            tx.rollback().await?;
            return Ok(settled);
        }
    };
    let (key, asked) = (wish.key.clone(), &wish.fingerprint);
    let taken = idempotency::take(&mut tx, key, asked, now, expired_before).await?;
    if let Taken::Answered(answer) = taken {
        tx.rollback().await?;
        return Ok(Settled::Answered(answer));
    }
    let Some(place) = placement::find(&mut tx, &wish.wanted()).await? else {
        tx.rollback().await?;
        return Ok(Settled::Full(wish.sku));
    };
    let (at, node) = admission::moment_on(&mut tx, place.node).await?;
    let shown = wish.shown(&place, &node, at);
    let placed = Placed { wish, place, shown };
    let (written, heard) =
        (Written::of(&[&placed])?, subscriptions::provisioner(Subject::ProvisioningRequested));
    let times = Times { at, now, expired_before };
    admission::write_in(&mut tx, &written.admitted(&[&placed]), heard, times).await?;
    tx.commit().await?;
    Ok(Settled::Made(Box::new(placed.shown)))
}

/// What is written of those who have a place, besides what they asked for, in their order.
struct Written {
    bodies: Vec<Box<RawValue>>,
    runs: Vec<NewRun>,
}

impl Written {
    fn of(placed: &[&Placed]) -> Result<Written, Error> {
        let bodies = placed.iter().map(|one| to_raw_value(&one.shown));
        let bodies = bodies.collect::<Result<_, _>>();
        let run = |one: &&Placed| {
            let Wish { new, birth, .. } = &one.wish;
            provision::run_of(new.id, birth.event_id, new.provision)
        };
        Ok(Written {
            bodies: bodies.map_err(|_| Error::Broken("an answer can't be written".to_owned()))?,
            runs: placed.iter().map(run).collect::<Result<_, _>>()?,
        })
    }

    fn admitted<'a>(&'a self, placed: &[&'a Placed]) -> Vec<Admitted<'a>> {
        let written = self.bodies.iter().map(|body| &**body).zip(&self.runs);
        let admitted = |(placed, (body, run)): (&&'a Placed, (&'a RawValue, &'a NewRun))| {
            let Placed { wish, place, .. } = *placed;
            let (key, fingerprint) = (wish.key.as_ref(), &wish.fingerprint[..]);
            Admitted {
                allocation: &wish.new,
                birth: &wish.birth,
                trace: wish.trace.as_deref(),
                place,
                run: run.stored(),
                entry: &wish.entry,
                answer: Answer { key, fingerprint, status: CREATED, body },
            }
        };
        placed.iter().zip(written).map(admitted).collect()
    }
}

/// The nodes that were found, and for whom each is: whoever wants the same image of the same SKU in the same region, however much.
#[derive(Default)]
struct Shelf {
    stock: Stock,
    markets: BTreeMap<Market, BTreeMap<NodeId, String>>,
}

/// A region, a SKU and an image.
type Market = (String, String, String);

impl Shelf {
    /// Adds the nodes that were found for a wish and its kind.
    fn add(&mut self, wish: &Wish, spares: &[Spare]) {
        let market = self.markets.entry(wish.market()).or_default();
        for spare in spares {
            let whole = wish.new.terms.whole;
            let left = if whole { Left::Whole(true) } else { Left::Slots(spare.slots.clone()) };
            self.stock.add(spare.node, left);
            market.insert(spare.node, spare.name.clone());
        }
    }

    /// The best place for a wish among the nodes of its market, and what the node is called.
    fn take(&mut self, wish: &Wish, spares: &[Spare]) -> Option<(Place, String)> {
        let names = self.markets.get(&wish.market())?;
        let among: Vec<NodeId> = names.keys().copied().collect();
        // Only where no NUMA node is large enough were others looked for.
        let may_tear = spares.iter().any(|node| !node.on_one);
        let (node, slots) = self.stock.take(&among, wish.wanted().gpus, may_tear)?;
        Some((Place { node, slots }, names.get(&node)?.clone()))
    }
}
