//! App instances: an application of a tenant, bound to an allocation or to a group. Which member plays which role is theirs
//! alone; nothing here moves what they are bound to, and nothing that happens to it moves them.

use domain::ids::AppInstanceId;
use domain::policy::ProjectRole;
use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgExecutor, Row as _};
use uuid::Uuid;

use crate::projects::role;
use crate::{Error, Store, Tx};

/// What an app instance is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// One allocation.
    Allocation(Uuid),
    /// A group of them.
    Group(Uuid),
}

impl Bound {
    fn columns(self) -> (Option<Uuid>, Option<Uuid>) {
        match self {
            Bound::Allocation(id) => (Some(id), None),
            Bound::Group(id) => (None, Some(id)),
        }
    }
}

/// An app instance to be.
#[derive(Clone, Debug)]
pub struct NewInstance {
    /// Its identity.
    pub id: AppInstanceId,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who made it.
    pub owner_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Which application.
    pub app: String,
    /// What it is bound to.
    pub bound: Bound,
}

/// Adds an app instance.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, new: &NewInstance) -> Result<(), Error> {
    let (allocation, group) = new.bound.columns();
    sqlx::query(
        "INSERT INTO app_instances (id, project_id, owner_id, name, app, allocation_id, group_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(new.id.uuid())
    .bind(new.project_id)
    .bind(new.owner_id)
    .bind(&new.name)
    .bind(&new.app)
    .bind(allocation)
    .bind(group)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// What is bound, as far as it matters to who binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindable {
    /// Where it stands.
    pub status: String,
    /// Whether it has ended.
    pub ended: bool,
    /// The allocations that can be given a role.
    pub allocations: Vec<Uuid>,
}

/// What is to be bound, if it is in that project.
///
/// # Errors
/// When the database fails.
pub async fn bindable(tx: &mut Tx, bound: Bound, project: Uuid) -> Result<Option<Bindable>, Error> {
    let (allocation, group) = bound.columns();
    let row = sqlx::query(
        "SELECT status, ended_at IS NOT NULL, ARRAY[id]
           FROM allocations
          WHERE id = $1 AND project_id = $3
          UNION ALL
         SELECT status, ended_at IS NOT NULL,
                ARRAY(SELECT allocations.id FROM allocations WHERE allocations.group_id = $2 ORDER BY allocations.id)
           FROM allocation_groups
          WHERE id = $2 AND project_id = $3",
    )
    .bind(allocation)
    .bind(group)
    .bind(project)
    .fetch_optional(tx.connection())
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    Ok(Some(Bindable {
        status: row.try_get(0)?,
        ended: row.try_get(1)?,
        allocations: row.try_get(2)?,
    }))
}

/// Replaces the roles of an instance by these: an allocation and its role each.
///
/// # Errors
/// When the database fails.
pub async fn put_members(
    tx: &mut Tx,
    id: AppInstanceId,
    members: &[(Uuid, String)],
) -> Result<(), Error> {
    sqlx::query("DELETE FROM app_instance_members WHERE app_instance_id = $1")
        .bind(id.uuid())
        .execute(tx.connection())
        .await?;
    let (allocations, roles): (Vec<Uuid>, Vec<String>) = members.iter().cloned().unzip();
    sqlx::query(
        "INSERT INTO app_instance_members (app_instance_id, allocation_id, role)
         SELECT $1, part.allocation_id, part.role
           FROM unnest($2::uuid[], $3::text[]) AS part (allocation_id, role)",
    )
    .bind(id.uuid())
    .bind(allocations)
    .bind(roles)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Ends an instance; answers whether it had not ended yet.
///
/// # Errors
/// When the database fails.
pub async fn end(tx: &mut Tx, id: AppInstanceId) -> Result<bool, Error> {
    let ended = sqlx::query(
        "UPDATE app_instances SET ended_at = clock_timestamp() WHERE id = $1 AND ended_at IS NULL",
    )
    .bind(id.uuid())
    .execute(tx.connection())
    .await?;
    Ok(ended.rows_affected() == 1)
}

/// An app instance with what it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub project_id: Uuid,
    /// Who made it.
    pub owner_id: Uuid,
    /// What it is called.
    pub name: String,
    /// Which application.
    pub app: String,
    /// What it is bound to.
    pub bound: Bound,
    /// What that is called.
    pub bound_name: Option<String>,
    /// Where that stands.
    pub bound_status: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was ended.
    pub ended_at: Option<Timestamp>,
    /// The reader's role in its project.
    pub role: Option<ProjectRole>,
    /// Who plays which role.
    pub members: Vec<Part>,
}

/// An allocation with its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The allocation.
    pub allocation_id: Uuid,
    /// What it is called.
    pub name: Option<String>,
    /// Where it stands.
    pub status: String,
    /// Its role.
    pub role: String,
}

