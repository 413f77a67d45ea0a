//! What happened to an allocation after what somebody has seen of it already, one row an event. It has three kinds of
//! sources, each of which only grows at its end: the log of the allocation, the log of each of its tasks, and the phases
//! told of each task. Every source is written under the lock of one row, which is held until the commit; so who sees number
//! n of a source sees all before it, and a vector with the last number of each source says exactly what was seen.

use std::collections::BTreeMap;

use domain::ids::AllocationId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store};

/// How much is read of each kind of source at a time.
const READ_MAX: i64 = 200;

/// The last number that was seen of each source. What is not in it was not seen at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Of the allocation's log.
    pub allocation: i64,
    /// Of each task.
    pub tasks: BTreeMap<Uuid, SeenTask>,
}

/// The last numbers that were seen of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenTask {
    /// Of its log.
    pub seq: i64,
    /// Of its phases.
    pub phase: i64,
}

/// Where an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The log of the allocation.
    Allocation,
    /// The log of a task.
    Task(Uuid),
    /// The phases of a task.
    Phase(Uuid),
}

/// One event, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// Where it comes from.
    pub source: Source,
    /// Its number there.
    pub number: i64,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// The event, or the phase.
    pub event: String,
    /// The status before; none for a birth or a phase.
    pub from: Option<String>,
    /// The status after, or how the phase stands.
    pub to: String,
    /// Why.
    pub reason: Option<String>,
    /// Who reported it, in which role.
    pub role: String,
    /// What sort of task it is.
    pub kind: Option<String>,
    /// Whether it is the good end of a task that left something behind.
    pub residue: bool,
}

impl Seen {
    /// The same, with one more event.
    pub fn note(&mut self, happening: &Happening) {
        match happening.source {
            Source::Allocation => self.allocation = happening.number,
            Source::Task(id) => self.tasks.entry(id).or_default().seq = happening.number,
            Source::Phase(id) => self.tasks.entry(id).or_default().phase = happening.number,
        }
    }
}

/// What happened after what was seen, a bounded piece of it, as good as in the order of time; and of every source in its
/// order, without a gap.
///
/// # Errors
/// When the database fails.
pub async fn after(store: &Store, id: AllocationId, seen: &Seen) -> Result<Vec<Happening>, Error> {
    let ids: Vec<Uuid> = seen.tasks.keys().copied().collect();
    let seqs: Vec<i64> = seen.tasks.values().map(|task| task.seq).collect();
    let phases: Vec<i64> = seen.tasks.values().map(|task| task.phase).collect();
    let rows = sqlx::query(
        "WITH seen AS MATERIALIZED (
            SELECT task_id, seq, phase FROM unnest($3::uuid[], $4::bigint[], $5::bigint[]) AS seen (task_id, seq, phase)
         ), task AS MATERIALIZED (
            SELECT node_tasks.id, kind, cleanup_complete, coalesce(seen.seq, 0) AS seq, coalesce(seen.phase, 0) AS phase
              FROM node_tasks
              LEFT JOIN seen ON seen.task_id = node_tasks.id
             WHERE allocation_id = $1
         )
         (SELECT 1, entity_id, seq, occurred_at, event, from_status, to_status, reason, source, NULL::text, false
            FROM lifecycle_log
           WHERE entity_id = $1 AND machine = 'allocation' AND seq > $2
           ORDER BY seq
           LIMIT $6)
         UNION ALL
         (SELECT 2, task.id, log.seq, log.occurred_at, log.event, log.from_status, log.to_status, log.reason, log.source,
                 task.kind, log.to_status = 'succeeded' AND task.cleanup_complete IS FALSE
            FROM task
            JOIN lifecycle_log AS log
              ON log.entity_id = task.id AND log.machine = 'node_task' AND log.seq > task.seq
           ORDER BY task.id, log.seq
           LIMIT $6)
         UNION ALL
         (SELECT 3, task.id, told.position, told.received_at, told.phase, NULL, told.stands, NULL, 'agent', task.kind, false
            FROM task
            JOIN node_task_events AS told ON told.task_id = task.id AND told.position > task.phase
           ORDER BY task.id, told.position
           LIMIT $6)",
    )
    .bind(id.uuid())
    .bind(seen.allocation)
    .bind(ids)
    .bind(seqs)
    .bind(phases)
    .bind(READ_MAX)
    .fetch_all(store.pool())
    .await?;
    let found: Result<Vec<Happening>, Error> = rows.iter().map(happening).collect();
    Ok(in_order(found?))
}

fn happening(row: &PgRow) -> Result<Happening, Error> {
    let id: Uuid = row.try_get(1)?;
    Ok(Happening {
        source: match row.try_get::<i32, _>(0)? {
            1 => Source::Allocation,
            2 => Source::Task(id),
            _ => Source::Phase(id),
        },
        number: row.try_get(2)?,
        at: row.try_get::<jiff_sqlx::Timestamp, _>(3)?.to_jiff(),
        event: row.try_get(4)?,
        from: row.try_get(5)?,
        to: row.try_get(6)?,
        reason: row.try_get(7)?,
        role: row.try_get(8)?,
        kind: row.try_get(9)?,
        residue: row.try_get::<Option<bool>, _>(10)?.unwrap_or(false),
    })
}

