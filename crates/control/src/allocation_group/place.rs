//! Where the members of a group go. One by one, the largest first, each at the best place that is left; and when that does
//! not work out, all at once, by an exact search over nodes that are locked for it. Parts of the caller's transaction.

use std::collections::BTreeMap;

use domain::ids::{AllocationGroupId, AllocationId, NodeId, SlotId};
use domain::placement::pack::{Bin, Item, Packing, pack};
use store::placement::{self, Candidate, Sought};
use store::{Tx, allocations, claims};

use crate::allocation::judge::{self, Ask, Judged};
use crate::{Caller, Error};

/// How often candidates are looked for anew, because others moved while we waited for them.
const ROUNDS_MAX: usize = 8;

/// How places are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The best for each: a node at a time is locked.
    OneByOne,
    /// All at once: every node that may matter is locked.
    Exact,
}

/// A member to be.
pub(super) struct Member<'a> {
    /// Its identity.
    pub(super) id: AllocationId,
    /// What is asked for.
    pub(super) ask: Ask<'a>,
    /// What is agreed.
    pub(super) judged: Judged,
    /// What it is called.
    pub(super) name: String,
    /// Whether the group is nothing without it.
    pub(super) required: bool,
}

impl Member<'_> {
    /// How much of a node it takes, as nodes count what they have free.
    fn size(&self) -> i16 {
        self.gpus().unwrap_or(1)
    }

    /// How many slots; none for a whole machine.
    fn gpus(&self) -> Option<i16> {
        (!self.judged.sku.whole).then_some(self.ask.gpus)
    }

    /// Members of one market are after the same nodes.
    fn market(&self) -> (&str, &str) {
        (self.ask.region, self.ask.sku)
    }
}

/// Places and writes all members. Otherwise says which of them has no place, and whether the others may be what is in its
/// way; the transaction can then only be undone.
pub(super) async fn all(
    tx: &mut Tx,
    caller: &Caller,
    (group, members): (AllocationGroupId, &[Member<'_>]),
    way: Way,
) -> Result<Option<(usize, bool)>, Error> {
    placement::lock_groups(tx).await?;
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(members[*index].size()));
    let planned = match way {
        Way::OneByOne => None,
        Way::Exact => match plan(tx, members).await? {
            Some(nodes) => Some(nodes),
            None => return Ok(Some((order[0], false))),
        },
    };
    for (done, index) in order.iter().copied().enumerate() {
        let member = &members[index];
        let place = match &planned {
            Some(nodes) => Some(placement::take(tx, nodes[index], member.gpus()).await?),
            None => judge::find(tx, &member.ask, &member.judged).await?,
        };
        let Some(place) = place else {
            let crowded =
                order[..done].iter().any(|other| members[*other].market() == member.market());
            return Ok(Some((index, crowded)));
        };
        let ask = Ask { name: Some(&member.name), ..member.ask.clone() };
        let part_of = Some((group, member.required));
        let asked = (&ask, member.judged.clone());
        let (new, birth) = judge::agreed(|| tx.new_id(), caller, member.id, asked, part_of);
        allocations::insert(tx, &new, birth.clone()).await?;
        let slots: Vec<SlotId> = place.slots.iter().map(|slot| slot.id).collect();
        claims::insert_all(tx, member.id, place.node, &slots, &birth).await?;
    }
    Ok(None)
}

/// A node for every member, market by market; none if there is no way to have them all.
async fn plan(tx: &mut Tx, members: &[Member<'_>]) -> Result<Option<Vec<NodeId>>, Error> {
    let mut markets: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (index, member) in members.iter().enumerate() {
        markets.entry(member.market()).or_default().push(index);
    }
    let mut nodes: BTreeMap<usize, NodeId> = BTreeMap::new();
    for indexes in markets.values() {
        let theirs: Vec<&Member<'_>> = indexes.iter().map(|index| &members[*index]).collect();
        let Some(found) = plan_market(tx, &theirs).await? else {
            return Ok(None);
        };
        nodes.extend(indexes.iter().copied().zip(found));
    }
    Ok(Some(nodes.into_values().collect()))
}

/// A node for each of these, which are all after the same nodes.
///
/// Of each image the nodes with most free are enough, as many as there are members: whatever a way puts on another node
/// could be moved to one of those that is unused, which has at least as much. When a look under all locks finds no
/// candidate that is not locked, the answer is that of one moment, and exact.
async fn plan_market(tx: &mut Tx, members: &[&Member<'_>]) -> Result<Option<Vec<NodeId>>, Error> {
    let mut images: Vec<String> = members.iter().map(|each| each.judged.image.clone()).collect();
    images.sort_unstable();
    images.dedup();
    let (region, sku) = members[0].market();
    let count = i64::try_from(members.len()).unwrap_or(i64::MAX);
    let sought = Sought { region, sku, images: &images, members: count };
    let mut locked: Vec<Candidate> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let mut fresh = placement::candidates(tx, &sought).await?;
        fresh.retain(|node| locked.iter().all(|known| known.node != *node));
        if fresh.is_empty() {
            return Ok(None);
        }
        locked.extend(placement::lock_candidates(tx, &fresh, &images).await?);
        if let Some(nodes) = arrange(members, &locked, &images)? {
            return Ok(Some(nodes));
        }
    }
    // Others move faster than we can look: begin anew.
    Err(store::Error::Conflict.into())
}

/// The search itself.
fn arrange(
    members: &[&Member<'_>],
    locked: &[Candidate],
    images: &[String],
) -> Result<Option<Vec<NodeId>>, Error> {
    let kind =
        |image: &String| images.binary_search(image).ok().and_then(|at| u8::try_from(at).ok());
    let size = |count: i16| u16::try_from(count).unwrap_or(0);
    let item = |member: &&Member<'_>| Item {
        size: size(member.size()),
        // There are fewer images than members, so this is a kind that no node has.
        kind: kind(&member.judged.image).unwrap_or(63),
    };
    let bin = |node: &Candidate| {
        let kinds = node.images.iter().filter_map(kind).fold(0, |bits, at| bits | 1_u64 << at);
        Bin { free: size(node.free), kinds }
    };
    let items: Vec<Item> = members.iter().map(item).collect();
    let bins: Vec<Bin> = locked.iter().map(bin).collect();
    match pack(&items, &bins) {
        Packing::Fits(places) => Ok(Some(places.into_iter().map(|at| locked[at].node).collect())),
        Packing::DoesNotFit => Ok(None),
        Packing::Undecided => Err(Error::SkuUnavailable {
            detail: "nobody can tell in reasonable time whether all members fit; ask for fewer at once, or for members of the same size".to_owned(),
            would_fit: Vec::new(),
            narrowed: Vec::new(),
        }),
    }
}
