//! On what terms somebody may have something, and where there is room for it: all that requests are judged by, in one statement and
//! without a lock. Whether it is still so is for whoever writes to see.

use std::collections::HashMap;

use domain::ids::{NodeId, SlotId};
use domain::placement::FreeSlot;
use domain::policy::ProjectRole;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row as _};
use uuid::Uuid;

use crate::idempotency::{OwnKey, StoredAnswer};
use crate::{Error, Store, Tx};

/// What is asked for, as far as it decides on what terms.
#[derive(Clone, Debug)]
pub struct Asked {
    /// By whom.
    pub user: Uuid,
    /// For which project.
    pub project: Uuid,
    /// What.
    pub sku: String,
    /// How many GPUs.
    pub gpus: i16,
    /// Which image; the SKU's first when nobody says.
    pub image: Option<String>,
    /// Where.
    pub region: String,
    /// Who may log in.
    pub ssh_keys: Vec<Uuid>,
    /// The key of the request, if it has one by itself.
    pub key: Option<OwnKey>,
}

/// What a SKU is.
#[derive(Clone, Debug)]
pub struct SkuTerms {
    /// Whether it is a whole machine.
    pub whole: bool,
    /// How many GPUs can be asked for.
    pub gpus_allowed: Vec<i16>,
    /// The price of one GPU for one second.
    pub price_micros_per_gpu_second: i64,
    /// In which currency.
    pub currency: String,
    /// The image: the one that was asked for if the SKU has it, or its first.
    pub image: Option<String>,
}

/// On what terms somebody may have something.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Their role in the project; none when they are no member.
    pub role: Option<ProjectRole>,
    /// The SKU; none when there is no such.
    pub sku: Option<SkuTerms>,
    /// Whether there is such a region.
    pub region_known: bool,
    /// Their keys, of those that were named: identity and public key.
    pub ssh_keys: Vec<(Uuid, String)>,
    /// Who pays for the project; none when it has no account.
    pub payer: Option<Payer>,
    /// What the request was answered before, if it was.
    pub answered: Option<StoredAnswer>,
}

/// Who pays for a project, and what they can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payer {
    /// The currency of their account.
    pub currency: String,
    /// What is in it.
    pub balance_minor: i64,
    /// What the project may cost in a month, and has cost in this one.
    pub cap_and_spent_minor: Option<(i64, i64)>,
}

/// A node on which there is room.
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

/// What was found for requests that were looked at together.
#[derive(Clone, Debug)]
pub struct Found {
    /// When it was so, by the clock of the database.
    pub at: Timestamp,
    /// The terms of each, in their order.
    pub terms: Vec<Terms>,
    /// Of which kind each is: who asks for as much of the same shares nodes.
    pub kinds: Vec<usize>,
    /// For each kind the nodes on which all of it fits, as far as there are such, the best first.
    pub spares: Vec<Vec<Spare>>,
}

