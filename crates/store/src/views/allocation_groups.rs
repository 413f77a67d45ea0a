//! Allocation groups as tenants read them. Whether it is the reader's is a part of the statement that reads it, as for
//! allocations. A page of groups and all their members are two statements.

use domain::derived::allocation_group::Status;
use domain::ids::AllocationGroupId;
use domain::machines::AllocationGroup;
use domain::policy::ProjectRole;
use jiff::Timestamp;
use lifecycle::{Code as _, Machine as _};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgExecutor, Row as _};
use uuid::Uuid;

use super::allocations;
use crate::projects::role;
use crate::{Error, Store, Tx};

/// A group with its members.
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
    /// Where it stands.
    pub status: Status,
    /// Since when.
    pub status_at: Timestamp,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When the whole of it was given back.
    pub release_requested_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The number of its last step.
    pub seq: i64,
    /// Whether a release is still to be passed on to members.
    pub release_pending: bool,
    /// The reader's role in its project.
    pub role: Option<ProjectRole>,
    /// Its members, in the order in which they were asked for.
    pub members: Vec<Member>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Whether the group is nothing without it.
    pub required: bool,
    /// The allocation.
    pub allocation: allocations::Row,
}

/// What a list is to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Those of one project only.
    pub project: Option<Uuid>,
    /// Those in one status only.
    pub status: Option<Status>,
}

/// The columns of [`Row`] but for the role and the members, in the order in which [`read`] reads them.
const COLUMNS: &str = "grouped.id, grouped.name, grouped.project_id, grouped.owner_id, grouped.status, grouped.status_at,
        grouped.created_at, grouped.release_requested_at, grouped.ended_at, grouped.seq,
        grouped.release_id IS NOT NULL AND grouped.release_passed_on_at IS NULL";

/// The group, if it is in a project of the user.
///
/// # Errors
/// When the database fails.
pub async fn find_for(
    store: &Store,
    id: AllocationGroupId,
    user: Uuid,
) -> Result<Option<Row>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, member.role
           FROM allocation_groups AS grouped
           JOIN project_members AS member ON member.project_id = grouped.project_id AND member.user_id = $2
          WHERE grouped.id = $1"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid()).bind(user);
    let found = query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()?;
    with_members(store.pool(), found.into_iter().collect()).await.map(|mut rows| rows.pop())
}

/// The group, whosever it is, for operators.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, id: AllocationGroupId) -> Result<Option<Row>, Error> {
    let query = sqlx::query(AssertSqlSafe(by_id())).bind(id.uuid());
    let found = query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()?;
    with_members(store.pool(), found.into_iter().collect()).await.map(|mut rows| rows.pop())
}

fn by_id() -> String {
    format!(
        "SELECT {COLUMNS}, NULL::text
           FROM allocation_groups AS grouped
          WHERE grouped.id = $1"
    )
}

/// The group as this transaction sees it, whosever it is.
///
/// # Errors
/// When the database fails.
pub async fn find_in(tx: &mut Tx, id: AllocationGroupId) -> Result<Option<Row>, Error> {
    let query = sqlx::query(AssertSqlSafe(by_id())).bind(id.uuid());
    let found = query.fetch_optional(tx.connection()).await?.as_ref().map(read).transpose()?;
    with_members(tx.connection(), found.into_iter().collect()).await.map(|mut rows| rows.pop())
}

/// The groups in projects of the user that were made before `before`, newest first.
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
    let statement = format!(
        "SELECT {COLUMNS}, newest.role
           FROM (
                SELECT theirs.id, member.role
                  FROM project_members AS member
                 CROSS JOIN LATERAL (
                       SELECT mine.id
                         FROM allocation_groups AS mine
                        WHERE mine.project_id = member.project_id
                          AND ($3::text IS NULL OR mine.status = $3)
                          AND ($5::uuid IS NULL OR mine.id < $5)
                        ORDER BY mine.id DESC
                        LIMIT $4
                       ) AS theirs
                 WHERE member.user_id = $1 AND ($2::uuid IS NULL OR member.project_id = $2)
                 ORDER BY theirs.id DESC
                 LIMIT $4
                ) AS newest
           JOIN allocation_groups AS grouped ON grouped.id = newest.id
          ORDER BY newest.id DESC"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(user)
        .bind(filter.project)
        .bind(filter.status.map(|status| status.code()))
        .bind(limit)
        .bind(before)
        .fetch_all(store.pool())
        .await?;
    let found = rows.iter().map(read).collect::<Result<_, Error>>()?;
    with_members(store.pool(), found).await
}

/// All groups that were made before `before`, newest first, for operators.
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
            | Status::Degraded
            | Status::Releasing
            | Status::ReleaseFailed,
        ) => "grouped.status NOT IN ('active', 'released', 'failed')",
    };
    let statement = format!(
        "SELECT {COLUMNS}, NULL::text
           FROM allocation_groups AS grouped
          WHERE ($1::uuid IS NULL OR grouped.project_id = $1)
            AND ($2::text IS NULL OR grouped.status = $2)
            AND {waits}
            AND ($4::uuid IS NULL OR grouped.id < $4)
          ORDER BY grouped.id DESC
          LIMIT $3"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(filter.project)
        .bind(filter.status.map(|status| status.code()))
        .bind(limit)
        .bind(before)
        .fetch_all(store.pool())
        .await?;
    let found = rows.iter().map(read).collect::<Result<_, Error>>()?;
    with_members(store.pool(), found).await
}

async fn with_members(
    executor: impl PgExecutor<'_>,
    mut groups: Vec<Row>,
) -> Result<Vec<Row>, Error> {
    if groups.is_empty() {
        return Ok(groups);
    }
    let ids: Vec<Uuid> = groups.iter().map(|group| group.id).collect();
    for (group, member) in allocations::members_of(executor, &ids).await? {
        if let Some(group) = groups.iter_mut().find(|each| each.id == group) {
            group.members.push(member);
        }
    }
    Ok(groups)
}

fn read(row: &PgRow) -> Result<Row, Error> {
    let at = |column: usize| -> Result<Option<Timestamp>, Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(column)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(4)?);
    let status = Status::parse(text).ok_or_else(|| Error::UnknownStatus {
        machine: AllocationGroup::NAME,
        id,
        status: text.to_owned(),
    })?;
    let has_role = row.try_get::<Option<&str>, _>(11)?.is_some();
    Ok(Row {
        id,
        name: row.try_get(1)?,
        project_id: row.try_get(2)?,
        owner_id: row.try_get(3)?,
        status,
        status_at: row.try_get::<jiff_sqlx::Timestamp, _>(5)?.to_jiff(),
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(6)?.to_jiff(),
        release_requested_at: at(7)?,
        ended_at: at(8)?,
        seq: row.try_get(9)?,
        release_pending: row.try_get(10)?,
        role: has_role.then(|| role(row, 11)).transpose()?,
        members: Vec::new(),
    })
}
