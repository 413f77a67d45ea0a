//! Placement under locks: on which node, on which slots. One short transaction; the node is locked from the choice to the claims, and
//! every look is by an index. What is placed without locks is in `terms`.

use domain::ids::NodeId;
use domain::placement::{FreeSlot, choose};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Tx};

/// What is to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// Where.
    pub region: &'a str,
    /// What.
    pub sku: &'a str,
    /// With which image at hand.
    pub image: &'a str,
    /// A whole machine, or so many of its slots.
    pub gpus: Option<i16>,
}

/// A place that is locked until the transaction ends.
#[derive(Clone, Debug)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// Its slots; none for a whole machine.
    pub slots: Vec<FreeSlot>,
}

/// Finds and locks the best place; `None` only if it truly does not fit, whoever else is asking.
///
/// # Errors
/// When the database fails.
pub async fn find(tx: &mut Tx, wanted: &Wanted<'_>) -> Result<Option<Place>, Error> {
    let row = sqlx::query("SELECT pick_node($1, $2, $3, $4)")
        .bind(wanted.region)
        .bind(wanted.sku)
        .bind(wanted.image)
        // Of a whole machine there is one.
        .bind(wanted.gpus.unwrap_or(1))
        .fetch_one(tx.connection())
        .await?;
    let node: Option<Uuid> = row.try_get(0)?;
    let Some(node) = node.map(NodeId) else {
        return Ok(None);
    };
    take(tx, node, wanted.gpus).await.map(Some)
}
/// Whoever places a group waits for whoever places another: a group holds several nodes and waits for more, which two at a
/// time must not do. The lock is gone with the transaction. A request for a single allocation does not take it: it never
/// waits for a node while it holds one.
const GROUP_PLACEMENT: i64 = 0x6265_7274_6867_7270;

/// Waits for its turn to place a group.
///
/// # Errors
/// When the database fails.
pub async fn lock_groups(tx: &mut Tx) -> Result<(), Error> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(GROUP_PLACEMENT)
        .execute(tx.connection())
        .await?;
    Ok(())
}

/// For what candidates are sought.
#[derive(Clone, Debug)]
pub struct Sought<'a> {
    /// Where.
    pub region: &'a str,
    /// What.
    pub sku: &'a str,
    /// The images that members need.
    pub images: &'a [String],
    /// How many members there are: no more nodes are needed of each image.
    pub members: i64,
}

/// The nodes with most free, so many of each image; not locked yet.
///
/// # Errors
/// When the database fails.
pub async fn candidates(tx: &mut Tx, sought: &Sought<'_>) -> Result<Vec<NodeId>, Error> {
    let rows = sqlx::query(
        "SELECT DISTINCT freest.id
           FROM unnest($3::text[]) AS wanted (image)
          CROSS JOIN LATERAL (
                SELECT nodes.id
                  FROM nodes
                 WHERE nodes.sku = $2 AND nodes.region = $1 AND status = 'ready' AND free_slots > 0
                   AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = wanted.image)
                 ORDER BY free_slots DESC, free_numa_max DESC, nodes.id DESC
                 LIMIT $4
                ) AS freest
          ORDER BY freest.id",
    )
    .bind(sought.region)
    .bind(sought.sku)
    .bind(sought.images)
    .bind(sought.members)
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| Ok(NodeId(row.try_get(0)?))).collect()
}

/// A node that is locked until the transaction ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub node: NodeId,
    /// How many slots are free; 1 for a whole machine.
    pub free: i16,
    /// Which of the images that were asked for it has.
    pub images: Vec<String>,
}

/// Locks nodes, in order, and reads what they have free now. One that takes no placements any more is left out.
///
/// # Errors
/// [`Error::Conflict`] when somebody else waits for us while we wait for them.
pub async fn lock_candidates(
    tx: &mut Tx,
    nodes: &[NodeId],
    images: &[String],
) -> Result<Vec<Candidate>, Error> {
    let ids: Vec<Uuid> = nodes.iter().map(|node| node.uuid()).collect();
    let rows = sqlx::query(
        "SELECT id, free_slots,
                ARRAY(SELECT image FROM node_images WHERE node_id = nodes.id AND image = ANY($2) ORDER BY image)
           FROM nodes
          WHERE id = ANY($1) AND status = 'ready'
          ORDER BY id
            FOR NO KEY UPDATE",
    )
    .bind(ids)
    .bind(images)
    .fetch_all(tx.connection())
    .await?;
    let candidate = |row: &PgRow| {
        let node = NodeId(row.try_get(0)?);
        Ok(Candidate { node, free: row.try_get(1)?, images: row.try_get(2)? })
    };
    rows.iter().map(candidate).collect()
}

