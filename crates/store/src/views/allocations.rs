//! Allocations as tenants and operators read them. Whether it is the reader's is a part of the statement that reads it:
//! somebody else's allocation is not found, exactly like one that does not exist.

use domain::ids::AllocationId;
use domain::machines::Allocation as Machine;
use domain::machines::allocation::Status;
use domain::policy::ProjectRole;
use jiff::Timestamp;
use lifecycle::{Code as _, Machine as _};
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, PgExecutor, Row as _};
use uuid::Uuid;

use super::allocation_groups::Member;
use crate::company::Question;
use crate::projects::role;
use crate::{Error, Store, Tx};

/// An allocation with what it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: Option<String>,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who asked for it.
    pub owner_id: Option<Uuid>,
    /// The group it is a member of.
    pub group_id: Option<Uuid>,
    /// Where it stands.
    pub status: Status,
    /// Since when.
    pub status_at: Timestamp,
    /// Why, as it was reported.
    pub reason: Option<String>,
    /// What it was sold as.
    pub sku: String,
    /// Whether it is a whole machine.
    pub whole: bool,
    /// How many GPUs.
    pub gpus: i16,
    /// Where it is.
    pub region: String,
    /// The image.
    pub image: String,
    /// How it is reached.
    pub access: Option<Value>,
    /// The price of one GPU for one second.
    pub price_micros_per_gpu_second: i64,
    /// In which currency.
    pub currency: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it first became usable.
    pub active_at: Option<Timestamp>,
    /// When it was given back.
    pub release_requested_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The number of its last step.
    pub seq: i64,
    /// The machine it holds something of, by name.
    pub node: Option<String>,
    /// Since when that machine has not been heard of, if it is offline.
    pub node_silent_since: Option<Timestamp>,
    /// The numbers of the slots it holds, in order.
    pub slots: Vec<i16>,
    /// The reader's role in its project; none for an operator who is no member.
    pub role: Option<ProjectRole>,
}

/// What a list is to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Those of one project only.
    pub project: Option<Uuid>,
    /// Those in one status only.
    pub status: Option<Status>,
    /// The members of one group only.
    pub group: Option<Uuid>,
}

/// The columns of [`Row`] but for the role, in the order in which [`read`] reads them.
const COLUMNS: &str = "allocation.id, allocation.name, allocation.project_id, allocation.owner_id, allocation.status,
        allocation.status_at, allocation.reason, allocation.sku, allocation.shape = 'baremetal', allocation.gpus,
        allocation.region, allocation.image, allocation.access, allocation.price_micros_per_gpu_second,
        allocation.currency, allocation.created_at, allocation.active_at, allocation.release_requested_at,
        allocation.ended_at, allocation.seq, held.node, held.slots, held.silent_since,
        allocation.group_id";

/// What an allocation holds, which is on one machine.
const HELD: &str = "LEFT JOIN LATERAL (
            SELECT min(nodes.name) AS node, min(nodes.heartbeat_at) FILTER (WHERE nodes.status = 'offline') AS silent_since,
                   array_agg(slots.slot_index ORDER BY slots.slot_index) FILTER (WHERE slots.id IS NOT NULL) AS slots
              FROM claims
              JOIN nodes ON nodes.id = claims.node_id
              LEFT JOIN slots ON slots.id = claims.slot_id
             WHERE claims.allocation_id = allocation.id AND claims.status <> 'freed'
            ) AS held ON true";

/// The allocation, if it is in a project of the user.
///
/// # Errors
/// When the database fails.
pub async fn find_for(store: &Store, id: AllocationId, user: Uuid) -> Result<Option<Row>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, member.role
           FROM allocations AS allocation
           JOIN project_members AS member
             ON member.project_id = allocation.project_id AND member.user_id = $2
           {HELD}
          WHERE allocation.id = $1"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid()).bind(user);
    query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()
}

/// The allocation, whosever it is, for operators.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, id: AllocationId) -> Result<Option<Row>, Error> {
    store.ask(Find(id)).await
}

/// The allocation as this transaction sees it, whosever it is.
///
/// # Errors
/// When the database fails.
pub async fn find_in(tx: &mut Tx, id: AllocationId) -> Result<Option<Row>, Error> {
    tx.ask(Find(id)).await
}

/// See [`find_in`].
struct Find(AllocationId);

impl Question for Find {
    type Answer = Option<Row>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Find>,
    ) -> Result<Vec<Option<Row>>, Error> {
        let ids: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let statement = format!(
            "SELECT {COLUMNS}, NULL::text
               FROM allocations AS allocation
               {HELD}
              WHERE allocation.id = ANY ($1)"
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(&ids).fetch_all(connection).await?;
        let found: Vec<Row> = rows.iter().map(read).collect::<Result<_, _>>()?;
        let of = |id: &Uuid| found.iter().find(|row| row.id == *id).cloned();
        Ok(ids.iter().map(of).collect())
    }
}

