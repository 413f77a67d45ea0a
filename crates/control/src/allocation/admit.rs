//! Requests are judged and get their places: those that came together by one look at their terms and in one transaction, whoever does
//! not fit into that alone. Nothing of it is true before it is committed, and each has the answer that was kept with its key.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use domain::ids::{AllocationId, NodeId};
use domain::machines::allocation::Status;
use domain::placement::stock::{Left, Stock};
use jiff::Timestamp;
use serde_json::{Value, json};
use spine::workflow::NewRun;
use store::admission::{self, Admitted, Answer, Found, Kind, Times};
use store::allocations::NewAllocation;
use store::audit_log::NewEntry;
use store::idempotency::{OwnKey, StoredAnswer, Taken};
use store::lifecycle::Birth;
use store::placement::{self, Asked, Place, SkuTerms, Terms, Wanted};
use store::views::allocations::Row;
use store::{Store, Tx, idempotency};
use wire::bus::Subject;
use wire::http::allocations::Allocation;

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
    store: &Store,
    policies: &Policies,
    times: (Timestamp, Timestamp),
    requests: Vec<Request>,
) -> Vec<Verdict> {
    match attempt(store, policies, times, &requests).await {
        Ok(verdicts) => verdicts,
        // A race that was lost is run again, alone.
        Err(error)
            if requests.len() == 1 && !matches!(error, Error::Store(store::Error::Conflict)) =>
        {
            vec![Verdict::Failed(error)]
        }
        // Whatever it was, and even if nobody knows whether it was committed: alone, each of them finds out by its key.
        Err(error) => {
            let count = requests.len();
            tracing::info!(
                error = error.chain(),
                count,
                "a batch of requests failed: each is tried alone"
            );
            requests.iter().map(|_| Verdict::Alone).collect()
        }
    }
}

async fn attempt(
    store: &Store,
    policies: &Policies,
    times: (Timestamp, Timestamp),
    requests: &[Request],
) -> Result<Vec<Verdict>, Error> {
    let questions: Vec<Asked> = requests.iter().map(Request::question).collect();
    let terms = placement::terms(store, &questions, times.1).await?;
    let mut wishes = Vec::with_capacity(requests.len());
    let mut verdicts = Vec::with_capacity(requests.len());
    for (request, terms) in requests.iter().zip(terms) {
        verdicts.push(match request.judged(store, policies, terms) {
            Ok(wish) => {
                wishes.push(wish);
                None
            }
            Err(settled) => Some(Verdict::Settled(settled)),
        });
    }
    let mut admitted =
        if wishes.is_empty() { Vec::new() } else { placed(store, times, &wishes).await? }
            .into_iter();
    // Whoever has no verdict yet had a wish.
    let verdict = |settled: Option<Verdict>| settled.or_else(|| admitted.next());
    Ok(verdicts.into_iter().map(verdict).map(|one| one.unwrap_or(Verdict::Alone)).collect())
}

/// Finds places for them, and writes them. One verdict each, in their order.
async fn placed(
    store: &Store,
    (now, expired_before): (Timestamp, Timestamp),
    wishes: &[Wish],
) -> Result<Vec<Verdict>, Error> {
    let mut tx = store.begin().await?;
    let (kinds, kind_of) = kinds(wishes);
    let (at, found) = admission::pick(&mut tx, &kinds).await?;
    let mut verdicts: Vec<Verdict> = wishes.iter().map(|_| Verdict::Alone).collect();
    let mut places: Vec<(usize, Place, Allocation)> = Vec::with_capacity(wishes.len());
    let mut shelf = Shelf::of(&kinds, &found);
    // The largest first: what is hard to place is placed while there is room.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|index| Reverse(wishes[*index].new.gpus));
    for index in order {
        let (wish, kind) = (&wishes[index], kind_of[index]);
        if found[kind] == Found::Full {
            verdicts[index] = Verdict::Settled(Settled::Full(wish.sku.clone()));
        } else if let Some((place, node)) = shelf.take(wish, &found[kind]) {
            let shown = wish.shown(&place, &node, at);
            places.push((index, place, shown));
        }
    }
    if places.is_empty() {
        tx.rollback().await?;
        return Ok(verdicts);
    }
    let placed: Vec<(&Wish, &Place, &Allocation)> =
        places.iter().map(|(index, place, shown)| (&wishes[*index], place, shown)).collect();
    if !write(&mut tx, &placed, Times { at, now, expired_before }).await? {
        // Somebody else has one of the keys, or had.
        tx.rollback().await?;
        return Ok(wishes.iter().map(|_| Verdict::Alone).collect());
    }
    tx.commit().await?;
    for (index, _, shown) in places {
        verdicts[index] = Verdict::Settled(Settled::Made(Box::new(shown)));
    }
    Ok(verdicts)
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
    let terms = placement::terms(store, &[request.question()], expired_before).await?.pop();
    let terms = terms.ok_or_else(|| Error::Broken("a question has no terms".to_owned()))?;
    let wish = match request.judged(store, policies, terms) {
        Ok(wish) => wish,
        Err(settled) => return Ok(settled),
    };
    let mut tx = store.begin().await?;
    let key = wish.key.as_ref();
    let taken = idempotency::take(&mut tx, key, &wish.fingerprint, now, expired_before).await?;
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
    let times = Times { at, now, expired_before };
    if !write(&mut tx, &[(&wish, &place, &shown)], times).await? {
        return Err(Error::Broken("a key that was taken is somebody else's".to_owned()));
    }
    tx.commit().await?;
    Ok(Settled::Made(Box::new(shown)))
}

