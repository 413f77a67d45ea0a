//! Requests for allocations that came together: placed by one look, written by one statement, true by one commit. Each is judged
//! before, and has its own answer.

use domain::ids::{NodeId, SlotId};
use domain::machines::{Allocation, Claim};
use domain::placement::FreeSlot;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::allocations::NewAllocation;
use crate::audit_log::NewEntry;
use crate::idempotency::KeyRef;
use crate::lifecycle::{Birth, Heard, births_in};
use crate::placement::{Place, Wanted};
use crate::workflow_runs::{self, NewRun};
use crate::{Error, Ring, Tx};

/// A kind of request, and how many of it there are.
#[derive(Clone, Debug)]
pub struct Kind<'a> {
    /// What each of them wants.
    pub wanted: Wanted<'a>,
    /// How many they are.
    pub requests: usize,
}

/// A node that is worth a look, locked until the transaction ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// The node.
    pub node: NodeId,
    /// What it is called.
    pub name: String,
    /// Whether it was found for its NUMA nodes: on such a one nothing is torn.
    pub on_one: bool,
    /// What it has free.
    pub slots: Vec<FreeSlot>,
}

/// What was found for a kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// These nodes; none when others are looking at all that fit.
    Nodes(Vec<Spare>),
    /// No node is large enough, whoever looks at it.
    Full,
}

/// Finds and locks what is worth a look, for each kind, and passes by what others are looking at. Says what time it is then.
///
/// # Errors
/// When the database fails.
pub async fn pick(tx: &mut Tx, kinds: &[Kind<'_>]) -> Result<(Timestamp, Vec<Found>), Error> {
    let texts = |of: fn(&Wanted<'_>) -> String| -> Vec<String> {
        kinds.iter().map(|kind| of(&kind.wanted)).collect()
    };
    // Of a whole machine there is one.
    let gpus: Vec<i16> = kinds.iter().map(|kind| kind.wanted.gpus.unwrap_or(1)).collect();
    let requests: Vec<i32> =
        kinds.iter().map(|kind| i32::try_from(kind.requests).unwrap_or(i32::MAX)).collect();
    let rows = sqlx::query(
        "SELECT moment.at, picked.kind, picked.node, picked.name, picked.on_one, picked.slots, picked.indexes, picked.numas
           FROM (SELECT clock_timestamp() AS at) AS moment
           LEFT JOIN pick_nodes($1, $2, $3, $4, $5) AS picked ON true",
    )
    .bind(texts(|wanted| wanted.region.to_owned()))
    .bind(texts(|wanted| wanted.sku.to_owned()))
    .bind(texts(|wanted| wanted.image.to_owned()))
    .bind(gpus)
    .bind(requests)
    .fetch_all(tx.connection())
    .await?;
    let mut found = vec![Found::Nodes(Vec::new()); kinds.len()];
    let mut at = Timestamp::UNIX_EPOCH;
    for row in &rows {
        at = row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff();
        let Some(kind) = row.try_get::<Option<i32>, _>(1)? else { continue };
        let here = usize::try_from(kind - 1).ok().and_then(|kind| found.get_mut(kind));
        let Some(here) = here else { continue };
        match (row.try_get::<Option<Uuid>, _>(2)?, &mut *here) {
            (None, _) => *here = Found::Full,
            (Some(node), Found::Nodes(nodes)) => nodes.push(Spare {
                node: NodeId(node),
                name: row.try_get(3)?,
                on_one: row.try_get(4)?,
                slots: free_slots(row)?,
            }),
            (Some(_), Found::Full) => {}
        }
    }
    Ok((at, found))
}

/// What a node that the transaction has locked is called, and what time it is then.
///
/// # Errors
/// When the database fails.
pub async fn moment_on(tx: &mut Tx, node: NodeId) -> Result<(Timestamp, String), Error> {
    let row = sqlx::query("SELECT clock_timestamp(), name FROM nodes WHERE id = $1")
        .bind(node.uuid())
        .fetch_one(tx.connection())
        .await?;
    Ok((row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff(), row.try_get(1)?))
}

fn free_slots(row: &sqlx::postgres::PgRow) -> Result<Vec<FreeSlot>, Error> {
    let ids: Option<Vec<Uuid>> = row.try_get(5)?;
    let indexes: Option<Vec<i16>> = row.try_get(6)?;
    let numas: Option<Vec<i16>> = row.try_get(7)?;
    let places = indexes.unwrap_or_default().into_iter().zip(numas.unwrap_or_default());
    let slots = ids.unwrap_or_default().into_iter().zip(places);
    Ok(slots.map(|(id, (index, numa))| FreeSlot { id: SlotId(id), index, numa }).collect())
}

/// One request with its place, and everything that is written of it.
#[derive(Clone, Debug)]
pub struct Admitted<'a> {
    /// The allocation.
    pub allocation: &'a NewAllocation,
    /// How it came to be.
    pub birth: &'a Birth,
    /// Where it is in a trace.
    pub trace: Option<&'a str>,
    /// Its place, which this transaction has locked.
    pub place: &'a Place,
    /// What prepares it, and hears of it before anybody else.
    pub run: NewRun<'a>,
    /// The entry of the audit log.
    pub entry: &'a NewEntry,
    /// The key that it is asked with, what was asked, and what is answered.
    pub answer: Answer<'a>,
}