/// The allocations in projects of the user that were made before `before`, newest first.
///
/// # Errors
/// When the database fails.
pub async fn list_for(
    store: &Store,
    user: Uuid,
    filter: Filter,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Row>, Error> {
    // Each project is asked for its newest by its index; among those few the newest are taken.
    // A group has a few members, which its index finds; the planner must see that it is asked for one.
    let group = if filter.group.is_some() { "mine.group_id = $6" } else { "$6::uuid IS NULL" };
    let statement = format!(
        "SELECT {COLUMNS}, newest.role
           FROM (
                SELECT theirs.id, member.role
                  FROM project_members AS member
                 CROSS JOIN LATERAL (
                       SELECT mine.id
                         FROM allocations AS mine
                        WHERE mine.project_id = member.project_id
                          AND ($3::text IS NULL OR mine.status = $3)
                          AND ($5::uuid IS NULL OR mine.id < $5)
                          AND {group}
                        ORDER BY mine.id DESC
                        LIMIT $4
                       ) AS theirs
                 WHERE member.user_id = $1 AND ($2::uuid IS NULL OR member.project_id = $2)
                 ORDER BY theirs.id DESC
                 LIMIT $4
                ) AS newest
           JOIN allocations AS allocation ON allocation.id = newest.id
           {HELD}
          ORDER BY newest.id DESC"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(user)
        .bind(filter.project)
        .bind(filter.status.map(|status| status.code()))
        .bind(limit)
        .bind(before)
        .bind(filter.group)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// All allocations that were made before `before`, newest first, for operators.
///
/// # Errors
/// When the database fails.
pub async fn list_all(
    store: &Store,
    filter: Filter,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Row>, Error> {
    // Said once more as constants, because the planner must see that the index of what waits has all of them.
    let waits = match filter.status {
        None | Some(Status::Active | Status::Released | Status::Failed) => "true",
        Some(
            Status::Requested
            | Status::Provisioning
            | Status::Restarting
            | Status::RestartFailed
            | Status::Releasing
            | Status::ReleaseFailed,
        ) => "every.status NOT IN ('active', 'released', 'failed')",
    };
    let group = if filter.group.is_some() { "every.group_id = $5" } else { "$5::uuid IS NULL" };
    let statement = format!(
        "SELECT {COLUMNS}, NULL::text
           FROM (
                SELECT every.id
                  FROM allocations AS every
                 WHERE ($1::uuid IS NULL OR every.project_id = $1)
                   AND ($2::text IS NULL OR every.status = $2)
                   AND {waits}
                   AND ($4::uuid IS NULL OR every.id < $4)
                   AND {group}
                 ORDER BY every.id DESC
                 LIMIT $3
                ) AS newest
           JOIN allocations AS allocation ON allocation.id = newest.id
           {HELD}
          ORDER BY newest.id DESC"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(filter.project)
        .bind(filter.status.map(|status| status.code()))
        .bind(limit)
        .bind(before)
        .bind(filter.group)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// The members of these groups, each with its group, in the order in which they came.
pub(super) async fn members_of(
    executor: impl PgExecutor<'_>,
    groups: &[Uuid],
) -> Result<Vec<(Uuid, Member)>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, NULL::text, allocation.group_id AS member_of, allocation.required AS member_required
           FROM allocations AS allocation
           {HELD}
          WHERE allocation.group_id = ANY($1)
          ORDER BY allocation.id"
    );
    let rows = sqlx::query(AssertSqlSafe(statement)).bind(groups).fetch_all(executor).await?;
    let member = |row: &PgRow| {
        let required = row.try_get("member_required")?;
        Ok((row.try_get("member_of")?, Member { required, allocation: read(row)? }))
    };
    rows.iter().map(member).collect()
}

fn read(row: &PgRow) -> Result<Row, Error> {
    let at = |column: usize| -> Result<Option<Timestamp>, Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(column)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(4)?);
    let status = Status::parse(text).ok_or_else(|| Error::UnknownStatus {
        machine: Machine::NAME,
        id,
        status: text.to_owned(),
    })?;
    let has_role = row.try_get::<Option<&str>, _>(24)?.is_some();
    Ok(Row {
        id,
        name: row.try_get(1)?,
        project_id: row.try_get(2)?,
        owner_id: row.try_get(3)?,
        status,
        status_at: row.try_get::<jiff_sqlx::Timestamp, _>(5)?.to_jiff(),
        reason: row.try_get(6)?,
        sku: row.try_get(7)?,
        whole: row.try_get(8)?,
        gpus: row.try_get(9)?,
        region: row.try_get(10)?,
        image: row.try_get(11)?,
        access: row.try_get(12)?,
        price_micros_per_gpu_second: row.try_get(13)?,
        currency: row.try_get(14)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(15)?.to_jiff(),
        active_at: at(16)?,
        release_requested_at: at(17)?,
        ended_at: at(18)?,
        seq: row.try_get(19)?,
        node: row.try_get(20)?,
        slots: row.try_get::<Option<Vec<i16>>, _>(21)?.unwrap_or_default(),
        node_silent_since: at(22)?,
        group_id: row.try_get(23)?,
        role: has_role.then(|| role(row, 24)).transpose()?,
    })
}
