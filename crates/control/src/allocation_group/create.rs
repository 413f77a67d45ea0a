//! Create: all members are judged, placed and written in one transaction, or none is. What follows is the story of each
//! member. Door: POST /allocation-groups.

use domain::ids::{AllocationGroupId, AllocationId, EventId};
use serde_json::json;
use store::lifecycle::Birth;
use store::{Tx, allocation_groups};
use wire::http::allocation_groups::{AllocationGroup, MEMBERS_MAX, NewGroup};
use wire::problem::Fault;

use super::place::{self, Member, Way};
use super::view;
use crate::allocation::judge::{self, Ask, Judged};
use crate::allocation::view::Viewer;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::{Caller, Ctx, Error};

/// How often a group is tried that lost a race to somebody else.
const ATTEMPTS_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 64;

/// A member as the request has it: of those that are alike, each is one.
struct Wish {
    /// The number of its entry in the body.
    entry: usize,
    name: Option<String>,
    required: bool,
}

/// How a try ended.
enum Tried {
    Answered(Answer<AllocationGroup>),
    /// Somebody has no place; whether another arrangement might have one for them.
    NoRoom {
        refusal: Error,
        crowded: bool,
    },
}

/// Somebody asks for several allocations at once. Either all of them are theirs when this answers, or none is and it says
/// which of them has no place.
///
/// # Errors
/// What is wrong with the request; [`Error::SkuUnavailable`] when it can't be had.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewGroup,
    key: &Key,
) -> Result<Answer<AllocationGroup>, Error> {
    let wishes = well_formed(asked)?;
    let mut way = Way::OneByOne;
    let mut refused = None;
    for _ in 0..ATTEMPTS_MAX {
        match attempt(ctx, caller, (asked, &wishes), key, way).await {
            Ok(Tried::Answered(answer)) => return Ok(answer),
            Ok(Tried::NoRoom { refusal, crowded }) => {
                if way == Way::Exact || !crowded {
                    return Err(refused.unwrap_or(refusal));
                }
                // What it said of one by one is what a person understands; whether it is so is decided exactly.
                (way, refused) = (Way::Exact, Some(refusal));
            }
            Err(Error::Store(store::Error::Conflict)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(store::Error::Conflict.into())
}

async fn attempt(
    ctx: &Ctx,
    caller: &Caller,
    (asked, wishes): (&NewGroup, &[Wish]),
    key: &Key,
    way: Way,
) -> Result<Tried, Error> {
    let mut tx = match begin(ctx, Some(key)).await? {
        Begun::Known(answer) => return Ok(Tried::Answered(answer)),
        Begun::Fresh(tx) => tx,
    };
    let entries = judge_all(ctx, &mut tx, caller, asked).await?;
    let id = AllocationGroupId(tx.new_id());
    let name = asked.name.clone().unwrap_or_else(|| made_up(id));
    let members = members(&mut tx, (asked, &name), (wishes, &entries));
    let mut birth = Birth::new(EventId(tx.new_id()), caller.actor());
    birth.cause = Some(caller.cause());
    let new = allocation_groups::NewGroup {
        id,
        project_id: asked.project_id,
        name: Some(name),
        owner_id: Some(caller.user_id),
    };
    allocation_groups::insert(&mut tx, &new, &birth).await?;
    if let Some((missing, crowded)) = place::all(&mut tx, caller, (id, &members), way).await? {
        let refusal = no_room(&mut tx, &members, missing).await?;
        tx.rollback().await?;
        return Ok(Tried::NoRoom { refusal, crowded });
    }
    let viewer = Viewer::of(caller, Some(entries[0].role));
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    let deed = Deed::new(caller, Action::GroupCreate, "allocation_group", id)
        .in_project(asked.project_id)
        .with(json!({ "members": members.len() }));
    Ok(Tried::Answered(finish(tx, &deed, Some(key), 201, shown).await?))
}

/// Each entry of the request is judged once, however many are alike.
async fn judge_all(
    ctx: &Ctx,
    tx: &mut Tx,
    caller: &Caller,
    asked: &NewGroup,
) -> Result<Vec<Judged>, Error> {
    let mut judged = Vec::with_capacity(asked.members.len());
    for entry in 0..asked.members.len() {
        let told = judge::judge(ctx, tx, caller, &ask_of(asked, entry)).await;
        judged.push(told.map_err(|error| of_member(error, asked, entry))?);
    }
    Ok(judged)
}

/// What one entry of the request asks for.
fn ask_of(asked: &NewGroup, entry: usize) -> Ask<'_> {
    let member = &asked.members[entry];
    let place = format!("/members/{entry}");
    let own_keys = member.ssh_key_ids.as_deref();
    Ask {
        project: asked.project_id,
        sku: &member.sku,
        gpus: member.gpus,
        region: &member.region,
        image: member.image.as_deref(),
        name: member.name.as_deref(),
        ssh_keys: own_keys.unwrap_or(&asked.ssh_key_ids),
        keys_place: if own_keys.is_some() { place.clone() } else { String::new() },
        place,
    }
}

/// The members with their names and identities, in the order of the request.
fn members<'a>(
    tx: &mut Tx,
    (asked, group): (&'a NewGroup, &str),
    (wishes, judged): (&'a [Wish], &[Judged]),
) -> Vec<Member<'a>> {
    let member = |(number, wish): (usize, &'a Wish)| Member {
        id: AllocationId(tx.new_id()),
        ask: ask_of(asked, wish.entry),
        judged: judged[wish.entry].clone(),
        name: wish.name.clone().unwrap_or_else(|| numbered(group, number + 1)),
        required: wish.required,
    };
    wishes.iter().enumerate().map(member).collect()
}

/// What can be said of a request without looking anything up; the members, each on its own.
fn well_formed(asked: &NewGroup) -> Result<Vec<Wish>, Error> {
    let mut faults = Vec::new();
    let mut wishes = Vec::new();
    if let Some(detail) = asked.name.as_deref().and_then(judge::name_fault) {
        faults.push(Fault { pointer: "/name".to_owned(), detail });
    }
    if asked.members.is_empty() || asked.members.len() > MEMBERS_MAX {
        return Err(Error::invalid("/members", format!("1 to {MEMBERS_MAX} members")));
    }
    for (entry, member) in asked.members.iter().enumerate() {
        faults.extend(judge::faults(&ask_of(asked, entry)));
        let count = usize::from(member.count.unwrap_or(1));
        if !(1..=MEMBERS_MAX).contains(&count) {
            let pointer = format!("/members/{entry}/count");
            faults.push(Fault { pointer, detail: format!("1 to {MEMBERS_MAX}") });
            continue;
        }
        wishes.extend((1..=count).map(|number| {
            Wish {
                entry,
                name: member
                    .name
                    .as_deref()
                    .map(|name| if count == 1 { name.to_owned() } else { numbered(name, number) }),
                required: member.required.unwrap_or(true),
            }
        }));
    }
    // The keys of the group are looked at with each entry that uses them.
    faults.dedup();
    if wishes.len() > MEMBERS_MAX {
        let detail =
            format!("{} members in all, and at most {MEMBERS_MAX} can be had", wishes.len());
        faults.push(Fault { pointer: "/members".to_owned(), detail });
    }
    if faults.is_empty() { Ok(wishes) } else { Err(Error::Invalid(faults)) }
}

/// A refusal says which member it is about.
fn of_member(error: Error, asked: &NewGroup, entry: usize) -> Error {
    let Error::SkuUnavailable { detail, would_fit, narrowed } = error else {
        return error;
    };
    let name = asked.members[entry].name.as_deref();
    let which = name.map_or_else(|| format!("member {entry}"), |name| format!("member {name:?}"));
    Error::SkuUnavailable { detail: format!("{which}: {detail}"), would_fit, narrowed }
}

/// Why the whole group is refused: which member has no place, with those before it at theirs.
async fn no_room(tx: &mut Tx, members: &[Member<'_>], missing: usize) -> Result<Error, Error> {
    let member = &members[missing];
    let refusal = judge::no_capacity(tx, &member.ask, &member.judged.sku).await?;
    let Error::SkuUnavailable { detail, would_fit, narrowed } = refusal else {
        return Ok(refusal);
    };
    let count = members.len();
    let (name, entry) = (&member.name, &member.ask.place);
    let detail = match count {
        1 => detail,
        _ => format!(
            "all {count} members together do not fit: beside the others there is no place for {name} ({entry}): {detail}"
        ),
    };
    Ok(Error::SkuUnavailable { detail, would_fit, narrowed })
}

/// A name with a number, short enough to be a name.
fn numbered(name: &str, number: usize) -> String {
    let end = format!("-{number}");
    let kept = name.chars().take(NAME_CHARS_MAX - end.len());
    kept.chain(end.chars()).collect()
}

/// A name for what nobody has named.
fn made_up(id: AllocationGroupId) -> String {
    let text = id.uuid().simple().to_string();
    // The end of an identity is its random part.
    format!("group-{}", &text[text.len() - 6..])
}