/// Takes what is wanted of a node that the caller has locked and found large enough.
///
/// # Errors
/// [`Error::Conflict`] when it is not.
pub async fn take(tx: &mut Tx, node: NodeId, gpus: Option<i16>) -> Result<Place, Error> {
    let Some(gpus) = gpus else {
        return Ok(Place { node, slots: Vec::new() });
    };
    let free = free_slots(tx, node).await?;
    // The count that led here was written with the claims it counts, and the node is ours: if it is wrong, something
    // wrote claims behind the database's back.
    let slots = choose(&free, usize::try_from(gpus).unwrap_or(0)).ok_or(Error::Conflict)?;
    Ok(Place { node, slots })
}

async fn free_slots(tx: &mut Tx, node: NodeId) -> Result<Vec<FreeSlot>, Error> {
    let rows = sqlx::query(
        "SELECT id, slot_index, numa_node
           FROM slots
          WHERE node_id = $1
            AND NOT EXISTS (SELECT 1 FROM claims WHERE claims.slot_id = slots.id AND claims.status <> 'freed')
          ORDER BY slot_index",
    )
    .bind(node.uuid())
    .fetch_all(tx.connection())
    .await?;
    let slot = |row: &PgRow| {
        let id: Uuid = row.try_get(0)?;
        Ok(FreeSlot { id: id.into(), index: row.try_get(1)?, numa: row.try_get(2)? })
    };
    rows.iter().map(slot).collect()
}

/// The largest count that fits, for every region in which anything of a SKU does.
///
/// # Errors
/// When the database fails.
pub async fn largest_fits(tx: &mut Tx, sku: &str) -> Result<Vec<(String, i16)>, Error> {
    let rows = sqlx::query(
        "SELECT regions.code, most.free_slots
           FROM regions
          CROSS JOIN LATERAL (
                SELECT free_slots
                  FROM nodes
                 WHERE nodes.sku = $1 AND nodes.region = regions.code AND status = 'ready' AND free_slots > 0
                 ORDER BY free_slots DESC
                 LIMIT 1
          ) AS most
          ORDER BY regions.code",
    )
    .bind(sku)
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The SKUs that can be asked for.
///
/// # Errors
/// When the database fails.
pub async fn sku_codes(tx: &mut Tx) -> Result<Vec<String>, Error> {
    let rows =
        sqlx::query("SELECT code FROM skus ORDER BY code").fetch_all(tx.connection()).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// How many machines are left after each filter of a placement, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Funnel {
    /// All that are not retired.
    pub machines: i64,
    /// Of the SKU.
    pub of_sku: i64,
    /// And in the region.
    pub in_region: i64,
    /// And ready.
    pub ready: i64,
    /// And with the image at hand.
    pub with_image: i64,
    /// And with enough free.
    pub fitting: i64,
    /// The statuses of those in the region that are not ready.
    pub away: Vec<(String, i64)>,
    /// The most that one of those with the image has free.
    pub most_free: i16,
}

/// Counts what each filter takes away. It looks at the whole fleet once, so it is for refusals and questions alone.
///
/// # Errors
/// When the database fails.
pub async fn funnel(tx: &mut Tx, wanted: &Wanted<'_>) -> Result<Funnel, Error> {
    let row = sqlx::query(
        "WITH here AS MATERIALIZED (
            SELECT nodes.sku = $1 AS of_sku, nodes.sku = $1 AND nodes.region = $2 AS in_region, nodes.status, free_slots,
                   EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = $3) AS has_image
              FROM nodes
             WHERE nodes.status <> 'retired'
         ), away AS (
            SELECT status, count(*) AS machines
              FROM here
             WHERE in_region AND status <> 'ready'
             GROUP BY status
             ORDER BY status
         )
         SELECT count(*), count(*) FILTER (WHERE of_sku), count(*) FILTER (WHERE in_region),
                count(*) FILTER (WHERE in_region AND status = 'ready'),
                count(*) FILTER (WHERE in_region AND status = 'ready' AND has_image),
                count(*) FILTER (WHERE in_region AND status = 'ready' AND has_image AND free_slots >= $4),
                coalesce(max(free_slots) FILTER (WHERE in_region AND status = 'ready' AND has_image), 0::smallint),
                ARRAY(SELECT status FROM away), ARRAY(SELECT machines FROM away)
           FROM here",
    )
    .bind(wanted.sku)
    .bind(wanted.region)
    .bind(wanted.image)
    // Of a whole machine there is one.
    .bind(wanted.gpus.unwrap_or(1))
    .fetch_one(tx.connection())
    .await?;
    let (statuses, counts): (Vec<String>, Vec<i64>) = (row.try_get(7)?, row.try_get(8)?);
    Ok(Funnel {
        machines: row.try_get(0)?,
        of_sku: row.try_get(1)?,
        in_region: row.try_get(2)?,
        ready: row.try_get(3)?,
        with_image: row.try_get(4)?,
        fitting: row.try_get(5)?,
        most_free: row.try_get(6)?,
        away: statuses.into_iter().zip(counts).collect(),
    })
}
