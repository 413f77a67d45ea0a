//! Requests for allocations that came together: written by one statement, which is a transaction of its own unless there is one. Each
//! is judged and placed before, and has its own answer. Nothing was locked for it: the statement sees whether it is still so, and
//! fails if it is not.

use std::collections::BTreeSet;

use domain::ids::NodeId;
use domain::machines::{Allocation, Claim};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Postgres, Row as _};
use uuid::Uuid;

use crate::allocations::NewAllocation;
use crate::audit_log::NewEntry;
use crate::idempotency::KeyRef;
use crate::lifecycle::{Birth, Heard, births_in};
use crate::placement::Place;
use crate::texts::Texts;
use crate::workflow_runs::{self, NewRun};
use crate::{Error, Ids, Ring, Store, Tx};

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

static STATEMENTS: Texts<Heard> = Texts::new();

/// One request with its place, and everything that is written of it.
#[derive(Clone, Debug)]
pub struct Admitted<'a> {
    /// The allocation.
    pub allocation: &'a NewAllocation,
    /// How it came to be.
    pub birth: &'a Birth,
    /// Where it is in a trace.
    pub trace: Option<&'a str>,
    /// Its place.
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
    pub body: &'a RawValue,
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

/// Writes them all by themselves, and makes them true: allocations, claims, records, messages, runs, entries, answers. `heard` is who
/// would start those runs on hearing of the births.
///
/// # Errors
/// [`Error::Conflict`] when it is not as it was told any more, and nothing of it has happened: a slot has another claim, a node is no
/// longer ready or somebody else is at it, a key was taken.
pub async fn write(
    store: &Store,
    admitted: &[Admitted<'_>],
    heard: Heard,
    times: Times,
) -> Result<(), Error> {
    let mut held = store.pool().acquire().await?;
    asking(&store.ids, admitted, heard, times).execute(held.connection()).await?;
    held.settle();
    rings(admitted, heard, |ring| store.bell.ring(ring));
    Ok(())
}

/// The same in a transaction.
///
/// # Errors
/// As above.
pub async fn write_in(
    tx: &mut Tx,
    admitted: &[Admitted<'_>],
    heard: Heard,
    times: Times,
) -> Result<(), Error> {
    let ids = tx.ids.clone();
    asking(&ids, admitted, heard, times).execute(tx.connection()).await?;
    rings(admitted, heard, |ring| tx.rings(ring));
    Ok(())
}

fn asking<'q>(
    ids: &Ids,
    admitted: &'q [Admitted<'_>],
    heard: Heard,
    times: Times,
) -> Query<'q, Postgres, PgArguments> {
    let claims = Claims::of(ids, admitted);
    let fresh = || admitted.iter().map(|_| ids.next()).collect::<Vec<_>>();
    let mut query = sqlx::query(AssertSqlSafe(STATEMENTS.of(heard, || statement(heard))));
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
    query = query.bind(fresh()).bind(fresh());
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
        |one| Json(one.answer.body),
    );
    query = query.bind(claims.ids).bind(claims.allocations).bind(claims.nodes).bind(claims.slots);
    query = query.bind(times.now.to_sqlx()).bind(times.expired_before.to_sqlx());
    each!(|one| one.run.id, |one| one.run.workflow, |one| one.run.state);
    query.bind(workflow_runs::started()).bind(claims.on)
}

/// Who waits for what was written is told when it is committed.
fn rings(admitted: &[Admitted<'_>], heard: Heard, mut ring: impl FnMut(Ring)) {
    if !heard.alone {
        ring(Ring::Outbox);
    }
    ring(Ring::Workflows);
    ring(Ring::AuditLog);
    for one in admitted {
        ring(Ring::Allocation(one.allocation.id.uuid()));
    }
}

/// What all of them hold: the columns of the claims.
#[derive(Default)]
struct Claims {
    ids: Vec<Uuid>,
    allocations: Vec<Uuid>,
    nodes: Vec<Uuid>,
    slots: Vec<Option<Uuid>>,
    /// Each node once.
    on: Vec<Uuid>,
}

impl Claims {
    fn of(ids: &Ids, admitted: &[Admitted<'_>]) -> Claims {
        let mut claims = Claims::default();
        for one in admitted {
            let slots: Vec<Option<Uuid>> =
                one.place.slots.iter().map(|slot| Some(slot.id.uuid())).collect();
            // Without slots it is the whole node.
            for slot in if slots.is_empty() { vec![None] } else { slots } {
                claims.ids.push(ids.next());
                claims.allocations.push(one.allocation.id.uuid());
                claims.nodes.push(one.place.node.uuid());
                claims.slots.push(slot);
            }
        }
        claims.on = claims.nodes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        claims
    }
}

/// The keys with their answers, and that all of them were free.
const ANSWERED: &str = "answered AS (
            INSERT INTO idempotency_keys AS known (principal, route, key, fingerprint, created_at, http_status, body)
            SELECT principal, route, key, fingerprint, $44, http_status, body
              FROM unnest($34::uuid[], $35::text[], $36::text[], $37::bytea[], $38::smallint[], $39::jsonb[])
                AS answer (principal, route, key, fingerprint, http_status, body)
             ORDER BY principal, route, key
            ON CONFLICT (principal, route, key) DO UPDATE
               SET fingerprint = EXCLUDED.fingerprint, created_at = EXCLUDED.created_at, http_status = EXCLUDED.http_status,
                   body = EXCLUDED.body
             WHERE known.created_at < $45 OR known.http_status IS NULL
            RETURNING 1
         )
         SELECT require_won((SELECT count(*) FROM answered) = cardinality($36::text[]))";

/// `$1` is the moment; `$2` to `$19` the allocations and how they came to be, `$20` the identities of their messages, `$21` those
/// of the entries, `$22` to `$33` the entries, `$34` to `$39` keys and answers, `$40` to `$43` the claims, `$44` and `$45` when
/// keys are taken and which have expired, `$46` to `$48` the runs and `$49` what each of them hears first; `$50` the nodes, each once.
///
/// The keys come first, and then the nodes: a node that somebody else has locked is not waited for, so that nobody who holds one ever
/// waits for another. Each is looked up by its key, in their order. What holds a slot already is seen by the index of live claims, whenever it was written.
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
         ), {born}, locked AS MATERIALIZED (
            SELECT node.id
              FROM unnest($50::uuid[]) AS wanted (id)
             CROSS JOIN LATERAL (
                    SELECT id, status FROM nodes WHERE nodes.id = wanted.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS node
             WHERE node.status = 'ready'
         ), claim AS MATERIALIZED (
            SELECT claim.id, claim.allocation_id, claim.node_id, claim.slot_id, wish.event_id, NULL::uuid AS operation_id,
                   wish.source, wish.actor, wish.cause
              FROM unnest($40::uuid[], $41::uuid[], $42::uuid[], $43::uuid[]) AS claim (id, allocation_id, node_id, slot_id)
              JOIN wish ON wish.id = claim.allocation_id
             WHERE require_won((SELECT count(*) FROM locked) = cardinality($50::uuid[]))
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
         ), {ANSWERED}"
    )
}