/// `$1` projects, `$2` users, `$3` SKUs, `$4` images, `$5` regions, `$6` SSH keys, as arrays in text; `$7` to `$9` the keys of the
/// requests, `$10` from when on a key counts; `$11` how many GPUs, and `$12` for how many requests nodes are sought, of which `$13` are
/// passed by. Each row is looked up by its key (`LIMIT` keeps it from becoming a join): the plan is made once, perhaps when the tables
/// are empty, and then a join would read all of them.
///
/// Nodes are found as `pick_node` finds one: on one NUMA node first, then with the fewest left over, then by a stable order. There is
/// a look into the index for each count of free slots, until there is room for all.
const TERMS: &str = "SELECT (SELECT role FROM project_members WHERE project_id = asked.project_id AND user_id = asked.user_id),
                sku.shape, sku.gpus_allowed,
                coalesce((SELECT price_micros_per_gpu_second
                            FROM sku_prices
                           WHERE sku_prices.sku = sku.code AND from_at <= clock_timestamp()
                           ORDER BY from_at DESC
                           LIMIT 1), sku.price_micros_per_gpu_second), sku.currency,
                image.image,
                coalesce((SELECT true FROM regions WHERE code = asked.region), false),
                ARRAY(SELECT id FROM ssh_keys WHERE user_id = asked.user_id AND id = ANY(asked.ssh_keys::uuid[]) ORDER BY id),
                ARRAY(SELECT public_key FROM ssh_keys WHERE user_id = asked.user_id AND id = ANY(asked.ssh_keys::uuid[]) ORDER BY id),
                account.currency, account.balance_minor, project.spend_cap_minor,
                coalesce((SELECT spent_minor
                            FROM project_spending
                           WHERE project_id = asked.project_id AND month = (date_trunc('month', clock_timestamp(), 'UTC') AT TIME ZONE 'UTC')::date), 0),
                known.fingerprint, known.http_status, known.body,
                clock_timestamp(), asked.place, spare.id, spare.name, spare.on_one, free.slots, free.indexes, free.numas
           FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::text[],
                       $11::smallint[], $12::integer[])
                WITH ORDINALITY
                AS asked (project_id, user_id, sku, image, region, ssh_keys, principal, route, key, gpus, requests, place)
           LEFT JOIN LATERAL (
                SELECT fingerprint, http_status, body
                  FROM idempotency_keys
                 WHERE principal = asked.principal AND route = asked.route AND key = asked.key
                   AND http_status IS NOT NULL AND created_at >= $10
                 LIMIT 1) AS known ON true
           LEFT JOIN LATERAL (
                SELECT *, CASE WHEN shape = 'baremetal' THEN 1 ELSE asked.gpus END AS each FROM skus WHERE code = asked.sku LIMIT 1) AS sku ON true
           LEFT JOIN LATERAL (
                SELECT image
                  FROM sku_images
                 WHERE sku_images.sku = sku.code AND (asked.image IS NULL OR image = asked.image)
                 ORDER BY position
                 LIMIT 1) AS image ON true
           LEFT JOIN LATERAL (SELECT account_id, spend_cap_minor FROM projects WHERE id = asked.project_id LIMIT 1) AS project ON true
           LEFT JOIN LATERAL (SELECT currency, balance_minor FROM accounts WHERE id = project.account_id LIMIT 1) AS account ON true
           LEFT JOIN LATERAL (
                SELECT near.id, near.name, near.on_one, sum(near.fit) OVER (ROWS UNBOUNDED PRECEDING) - near.fit AS room
                  FROM ((SELECT node.id, node.name, true AS on_one, count.free / sku.each AS fit
                           FROM generate_series(sku.each, (SELECT free_slots
                                                             FROM nodes
                                                            WHERE nodes.sku = asked.sku AND nodes.region = asked.region
                                                              AND status = 'ready' AND free_slots > 0
                                                            ORDER BY free_slots DESC
                                                            LIMIT 1)::integer) AS count (free)
                          CROSS JOIN LATERAL (
                                SELECT nodes.id, nodes.name
                                  FROM nodes
                                 WHERE nodes.sku = asked.sku AND nodes.region = asked.region AND status = 'ready' AND free_slots > 0
                                   AND free_slots = count.free AND free_numa_max >= sku.each AND nodes.id <> ALL ($13)
                                   AND (SELECT true FROM node_images WHERE node_id = nodes.id AND node_images.image = image.image)
                                 ORDER BY free_numa_max, nodes.id
                                 LIMIT asked.requests) AS node
                          LIMIT asked.requests)
                         UNION ALL
                        (SELECT node.id, node.name, false AS on_one, count.free / sku.each AS fit
                           FROM generate_series(sku.each, (SELECT free_slots
                                                             FROM nodes
                                                            WHERE nodes.sku = asked.sku AND nodes.region = asked.region
                                                              AND status = 'ready' AND free_slots > 0
                                                            ORDER BY free_slots DESC
                                                            LIMIT 1)::integer) AS count (free)
                          CROSS JOIN LATERAL (
                                SELECT nodes.id, nodes.name
                                  FROM nodes
                                 WHERE nodes.sku = asked.sku AND nodes.region = asked.region AND status = 'ready' AND free_slots > 0
                                   AND free_slots = count.free AND free_numa_max < sku.each AND nodes.id <> ALL ($13)
                                   AND (SELECT true FROM node_images WHERE node_id = nodes.id AND node_images.image = image.image)
                                 ORDER BY free_numa_max DESC, nodes.id DESC
                                 LIMIT asked.requests) AS node
                          LIMIT asked.requests)
                         LIMIT asked.requests) AS near
                ) AS spare ON spare.room < asked.requests
           LEFT JOIN LATERAL (
                SELECT array_agg(slots.id ORDER BY slots.slot_index) AS slots,
                       array_agg(slots.slot_index ORDER BY slots.slot_index) AS indexes,
                       array_agg(slots.numa_node ORDER BY slots.slot_index) AS numas
                  FROM slots
                 WHERE slots.node_id = spare.id
                   AND slots.id <> ALL (ARRAY(
                        SELECT claims.slot_id
                          FROM claims
                         WHERE claims.node_id = spare.id AND claims.status <> 'freed' AND claims.slot_id IS NOT NULL))
                ) AS free ON spare.id IS NOT NULL
          ORDER BY asked.place";

