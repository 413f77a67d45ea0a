//! Allocation groups: their status is the fold of their members, stored in the member's own transaction.
//! Lock order is group, then allocation, then claims; [`lock`] comes before anything about a member.

use domain::derived::allocation_group::{MemberView, derive};
use domain::derived::crossing;
use domain::ids::{AllocationGroupId, AllocationId, EventId};
use domain::machines::allocation::Status as Member;
use domain::machines::{Allocation, AllocationGroup};
use domain::policy::ProjectRole;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code, Machine, Outcome, Source};
use sqlx::Row as _;
use uuid::Uuid;

use crate::lifecycle::{Actor, Birth, Report, born, stored, write};
use crate::{Error, Store, Tx};

type Status = <AllocationGroup as Machine>::Status;

/// A group to be.
#[derive(Clone, Debug)]
pub struct NewGroup {
    /// Its identity.
    pub id: AllocationGroupId,
    /// Whose it is.
    pub project_id: Uuid,
    /// What it is called.
    pub name: Option<String>,
    /// Who asked for it.
    pub owner_id: Option<Uuid>,
}

/// Adds a group; its members name it when they are inserted, in the same transaction.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, group: &NewGroup, birth: &Birth) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO allocation_groups (id, project_id, name, owner_id) VALUES ($1, $2, $3, $4)",
    )
    .bind(group.id.uuid())
    .bind(group.project_id)
    .bind(&group.name)
    .bind(group.owner_id)
    .execute(tx.connection())
    .await?;
    born::<AllocationGroup>(tx, group.id, birth).await?;
    Ok(())
}

/// The role of a user in the project of a group; none when they have none, or there is no such group.
///
/// # Errors
/// When the database fails.
pub async fn role_on(
    store: &Store,
    id: AllocationGroupId,
    user: Uuid,
) -> Result<Option<ProjectRole>, Error> {
    let row = sqlx::query(
        "SELECT member.role
           FROM allocation_groups AS grouped
           JOIN project_members AS member ON member.project_id = grouped.project_id AND member.user_id = $2
          WHERE grouped.id = $1",
    )
    .bind(id.uuid())
    .bind(user)
    .fetch_optional(store.pool())
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    Ok(ProjectRole::parse(row.try_get(0)?))
}

/// Keeps the group's fold from changing until the transaction ends.
///
/// # Errors
/// [`Error::Conflict`] when the lock was lost to another transaction.
pub async fn lock(tx: &mut Tx, id: AllocationGroupId) -> Result<(), Error> {
    stored::lock::<AllocationGroup>(tx, id.uuid()).await?;
    Ok(())
}

/// Notes that release of the whole group was asked for, and lets its status follow. The members are asked one by one,
/// each in its own transaction. Answers `None` when the group has ended, or the fold stays as it was.
///
/// # Errors
/// When the database fails.
pub async fn request_release(
    tx: &mut Tx,
    id: AllocationGroupId,
    cause: &str,
) -> Result<Option<Outcome<Status>>, Error> {
    let Some(group) = stored::lock::<AllocationGroup>(tx, id.uuid()).await? else {
        return Ok(None);
    };
    match group.status {
        Status::Released | Status::Failed => return Ok(None),
        Status::Requested
        | Status::Provisioning
        | Status::Active
        | Status::Degraded
        | Status::Releasing
        | Status::ReleaseFailed => {}
    }
    sqlx::query(
        "UPDATE allocation_groups SET release_requested_at = clock_timestamp()
          WHERE id = $1 AND release_requested_at IS NULL",
    )
    .bind(id.uuid())
    .execute(tx.connection())
    .await?;
    refold(tx, id, cause).await
}

/// Notes that the members that are left have to be asked to release, if there are any; answers with the identity of that
/// wish. It is pending until [`passed_on`] says so, whatever dies meanwhile. The caller holds the group's lock.
///
/// # Errors
/// When the database fails.
pub async fn note_release(
    tx: &mut Tx,
    id: AllocationGroupId,
    by: Uuid,
) -> Result<Option<Uuid>, Error> {
    let release = tx.new_id();
    let noted = sqlx::query(
        "UPDATE allocation_groups
            SET release_id = $2, release_by = $3, release_noted_at = clock_timestamp(), release_passed_on_at = NULL
          WHERE id = $1
            AND EXISTS (
                SELECT 1
                  FROM allocations
                 WHERE group_id = $1 AND status NOT IN ('releasing', 'released', 'failed'))",
    )
    .bind(id.uuid())
    .bind(release)
    .bind(by)
    .execute(tx.connection())
    .await?;
    Ok((noted.rows_affected() == 1).then_some(release))
}

/// A release that has to be passed on to members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The wish.
    pub release: Uuid,
    /// Whose.
    pub by: Uuid,
    /// The members that are left, in the order in which they came.
    pub members: Vec<AllocationId>,
}