/// The answer to a request, as it is kept with its key.
#[derive(Clone, Debug)]
pub struct Answer<'a> {
    /// The key.
    pub key: KeyRef<'a>,
    /// What was asked.
    pub fingerprint: &'a [u8],
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: &'a Value,
}

/// The times of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The moment at which everything in it happens, by the clock of the database.
    pub at: Timestamp,
    /// The moment at which the keys were taken, by the clock of the product.
    pub now: Timestamp,
    /// Keys from before this count as free.
    pub expired_before: Timestamp,
}

/// Writes them all: allocations, claims, records, messages, runs, entries, answers. `heard` is who would start those runs on hearing
/// of the births. Says whether every key was free; if one was not, nothing of it may be committed.
///
/// # Errors
/// When the database fails: also when a slot has a live claim.
pub async fn write(
    tx: &mut Tx,
    admitted: &[Admitted<'_>],
    heard: Heard,
    times: Times,
) -> Result<bool, Error> {
    let claims = Claims::of(tx, admitted);
    let mut query = sqlx::query(AssertSqlSafe(statement(heard)));
    query = query.bind(times.at.to_sqlx());
    macro_rules! each {
        ($($value:expr),+ $(,)?) => {
            $(query = query.bind(admitted.iter().map($value).collect::<Vec<_>>());)+
        };
    }
    each!(
        |one| one.allocation.id.uuid(),
        |one| one.allocation.project_id,
        |one| one.allocation.provision.uuid(),
        |one| one.allocation.sku.as_str(),
        |one| one.allocation.gpus,
        |one| one.allocation.terms.name.as_deref(),
        |one| one.allocation.terms.owner_id,
        |one| one.allocation.terms.region.as_str(),
        |one| one.allocation.terms.image.as_str(),
        |one| one.allocation.terms.shape(),
        |one| one.allocation.terms.price_micros_per_gpu_second,
        |one| one.allocation.terms.currency.as_str(),
        |one| Value::from(one.allocation.terms.ssh_keys.clone()),
        |one| one.birth.event_id.uuid(),
        |one| one.birth.actor.source.code(),
        |one| one.birth.actor.name.as_str(),
        |one| one.birth.cause.as_deref(),
        |one| one.trace,
    );
    query = query.bind(tx.new_ids(admitted.len())).bind(tx.new_ids(admitted.len()));
    each!(
        |one| one.entry.user_id,
        |one| one.entry.token_id,
        |one| one.entry.role,
        |one| one.entry.action,
        |one| one.entry.target_kind,
        |one| one.entry.target.as_str(),
        |one| one.entry.project_id,
        |one| one.entry.outcome,
        |one| one.entry.reason.as_deref(),
        |one| &one.entry.detail,
        |one| one.entry.request_id,
        |one| one.entry.source.as_deref(),
        |one| one.answer.key.principal,
        |one| one.answer.key.route,
        |one| one.answer.key.key,
        |one| one.answer.fingerprint,
        |one| i16::try_from(one.answer.status).unwrap_or(i16::MAX),
        |one| one.answer.body,
    );
    query = query.bind(claims.ids).bind(claims.allocations).bind(claims.nodes).bind(claims.slots);
    query = query.bind(times.now.to_sqlx()).bind(times.expired_before.to_sqlx());
    each!(|one| one.run.id, |one| one.run.workflow, |one| one.run.state);
    let taken = query.bind(workflow_runs::started()).execute(tx.connection()).await?;
    ring(tx, admitted, heard);
    Ok(taken.rows_affected() == admitted.len() as u64)
}

/// Who waits for what was written is told when it is committed.
fn ring(tx: &mut Tx, admitted: &[Admitted<'_>], heard: Heard) {
    if !heard.alone {
        tx.rings(Ring::Outbox);
    }
    tx.rings(Ring::Workflows);
    tx.rings(Ring::AuditLog);
    for one in admitted {
        tx.rings(Ring::Allocation(one.allocation.id.uuid()));
    }
}

/// What all of them hold: the columns of the claims.
#[derive(Default)]
struct Claims {
    ids: Vec<Uuid>,
    allocations: Vec<Uuid>,
    nodes: Vec<Uuid>,
    slots: Vec<Option<Uuid>>,
}

impl Claims {
    fn of(tx: &Tx, admitted: &[Admitted<'_>]) -> Claims {
        let mut claims = Claims::default();
        for one in admitted {
            let slots: Vec<Option<Uuid>> =
                one.place.slots.iter().map(|slot| Some(slot.id.uuid())).collect();
            // Without slots it is the whole node.
            for slot in if slots.is_empty() { vec![None] } else { slots } {
                claims.ids.push(tx.new_id());
                claims.allocations.push(one.allocation.id.uuid());
                claims.nodes.push(one.place.node.uuid());
                claims.slots.push(slot);
            }
        }
        claims
    }
}

/// `$1` is the moment; `$2` to `$19` the allocations and how they came to be, `$20` the identities of their messages, `$21` those
/// of the entries, `$22` to `$33` the entries, `$34` to `$39` keys and answers, `$40` to `$43` the claims, `$44` and `$45` when
/// keys are taken and which have expired, `$46` to `$48` the runs and `$49` what each of them hears first.
fn statement(heard: Heard) -> String {
    let born = births_in::<Allocation>("wish", "$1", Some(heard));
    let claims_born = births_in::<Claim>("claim", "$1", None);
    format!(
        "WITH wish AS MATERIALIZED (
            SELECT *
              FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::smallint[], $7::text[], $8::uuid[], $9::text[],
                        $10::text[], $11::text[], $12::bigint[], $13::text[], $14::jsonb[], $15::uuid[], $16::text[], $17::text[],
                        $18::text[], $19::text[], $20::uuid[], $46::text[], $47::text[], $48::jsonb[])
                AS wish (id, project_id, operation_id, sku, gpus, name, owner_id, region, image, shape, price, currency, ssh_keys,
                        event_id, source, actor, cause, traceparent, message_id, run_id, workflow, run_state)
         ), made AS (
            INSERT INTO allocations (id, project_id, operation_id, sku, gpus, name, owner_id, region, image, shape,
                    price_micros_per_gpu_second, currency, ssh_keys, created_at, status_at)
            SELECT id, project_id, operation_id, sku, gpus, name, owner_id, region, image, shape, price, currency,
                   ARRAY(SELECT jsonb_array_elements_text(ssh_keys)), $1, $1
              FROM wish
         ), {born}, claim AS MATERIALIZED (
            SELECT claim.id, claim.allocation_id, claim.node_id, claim.slot_id, wish.event_id, NULL::uuid AS operation_id,
                   wish.source, wish.actor, wish.cause
              FROM unnest($40::uuid[], $41::uuid[], $42::uuid[], $43::uuid[]) AS claim (id, allocation_id, node_id, slot_id)
              JOIN wish ON wish.id = claim.allocation_id
         ), claimed AS (
            INSERT INTO claims (id, allocation_id, node_id, slot_id, status_at)
            SELECT id, allocation_id, node_id, slot_id, $1
              FROM claim
         ), {claims_born}, begun AS (
            INSERT INTO workflow_runs (id, workflow, entity_id, state, pending, wake_at, due_since, traceparent)
            SELECT run_id, workflow, id, run_state, jsonb_build_array($49::jsonb), 'epoch'::timestamptz, $1, traceparent
              FROM wish
         ), entry AS (
            INSERT INTO audit_entries (id, user_id, token_id, role, action, target_kind, target, project_id, outcome, reason, detail,
                    request_id, source)
            SELECT *
              FROM unnest($21::uuid[], $22::uuid[], $23::uuid[], $24::text[], $25::text[], $26::text[], $27::text[], $28::uuid[],
                    $29::text[], $30::text[], $31::jsonb[], $32::uuid[], $33::text[])
            RETURNING id
         ), unlinked AS (
            INSERT INTO audit_unlinked (entry_id)
            SELECT id
              FROM entry
         )
         INSERT INTO idempotency_keys AS known (principal, route, key, fingerprint, created_at, http_status, body)
         SELECT principal, route, key, fingerprint, $44, http_status, body
           FROM unnest($34::uuid[], $35::text[], $36::text[], $37::bytea[], $38::smallint[], $39::jsonb[])
             AS answer (principal, route, key, fingerprint, http_status, body)
          ORDER BY principal, route, key
         ON CONFLICT (principal, route, key) DO UPDATE
            SET fingerprint = EXCLUDED.fingerprint, created_at = EXCLUDED.created_at, http_status = EXCLUDED.http_status,
                body = EXCLUDED.body
          WHERE known.created_at < $45 OR known.http_status IS NULL"
    )
}