/// Reads everything that requests are judged by, and where there is room for them, in one statement. An answer from before
/// `expired_before` is none; nodes that are `passed_by` are not looked at.
///
/// # Errors
/// When the database fails.
pub async fn find(
    store: &Store,
    asked: &[Asked],
    passed_by: &[Uuid],
    expired_before: Timestamp,
) -> Result<Found, Error> {
    let (kinds, counts) = kinds(asked);
    let rows = asking(asked, &counts, passed_by, expired_before).fetch_all(store.pool()).await?;
    let (mut at, mut terms) = (Timestamp::UNIX_EPOCH, Vec::with_capacity(asked.len()));
    let mut spares = vec![Vec::new(); counts.len()];
    for row in &rows {
        let place = usize::try_from(row.try_get::<i64, _>(17)? - 1).unwrap_or(usize::MAX);
        if place == terms.len() {
            terms.push(read_terms(row)?);
        }
        at = row.try_get::<jiff_sqlx::Timestamp, _>(16)?.to_jiff();
        if let (Some(spare), Some(here)) = (read_spare(row)?, spares.get_mut(place)) {
            here.push(spare);
        }
    }
    Ok(Found { at, terms, kinds, spares })
}

/// The terms of one request, as this transaction sees them, and no room for it.
///
/// # Errors
/// When the database fails.
pub async fn of(tx: &mut Tx, asked: Asked, expired_before: Timestamp) -> Result<Terms, Error> {
    let asked = [asked];
    let row = asking(&asked, &[0], &[], expired_before).fetch_one(tx.connection()).await?;
    read_terms(&row)
}

/// Of which kind each is, named by the first of it; and with the first of each for how many room is sought. Kinds that want the same
/// in other sizes share nodes: each looks for as much as all of them want.
fn kinds(asked: &[Asked]) -> (Vec<usize>, Vec<i32>) {
    let (mut firsts, mut wanted) = (HashMap::with_capacity(asked.len()), HashMap::new());
    let mut kinds = Vec::with_capacity(asked.len());
    for (place, one) in asked.iter().enumerate() {
        // Who asks for less is refused before.
        let (market, gpus) = ((&one.sku, &one.region, &one.image), one.gpus.max(1).unsigned_abs());
        *wanted.entry(market).or_insert(0) += u32::from(gpus);
        kinds.push(*firsts.entry((market, gpus)).or_insert(place));
    }
    let mut counts = vec![0; asked.len()];
    for ((market, gpus), first) in firsts {
        let count = wanted[&market].div_ceil(u32::from(gpus));
        counts[first] = i32::try_from(count).unwrap_or(i32::MAX);
    }
    (kinds, counts)
}

