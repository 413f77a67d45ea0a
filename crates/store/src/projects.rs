//! Projects and their members. A project never loses its last admin: whoever changes a membership locks the project
//! first, so that two admins can't lower each other at once.

use domain::ids::AccountId;
use domain::policy::ProjectRole;
use jiff::Timestamp;
use lifecycle::Code as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// A project to be.
#[derive(Clone, Copy, Debug)]
pub struct NewProject<'a> {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: &'a str,
    /// Its first admin.
    pub admin: Uuid,
    /// Who pays for it.
    pub account: Option<AccountId>,
}

/// A project, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// The member's role.
    pub role: ProjectRole,
    /// Since when it exists.
    pub created_at: Timestamp,
}

/// A member of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The user.
    pub user_id: Uuid,
    /// Their address.
    pub email: String,
    /// Their name.
    pub name: String,
    /// What they may do.
    pub role: ProjectRole,
}

/// What became of a change to a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a change that was not made says so only here"]
pub enum Change {
    /// It is so now.
    Made,
    /// Nobody could manage the project any more.
    LastAdmin,
    /// There is no such member.
    NoMember,
}

/// The role of a user in a project; none when they are no member, or there is no such project.
///
/// # Errors
/// When the database fails.
pub async fn role_of(
    store: &Store,
    project: Uuid,
    user: Uuid,
) -> Result<Option<ProjectRole>, Error> {
    let row = sqlx::query(
        "SELECT role
           FROM project_members
          WHERE user_id = $1 AND project_id = $2",
    )
    .bind(user)
    .bind(project)
    .fetch_optional(store.pool())
    .await?;
    row.map(|row| role(&row, 0)).transpose()
}

/// Adds a project with its first admin.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, project: NewProject<'_>) -> Result<Project, Error> {
    let row = sqlx::query(
        "WITH project AS (
            INSERT INTO projects (id, name, account_id)
            VALUES ($1, $2, $4)
            RETURNING id, name, created_at
         ), member AS (
            INSERT INTO project_members (project_id, user_id, role)
            SELECT id, $3, 'admin' FROM project
            RETURNING role
         )
         SELECT project.id, project.name, member.role, project.created_at
           FROM project, member",
    )
    .bind(project.id)
    .bind(project.name)
    .bind(project.admin)
    .bind(project.account.map(|account| account.uuid()))
    .fetch_one(tx.connection())
    .await?;
    read(&row)
}

/// What a project may cost in a month from now on. Answers `false` when there is no such project.
///
/// # Errors
/// When the database fails.
pub async fn set_spend_cap(tx: &mut Tx, project: Uuid, minor: Option<i64>) -> Result<bool, Error> {
    let set = sqlx::query("UPDATE projects SET spend_cap_minor = $2 WHERE id = $1")
        .bind(project)
        .bind(minor)
        .execute(tx.connection())
        .await?;
    Ok(set.rows_affected() == 1)
}

/// The projects of a user after the project `after`, in the order of their identities.
///
/// # Errors
/// When the database fails.
pub async fn list_for(
    store: &Store,
    user: Uuid,
    limit: i64,
    after: Option<Uuid>,
) -> Result<Vec<Project>, Error> {
    let rows = sqlx::query(
        "SELECT projects.id, projects.name, member.role, projects.created_at
           FROM project_members AS member
           JOIN projects ON projects.id = member.project_id
          WHERE member.user_id = $1 AND ($3::uuid IS NULL OR member.project_id > $3)
          ORDER BY member.project_id
          LIMIT $2",
    )
    .bind(user)
    .bind(limit)
    .bind(after)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(read).collect()
}

/// The oldest project of that name of its admin, added if there is none. Two who do this at once agree on one.
///
/// # Errors
/// When the database fails.
pub async fn ensure(tx: &mut Tx, project: NewProject<'_>) -> Result<Uuid, Error> {
    sqlx::query("SELECT 1 FROM users WHERE id = $1 FOR UPDATE")
        .bind(project.admin)
        .fetch_optional(tx.connection())
        .await?;
    let row = sqlx::query(
        "SELECT projects.id
           FROM project_members AS member
           JOIN projects ON projects.id = member.project_id
          WHERE member.user_id = $1 AND projects.name = $2
          ORDER BY projects.id
          LIMIT 1",
    )
    .bind(project.admin)
    .bind(project.name)
    .fetch_optional(tx.connection())
    .await?;
    match row {
        Some(row) => Ok(row.try_get(0)?),
        None => Ok(insert(tx, project).await?.id),
    }
}

