//! The timeline as it happens: one event for every row that is written, told in order, from wherever somebody left off.
//! Where they left off is a vector, the last number of each source that was seen; it travels as the id of the last event,
//! signed, so that what comes back is what was given. It loses nothing and doubles nothing, because every source only grows
//! at its end (see `store::views::events`).

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use domain::machines::{Allocation as Machine, node_task};
use domain::policy::Permission;
use lifecycle::{Code as _, Machine as _, Rest};
use store::log::Transition;
use store::views::allocations;
use store::views::events::{self, Happening, Reached, Seen, SeenTask, Source, Watched, Watcher};
use uuid::Uuid;
use wire::http::allocations::AllocationStatus;
use wire::http::timeline::{EventKind, ItemStatus, TimelineEvent};
use wire::node::{Phase, PhaseStatus};
use wire::seal::Purpose;

use super::reason::{OurReason, word};
use super::timeline::words::{of_step, of_task, status_of};
use crate::{Caller, Ctx, Error};

/// More than an allocation ever has, and still small enough for a header.
const TASKS_MAX: usize = 1_000;
/// The bytes of an entry: a task, and two numbers.
const ENTRY: usize = 32;

/// Where somebody stands in the stream of one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    allocation: AllocationId,
    seen: Seen,
}

impl Cursor {
    /// Before everything.
    pub fn start(allocation: AllocationId) -> Cursor {
        Cursor { allocation, seen: Seen::default() }
    }

    /// What was given as the id of an event of this allocation; none for anything else.
    pub fn read(ctx: &Ctx, allocation: AllocationId, text: &str) -> Option<Cursor> {
        let (text, signature) = text.split_once('.')?;
        if !ctx.keys.verify(Purpose::Cursor, &signed(allocation, text), signature) {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (first, entries) = bytes.split_first_chunk::<8>()?;
        let mut seen = Seen { allocation: i64::from_be_bytes(*first), ..Seen::default() };
        for entry in entries.chunks(ENTRY) {
            let (id, numbers) = entry.split_first_chunk::<16>()?;
            let (seq, phase) = numbers.split_first_chunk::<8>()?;
            let task = SeenTask {
                seq: i64::from_be_bytes(*seq),
                phase: i64::from_be_bytes(phase.try_into().ok()?),
            };
            seen.tasks.insert(Uuid::from_bytes(*id), task);
        }
        Some(Cursor { allocation, seen })
    }

    /// The id of the last event that was seen.
    pub fn write(&self, ctx: &Ctx) -> String {
        let tasks = self.seen.tasks.iter().take(TASKS_MAX);
        let mut bytes = self.seen.allocation.to_be_bytes().to_vec();
        for (id, SeenTask { seq, phase }) in tasks {
            bytes.extend(id.as_bytes());
            bytes.extend(seq.to_be_bytes());
            bytes.extend(phase.to_be_bytes());
        }
        let text = URL_SAFE_NO_PAD.encode(bytes);
        let signature = ctx.keys.sign(Purpose::Cursor, &signed(self.allocation, &text));
        format!("{text}.{signature}")
    }
}

/// A cursor is good for one allocation, and is no cursor of a list.
fn signed(allocation: AllocationId, text: &str) -> Vec<u8> {
    format!("events {allocation} {text}").into_bytes()
}

/// Whether the caller may watch an allocation of their projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn for_tenant(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Watcher, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocations::find_for(&ctx.store, id, caller.user_id).await?;
    row.map(|_| watcher(caller, Watched::Allocation(id.uuid())))
        .ok_or(Error::NotFound("allocation"))
}

/// Whether the caller may watch any allocation.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::NotFound`] when there is none.
pub async fn for_operator(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Watcher, Error> {
    caller.needs(Permission::FleetRead)?;
    let row = allocations::find(&ctx.store, id).await?;
    row.map(|_| watcher(caller, Watched::AnyAllocation(id.uuid())))
        .ok_or(Error::NotFound("allocation"))
}

fn watcher(caller: &Caller, watched: Watched) -> Watcher {
    Watcher { token: caller.token_id, user: caller.user_id, watched }
}

/// Those who may still watch, by their places.
///
/// # Errors
/// When the database fails.
pub async fn still_allowed(ctx: &Ctx, watchers: &[Watcher]) -> Result<Vec<usize>, Error> {
    Ok(events::still_allowed(&ctx.store, watchers, ctx.clock.now()).await?)
}

/// How far each of these allocations has got, for whoever makes sure that nobody who watches has missed a ring.
///
/// # Errors
/// When the database fails.
pub async fn reached(ctx: &Ctx, ids: &[Uuid]) -> Result<Vec<(Uuid, Reached)>, Error> {
    Ok(events::reached(&ctx.store, ids).await?)
}

/// An event with its id: who has seen it goes on after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its id.
    pub id: String,
    /// What it says.
    pub event: TimelineEvent,
}