fn asking<'q>(
    asked: &'q [Asked],
    counts: &'q [i32],
    passed_by: &'q [Uuid],
    expired_before: Timestamp,
) -> Query<'q, Postgres, PgArguments> {
    let literal = |asked: &Asked| {
        let keys: Vec<String> = asked.ssh_keys.iter().map(Uuid::to_string).collect();
        format!("{{{}}}", keys.join(","))
    };
    let keys = || asked.iter().map(|asked| asked.key.as_ref());
    sqlx::query(TERMS)
        .bind(asked.iter().map(|asked| asked.project).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| asked.user).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| asked.sku.as_str()).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| asked.image.as_deref()).collect::<Vec<_>>())
        .bind(asked.iter().map(|asked| asked.region.as_str()).collect::<Vec<_>>())
        .bind(asked.iter().map(literal).collect::<Vec<_>>())
        .bind(keys().map(|key| key.map(|key| key.principal)).collect::<Vec<_>>())
        .bind(keys().map(|key| key.map(|key| key.route)).collect::<Vec<_>>())
        .bind(keys().map(|key| key.map(|key| key.key.as_str())).collect::<Vec<_>>())
        .bind(expired_before.to_sqlx())
        .bind(asked.iter().map(|asked| asked.gpus).collect::<Vec<_>>())
        .bind(counts)
        .bind(passed_by)
}

fn read_terms(row: &PgRow) -> Result<Terms, Error> {
    let role: Option<&str> = row.try_get(0)?;
    let shape: Option<&str> = row.try_get(1)?;
    let sku = match shape {
        None => None,
        Some(shape) => Some(SkuTerms {
            whole: shape == "baremetal",
            gpus_allowed: row.try_get(2)?,
            price_micros_per_gpu_second: row.try_get(3)?,
            currency: row.try_get(4)?,
            image: row.try_get(5)?,
        }),
    };
    let ids: Vec<Uuid> = row.try_get(7)?;
    let keys: Vec<String> = row.try_get(8)?;
    let payer = match row.try_get::<Option<String>, _>(9)? {
        None => None,
        Some(currency) => {
            let (cap, spent): (Option<i64>, i64) = (row.try_get(11)?, row.try_get(12)?);
            let cap_and_spent_minor = cap.map(|cap| (cap, spent));
            Some(Payer { currency, balance_minor: row.try_get(10)?, cap_and_spent_minor })
        }
    };
    Ok(Terms {
        role: role.and_then(ProjectRole::parse),
        sku,
        region_known: row.try_get(6)?,
        ssh_keys: ids.into_iter().zip(keys).collect(),
        payer,
        answered: match row.try_get::<Option<i16>, _>(14)? {
            None => None,
            Some(status) => Some(StoredAnswer {
                fingerprint: row.try_get(13)?,
                status: u16::try_from(status).unwrap_or_default(),
                body: row.try_get(15)?,
            }),
        },
    })
}

fn read_spare(row: &PgRow) -> Result<Option<Spare>, Error> {
    let Some(node) = row.try_get::<Option<Uuid>, _>(18)? else { return Ok(None) };
    let ids: Option<Vec<Uuid>> = row.try_get(21)?;
    let indexes: Option<Vec<i16>> = row.try_get(22)?;
    let numas: Option<Vec<i16>> = row.try_get(23)?;
    let places = indexes.unwrap_or_default().into_iter().zip(numas.unwrap_or_default());
    let slots = ids.unwrap_or_default().into_iter().zip(places);
    let slot = |(id, (index, numa))| FreeSlot { id: SlotId(id), index, numa };
    Ok(Some(Spare {
        node: NodeId(node),
        name: row.try_get(19)?,
        on_one: row.try_get(20)?,
        slots: slots.map(slot).collect(),
    }))
}