/// By time across the sources, but never against the order of one: a clock that was set back changes nothing in that.
fn in_order(mut found: Vec<Happening>) -> Vec<Happening> {
    found.sort_by_key(|happening| (happening.source, happening.number));
    let mut latest: Option<(Source, Timestamp)> = None;
    let mut keyed: Vec<(Timestamp, Happening)> = Vec::with_capacity(found.len());
    for happening in found {
        let before = latest.filter(|(source, _)| *source == happening.source);
        let at = before.map_or(happening.at, |(_, before)| before.max(happening.at));
        latest = Some((happening.source, at));
        keyed.push((at, happening));
    }
    // A stable sort: what is equal stays as it is.
    keyed.sort_by_key(|(at, _)| *at);
    keyed.into_iter().map(|(_, happening)| happening).collect()
}

/// The status of an allocation for which nothing goes on any more: no task is live, no workflow at it. None while
/// something does, or when there is no such allocation; whether the status is an end is for the caller to say.
///
/// # Errors
/// When the database fails.
pub async fn quiet_in(store: &Store, id: AllocationId) -> Result<Option<String>, Error> {
    let row = sqlx::query(
        "SELECT status
           FROM allocations
          WHERE id = $1
            AND NOT EXISTS (SELECT 1 FROM node_tasks WHERE allocation_id = $1 AND status IN ('queued', 'dispatched'))
            AND NOT EXISTS (SELECT 1 FROM workflow_runs WHERE entity_id = $1 AND done_at IS NULL)",
    )
    .bind(id.uuid())
    .fetch_optional(store.pool())
    .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// How far an allocation has got: whoever has seen all there was at one of these has missed something if it is another now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The numbers of all its sources, added up: each of them only grows.
    pub numbers: i64,
    /// Whether a workflow is at it.
    pub busy: bool,
}

/// How far each of these allocations has got. One statement for all of them, however many they are.
///
/// # Errors
/// When the database fails.
pub async fn reached(store: &Store, ids: &[Uuid]) -> Result<Vec<(Uuid, Reached)>, Error> {
    let rows = sqlx::query(
        "SELECT allocation.id,
                allocation.seq + coalesce(tasks.numbers, 0)::bigint,
                EXISTS (SELECT 1 FROM workflow_runs WHERE entity_id = allocation.id AND done_at IS NULL)
           FROM allocations AS allocation
           LEFT JOIN LATERAL (
                SELECT sum(seq + phases_told) AS numbers
                  FROM node_tasks
                 WHERE allocation_id = allocation.id
                ) AS tasks ON true
          WHERE allocation.id = ANY($1)",
    )
    .bind(ids)
    .fetch_all(store.pool())
    .await?;
    let reached = |row: &PgRow| {
        let (numbers, busy) = (row.try_get(1)?, row.try_get(2)?);
        Ok((row.try_get(0)?, Reached { numbers, busy }))
    };
    rows.iter().map(reached).collect()
}

/// What somebody watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// An allocation of a project that they are a member of.
    Allocation(Uuid),
    /// Any allocation, as an operator.
    AnyAllocation(Uuid),
    /// What they themselves are told.
    Own,
}

/// Somebody who watches something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watcher {
    /// The token they came with.
    pub token: Uuid,
    /// Who they are.
    pub user: Uuid,
    /// What they watch.
    pub watched: Watched,
}

impl Watcher {
    /// The allocation that they watch.
    pub fn allocation(&self) -> Option<Uuid> {
        match self.watched {
            Watched::Allocation(id) | Watched::AnyAllocation(id) => Some(id),
            Watched::Own => None,
        }
    }
}

/// The places of those who may still watch: their token is good, their account is, and so is what lets them see it. One
/// statement for all who watch, however many they are.
///
/// # Errors
/// When the database fails.
pub async fn still_allowed(
    store: &Store,
    watchers: &[Watcher],
    now: Timestamp,
) -> Result<Vec<usize>, Error> {
    let of = |part: fn(&Watcher) -> Uuid| watchers.iter().map(part).collect::<Vec<Uuid>>();
    let asks: Vec<&str> = watchers.iter().map(|watcher| asks(watcher.watched)).collect();
    let allocations: Vec<Option<Uuid>> = watchers.iter().map(Watcher::allocation).collect();
    let rows = sqlx::query(
        "SELECT watcher.place
           FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[])
                WITH ORDINALITY AS watcher (token_id, user_id, allocation_id, asks, place)
           JOIN api_tokens AS token
             ON token.id = watcher.token_id AND token.revoked_at IS NULL AND token.expires_at > $5
           JOIN users ON users.id = watcher.user_id AND users.disabled_at IS NULL
           LEFT JOIN allocations AS allocation ON allocation.id = watcher.allocation_id AND watcher.asks = 'member'
           LEFT JOIN project_members AS member
             ON member.project_id = allocation.project_id AND member.user_id = watcher.user_id
          WHERE CASE watcher.asks
                WHEN 'nothing' THEN true
                WHEN 'operator' THEN users.operator
                ELSE member.user_id IS NOT NULL END",
    )
    .bind(of(|watcher| watcher.token))
    .bind(of(|watcher| watcher.user))
    .bind(allocations)
    .bind(asks)
    .bind(now.to_sqlx())
    .fetch_all(store.pool())
    .await?;
    let place = |row: &PgRow| {
        let place: i64 = row.try_get(0)?;
        Ok(usize::try_from(place - 1).unwrap_or(usize::MAX))
    };
    rows.iter().map(place).collect()
}

/// What else somebody must be, beside who they are, to watch this.
const fn asks(watched: Watched) -> &'static str {
    match watched {
        Watched::Allocation(_) => "member",
        Watched::AnyAllocation(_) => "operator",
        Watched::Own => "nothing",
    }
}