/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These events, at least one.
    Events(VecDeque<Told>),
    /// Nothing yet.
    Nothing,
    /// Nothing any more: it has ended like this.
    Over(AllocationStatus),
}

/// What happened after what was seen; the cursor goes along.
///
/// # Errors
/// When the database fails.
pub async fn next(ctx: &Ctx, cursor: &mut Cursor) -> Result<Next, Error> {
    let mut found = events::after(&ctx.store, cursor.allocation, &cursor.seen).await?;
    if found.is_empty() {
        let quiet = events::quiet_in(&ctx.store, cursor.allocation).await?;
        let ended = quiet.as_deref().and_then(Status::parse).filter(|status| is_end(*status));
        let Some(status) = ended else {
            return Ok(Next::Nothing);
        };
        // It was over before this look: what it does not find does not exist.
        found = events::after(&ctx.store, cursor.allocation, &cursor.seen).await?;
        if found.is_empty() {
            return Ok(Next::Over(status.into()));
        }
    }
    let mut told = VecDeque::with_capacity(found.len());
    for happening in found {
        cursor.seen.note(&happening);
        told.push_back(Told { id: cursor.write(ctx), event: event(happening) });
    }
    Ok(Next::Events(told))
}

fn is_end(status: Status) -> bool {
    let spec = Machine::STATUSES.iter().find(|spec| spec.status == status);
    spec.is_some_and(|spec| matches!(spec.rest, Rest::Terminal))
}

/// A row in our words. One that this version does not know is told too, without a word of it.
fn event(row: Happening) -> TimelineEvent {
    match row.source {
        Source::Allocation => state(row),
        Source::Task(id) => task(row, id),
        Source::Phase(id) => phase(row, id),
    }
}

fn state(row: Happening) -> TimelineEvent {
    let to = Status::parse(&row.to);
    let step = Transition {
        seq: row.number,
        event_id: Uuid::nil(),
        event: row.event,
        from: row.from,
        to: row.to,
        operation_id: None,
        source: row.role,
        actor: String::new(),
        cause: None,
        reason: None,
        occurred_at_micros: row.at.as_microsecond(),
    };
    let told = of_step(&step);
    let reason = row.reason.filter(|_| told.failed);
    TimelineEvent {
        kind: EventKind::State.into(),
        item: format!("state:{}", row.number),
        name: told.name.to_owned(),
        status: if told.failed { ItemStatus::Failed } else { ItemStatus::Succeeded }.into(),
        allocation_status: to.map(Into::into),
        at: row.at,
        summary: told.sentence.to_owned(),
        reason: reason.map(|reason| word(&reason).to_owned()),
    }
}

fn task(row: Happening, id: Uuid) -> TimelineEvent {
    let (name, summary) = of_task(row.kind.as_deref().unwrap_or_default());
    let status = node_task::Status::parse(&row.to).map(status_of);
    let (status, reason) = match status {
        Some(ItemStatus::Succeeded) if row.residue => {
            (ItemStatus::Failed, Some("cleanup_incomplete".to_owned()))
        }
        Some(ItemStatus::Failed) => {
            let reason = row.reason.unwrap_or_else(|| OurReason::Timeout.code().to_owned());
            (ItemStatus::Failed, Some(reason))
        }
        // Of a newer binary.
        None => (ItemStatus::Waiting, None),
        Some(
            known @ (ItemStatus::Waiting
            | ItemStatus::Running
            | ItemStatus::Succeeded
            | ItemStatus::Cancelled),
        ) => (known, None),
    };
    TimelineEvent {
        kind: EventKind::Task.into(),
        item: format!("task:{id}"),
        name: name.to_owned(),
        status: status.into(),
        allocation_status: None,
        at: row.at,
        summary: summary.to_owned(),
        reason: reason.map(|reason| word(&reason).to_owned()),
    }
}

fn phase(row: Happening, id: Uuid) -> TimelineEvent {
    let status = match PhaseStatus::parse(&row.to) {
        Some(PhaseStatus::Succeeded) => ItemStatus::Succeeded,
        Some(PhaseStatus::Failed) => ItemStatus::Failed,
        Some(PhaseStatus::Running) | None => ItemStatus::Running,
    };
    let known = Phase::parse(&row.event);
    TimelineEvent {
        kind: EventKind::Phase.into(),
        item: format!("task:{id}"),
        name: known.map_or("other", |phase| phase.code()).to_owned(),
        status: status.into(),
        allocation_status: None,
        at: row.at,
        summary: of_task(row.kind.as_deref().unwrap_or_default()).1.to_owned(),
        reason: None,
    }
}