/// The release that is still to be passed on, with the members that were not asked yet.
///
/// # Errors
/// When the database fails.
pub async fn pending_release(tx: &mut Tx, id: AllocationGroupId) -> Result<Option<Pending>, Error> {
    let row = sqlx::query(
        "SELECT release_id, release_by,
                ARRAY(SELECT allocations.id
                        FROM allocations
                       WHERE group_id = $1 AND status NOT IN ('releasing', 'released', 'failed')
                       ORDER BY allocations.id)
           FROM allocation_groups
          WHERE id = $1 AND release_id IS NOT NULL AND release_passed_on_at IS NULL",
    )
    .bind(id.uuid())
    .fetch_optional(tx.connection())
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let members: Vec<Uuid> = row.try_get(2)?;
    Ok(Some(Pending {
        release: row.try_get(0)?,
        by: row.try_get(1)?,
        members: members.into_iter().map(AllocationId).collect(),
    }))
}

/// Every member was asked, as that wish has it. A newer wish stays pending.
///
/// # Errors
/// When the database fails.
pub async fn passed_on(tx: &mut Tx, id: AllocationGroupId, release: Uuid) -> Result<(), Error> {
    sqlx::query(
        "UPDATE allocation_groups SET release_passed_on_at = clock_timestamp()
          WHERE id = $1 AND release_id = $2 AND release_passed_on_at IS NULL",
    )
    .bind(id.uuid())
    .bind(release)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Releases that were noted before `before` and that nobody passes on, and how many runs there were about their group.
///
/// # Errors
/// When the database fails.
pub async fn forgotten_releases(
    tx: &mut Tx,
    before: Timestamp,
) -> Result<Vec<(AllocationGroupId, Uuid, i64)>, Error> {
    let rows = sqlx::query(
        "SELECT id, release_id,
                (SELECT count(*) FROM workflow_runs WHERE workflow_runs.entity_id = allocation_groups.id)
           FROM allocation_groups
          WHERE release_id IS NOT NULL AND release_passed_on_at IS NULL
            AND release_noted_at < $1
            AND NOT EXISTS (
                SELECT 1
                  FROM workflow_runs
                 WHERE workflow_runs.entity_id = allocation_groups.id AND done_at IS NULL)
          ORDER BY release_noted_at
          LIMIT 100",
    )
    .bind(before.to_sqlx())
    .fetch_all(tx.connection())
    .await?;
    let forgotten = |row: &sqlx::postgres::PgRow| {
        Ok((AllocationGroupId(row.try_get(0)?), row.try_get(1)?, row.try_get(2)?))
    };
    rows.iter().map(forgotten).collect()
}

/// Computes the group's status from its members, in a statement that sees them as they are now, and writes it if it
/// differs. The caller holds the group's lock.
///
/// # Errors
/// When the database fails, or a member is in a status nobody knows.
pub async fn refold(
    tx: &mut Tx,
    id: AllocationGroupId,
    cause: &str,
) -> Result<Option<Outcome<Status>>, Error> {
    let (stored, folded) = fold(tx, id).await?;
    let Some(event) = crossing::<AllocationGroup>(stored, folded) else {
        return Ok(None);
    };
    let actor = Actor::new(Source::Derived, "members");
    let report = Report::new(event, EventId(tx.new_id()), actor).because(cause);
    Ok(Some(write::<AllocationGroup>(tx, id.uuid(), &report).await?))
}

/// The group's status as it is stored, and as its members say it should be. They differ only if something is broken.
///
/// # Errors
/// When the database fails, or a status is one nobody knows.
pub async fn fold(tx: &mut Tx, id: AllocationGroupId) -> Result<(Status, Status), Error> {
    let rows = sqlx::query(
        "SELECT allocation_groups.status, release_requested_at IS NOT NULL, member.id, member.status, member.required
           FROM allocation_groups
           LEFT JOIN (SELECT id, group_id, status, required FROM allocations) AS member
             ON member.group_id = allocation_groups.id
          WHERE allocation_groups.id = $1",
    )
    .bind(id.uuid())
    .fetch_all(tx.connection())
    .await?;
    let unborn = || Error::Unborn { machine: AllocationGroup::NAME, id: id.uuid() };
    let first = rows.first().ok_or_else(unborn)?;
    let stored: Status = parse(AllocationGroup::NAME, id.uuid(), first.try_get(0)?)?;
    let release_requested: bool = first.try_get(1)?;
    let mut members = Vec::new();
    for row in &rows {
        let Some(member) = row.try_get::<Option<Uuid>, _>(2)? else {
            continue;
        };
        let status: Member = parse(Allocation::NAME, member, row.try_get(3)?)?;
        members.push(MemberView { status, required: row.try_get(4)? });
    }
    Ok((stored, derive(release_requested, &members)))
}

fn parse<S: Code>(machine: &'static str, id: Uuid, text: &str) -> Result<S, Error> {
    S::parse(text).ok_or_else(|| Error::UnknownStatus { machine, id, status: text.to_owned() })
}