async fn write(
    tx: &mut Tx,
    placed: &[(&Wish, &Place, &Allocation)],
    times: Times,
) -> Result<bool, Error> {
    let bodies = placed.iter().map(|(_, _, shown)| serde_json::to_value(shown));
    let bodies: Result<Vec<Value>, _> = bodies.collect();
    let bodies = bodies.map_err(|_| Error::Broken("an answer can't be written".to_owned()))?;
    let runs = placed
        .iter()
        .map(|(wish, ..)| provision::run_of(wish.new.id, wish.birth.event_id, wish.new.provision));
    let runs: Vec<NewRun> = runs.collect::<Result<_, _>>()?;
    let written = bodies.iter().zip(&runs);
    let admitted = placed.iter().zip(written).map(|((wish, place, _), (body, run))| Admitted {
        allocation: &wish.new,
        birth: &wish.birth,
        trace: wish.trace.as_deref(),
        place,
        run: run.stored(),
        entry: &wish.entry,
        answer: Answer {
            key: wish.key.as_ref(),
            fingerprint: &wish.fingerprint,
            status: CREATED,
            body,
        },
    });
    let heard = subscriptions::provisioner(Subject::ProvisioningRequested);
    Ok(admission::write(tx, &admitted.collect::<Vec<_>>(), heard, times).await?)
}

/// The kinds of what is wished for, market by market and the largest first, and of which kind each wish is.
fn kinds(wishes: &[Wish]) -> (Vec<Kind<'_>>, Vec<usize>) {
    let rank = |wish| {
        let wanted = Wish::wanted(wish);
        (market_of(&wanted), Reverse(wanted.gpus))
    };
    let mut requests = BTreeMap::new();
    for wish in wishes {
        *requests.entry(rank(wish)).or_insert(0_usize) += 1;
    }
    let ranks: Vec<_> = requests.keys().copied().collect();
    let place = |wish| ranks.binary_search(&rank(wish)).unwrap_or_default();
    let kind_of = wishes.iter().map(place).collect();
    let kind = |(((region, sku, image), Reverse(gpus)), requests)| Kind {
        wanted: Wanted { region, sku, image, gpus },
        requests,
    };
    (requests.into_iter().map(kind).collect(), kind_of)
}

/// The nodes that were found, and for whom each is: whoever wants the same image of the same SKU in the same region, however much.
struct Shelf<'a> {
    stock: Stock,
    names: BTreeMap<NodeId, &'a str>,
    markets: BTreeMap<(&'a str, &'a str, &'a str), Vec<NodeId>>,
}

impl<'a> Shelf<'a> {
    fn of(kinds: &[Kind<'a>], found: &'a [Found]) -> Shelf<'a> {
        let mut shelf =
            Shelf { stock: Stock::default(), names: BTreeMap::new(), markets: BTreeMap::new() };
        for (kind, found) in kinds.iter().zip(found) {
            let Found::Nodes(nodes) = found else { continue };
            let market = shelf.markets.entry(market_of(&kind.wanted)).or_default();
            for spare in nodes {
                let whole = kind.wanted.gpus.is_none();
                let left = if whole { Left::Whole(true) } else { Left::Slots(spare.slots.clone()) };
                shelf.stock.add(spare.node, left);
                shelf.names.insert(spare.node, &spare.name);
                market.push(spare.node);
            }
        }
        shelf
    }

    /// The best place for a wish among the nodes of its market, and what the node is called.
    fn take(&mut self, wish: &Wish, found: &Found) -> Option<(Place, String)> {
        let wanted = wish.wanted();
        let among = self.markets.get(&market_of(&wanted))?;
        // Only where no NUMA node is large enough were others looked for.
        let may_tear =
            matches!(found, Found::Nodes(nodes) if nodes.iter().any(|node| !node.on_one));
        let (node, slots) = self.stock.take(among, wanted.gpus, may_tear)?;
        let name = (*self.names.get(&node)?).to_owned();
        Some((Place { node, slots }, name))
    }
}

const fn market_of<'a>(wanted: &Wanted<'a>) -> (&'a str, &'a str, &'a str) {
    (wanted.region, wanted.sku, wanted.image)
}