/// The members of a project after the user `after`, in the order of their identities.
///
/// # Errors
/// When the database fails.
pub async fn list_members(
    store: &Store,
    project: Uuid,
    limit: i64,
    after: Option<Uuid>,
) -> Result<Vec<Member>, Error> {
    let rows = sqlx::query(
        "SELECT users.id, users.email, users.name, member.role
           FROM project_members AS member
           JOIN users ON users.id = member.user_id
          WHERE member.project_id = $1 AND ($3::uuid IS NULL OR member.user_id > $3)
          ORDER BY member.user_id
          LIMIT $2",
    )
    .bind(project)
    .bind(limit)
    .bind(after)
    .fetch_all(store.pool())
    .await?;
    let member = |row: &PgRow| {
        Ok(Member {
            user_id: row.try_get(0)?,
            email: row.try_get(1)?,
            name: row.try_get(2)?,
            role: role(row, 3)?,
        })
    };
    rows.iter().map(member).collect()
}

/// Makes a user a member, or gives a member another role.
///
/// # Errors
/// When the database fails.
pub async fn put_member(
    tx: &mut Tx,
    project: Uuid,
    user: Uuid,
    role: ProjectRole,
) -> Result<Change, Error> {
    lock(tx, project).await?;
    if role != ProjectRole::Admin && is_last_admin(tx, project, user).await? {
        return Ok(Change::LastAdmin);
    }
    sqlx::query(
        "INSERT INTO project_members (project_id, user_id, role)
         VALUES ($1, $2, $3)
         ON CONFLICT (user_id, project_id) DO UPDATE
            SET role = EXCLUDED.role",
    )
    .bind(project)
    .bind(user)
    .bind(role.code())
    .execute(tx.connection())
    .await?;
    Ok(Change::Made)
}

/// Ends a membership.
///
/// # Errors
/// When the database fails.
pub async fn remove_member(tx: &mut Tx, project: Uuid, user: Uuid) -> Result<Change, Error> {
    lock(tx, project).await?;
    if is_last_admin(tx, project, user).await? {
        return Ok(Change::LastAdmin);
    }
    let removed = sqlx::query(
        "DELETE FROM project_members
          WHERE project_id = $1 AND user_id = $2",
    )
    .bind(project)
    .bind(user)
    .execute(tx.connection())
    .await?;
    Ok(if removed.rows_affected() == 1 { Change::Made } else { Change::NoMember })
}

async fn lock(tx: &mut Tx, project: Uuid) -> Result<(), Error> {
    sqlx::query("SELECT 1 FROM projects WHERE id = $1 FOR UPDATE")
        .bind(project)
        .fetch_optional(tx.connection())
        .await?;
    Ok(())
}

/// Whether the user is an admin and nobody else who can act is. A statement of its own, after the lock.
async fn is_last_admin(tx: &mut Tx, project: Uuid, user: Uuid) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT coalesce(bool_or(member.user_id = $2), false)
                AND NOT coalesce(bool_or(member.user_id <> $2 AND users.disabled_at IS NULL), false)
           FROM project_members AS member
           JOIN users ON users.id = member.user_id
          WHERE member.project_id = $1 AND member.role = 'admin'",
    )
    .bind(project)
    .bind(user)
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get(0)?)
}

fn read(row: &PgRow) -> Result<Project, Error> {
    Ok(Project {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        role: role(row, 2)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(3)?.to_jiff(),
    })
}

/// The column has a check that knows the same words.
pub(crate) fn role(row: &PgRow, column: usize) -> Result<ProjectRole, Error> {
    let text: &str = row.try_get(column)?;
    let unknown = || sqlx::Error::Decode(format!("there is no role {text:?}").into());
    Ok(ProjectRole::parse(text).ok_or_else(unknown)?)
}