/// The columns of [`Instance`] but for the role and the members, in the order in which [`read`] reads them.
const COLUMNS: &str =
    "instance.id, instance.project_id, instance.owner_id, instance.name, instance.app,
        instance.allocation_id, instance.group_id, coalesce(allocation.name, grouped.name),
        coalesce(allocation.status, grouped.status), instance.created_at, instance.ended_at";

/// What it is bound to.
const BOUND: &str = "LEFT JOIN allocations AS allocation ON allocation.id = instance.allocation_id
           LEFT JOIN allocation_groups AS grouped ON grouped.id = instance.group_id";

/// The instance, if it is in a project of the user.
///
/// # Errors
/// When the database fails.
pub async fn find_for(
    store: &Store,
    id: AppInstanceId,
    user: Uuid,
) -> Result<Option<Instance>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, member.role
           FROM app_instances AS instance
           JOIN project_members AS member ON member.project_id = instance.project_id AND member.user_id = $2
           {BOUND}
          WHERE instance.id = $1"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid()).bind(user);
    let found = query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()?;
    with_members(store.pool(), found.into_iter().collect()).await.map(|mut rows| rows.pop())
}

/// The instance as this transaction sees it, locked, whosever it is.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, id: AppInstanceId) -> Result<Option<Instance>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, NULL::text
           FROM app_instances AS instance
           {BOUND}
          WHERE instance.id = $1
            FOR UPDATE OF instance"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid());
    let found = query.fetch_optional(tx.connection()).await?.as_ref().map(read).transpose()?;
    with_members(tx.connection(), found.into_iter().collect()).await.map(|mut rows| rows.pop())
}

/// The instances in projects of the user that were made before `before`, newest first.
///
/// # Errors
/// When the database fails.
pub async fn list_for(
    store: &Store,
    user: Uuid,
    project: Option<Uuid>,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Instance>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}, member.role
           FROM project_members AS member
          CROSS JOIN LATERAL (
                SELECT mine.id
                  FROM app_instances AS mine
                 WHERE mine.project_id = member.project_id AND ($4::uuid IS NULL OR mine.id < $4)
                 ORDER BY mine.id DESC
                 LIMIT $3
                ) AS theirs
           JOIN app_instances AS instance ON instance.id = theirs.id
           {BOUND}
          WHERE member.user_id = $1 AND ($2::uuid IS NULL OR member.project_id = $2)
          ORDER BY instance.id DESC
          LIMIT $3"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(user)
        .bind(project)
        .bind(limit)
        .bind(before)
        .fetch_all(store.pool())
        .await?;
    with_members(store.pool(), rows.iter().map(read).collect::<Result<_, Error>>()?).await
}

async fn with_members(
    executor: impl PgExecutor<'_>,
    mut instances: Vec<Instance>,
) -> Result<Vec<Instance>, Error> {
    if instances.is_empty() {
        return Ok(instances);
    }
    let ids: Vec<Uuid> = instances.iter().map(|instance| instance.id).collect();
    let rows = sqlx::query(
        "SELECT part.app_instance_id, part.allocation_id, allocations.name, allocations.status, part.role
           FROM app_instance_members AS part
           JOIN allocations ON allocations.id = part.allocation_id
          WHERE part.app_instance_id = ANY($1)
          ORDER BY part.allocation_id",
    )
    .bind(&ids)
    .fetch_all(executor)
    .await?;
    for row in rows {
        let instance: Uuid = row.try_get(0)?;
        let part = Part {
            allocation_id: row.try_get(1)?,
            name: row.try_get(2)?,
            status: row.try_get(3)?,
            role: row.try_get(4)?,
        };
        if let Some(instance) = instances.iter_mut().find(|each| each.id == instance) {
            instance.members.push(part);
        }
    }
    Ok(instances)
}

fn read(row: &PgRow) -> Result<Instance, Error> {
    let (allocation, group): (Option<Uuid>, Option<Uuid>) = (row.try_get(5)?, row.try_get(6)?);
    let ended: Option<jiff_sqlx::Timestamp> = row.try_get(10)?;
    let has_role = row.try_get::<Option<&str>, _>(11)?.is_some();
    let bound = match allocation {
        Some(allocation) => Bound::Allocation(allocation),
        // The table has one of the two.
        None => Bound::Group(group.unwrap_or_default()),
    };
    Ok(Instance {
        id: row.try_get(0)?,
        project_id: row.try_get(1)?,
        owner_id: row.try_get(2)?,
        name: row.try_get(3)?,
        app: row.try_get(4)?,
        bound,
        bound_name: row.try_get(7)?,
        bound_status: row.try_get(8)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(9)?.to_jiff(),
        ended_at: ended.map(jiff_sqlx::Timestamp::to_jiff),
        role: has_role.then(|| role(row, 11)).transpose()?,
        members: Vec::new(),
    })
}
