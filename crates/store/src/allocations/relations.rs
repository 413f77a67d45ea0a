//! What people have to do with allocations: whether they may act on them follows from it.

use std::collections::HashMap;

use domain::ids::AllocationId;
use domain::policy::ProjectRole;
use lifecycle::Code as _;
use sqlx::Row as _;
use uuid::Uuid;

use crate::{Error, Store};

/// What somebody has to do with an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Their role in its project; none when they are no member.
    pub role: Option<ProjectRole>,
    /// Whether they asked for it.
    pub owner: bool,
    /// Whether it is a member of a group, at whose row all of its members meet.
    pub grouped: bool,
}

/// What each of these users has to do with the allocation they are named with, in their order; none where there is no such allocation.
///
/// # Errors
/// When the database fails.
pub async fn relations(
    store: &Store,
    wanted: &[(AllocationId, Uuid)],
) -> Result<Vec<Option<Relation>>, Error> {
    let (ids, users): (Vec<Uuid>, Vec<Uuid>) =
        wanted.iter().map(|(id, user)| (id.uuid(), *user)).unzip();
    // Each is looked up by its key, whatever is known of the tables when this is planned.
    let rows = sqlx::query(
        "SELECT wish.place, found.owner_id IS NOT DISTINCT FROM wish.user_id, found.group_id IS NOT NULL,
                (SELECT member.role
                   FROM project_members AS member
                  WHERE member.project_id = found.project_id AND member.user_id = wish.user_id)
           FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS wish (id, user_id, place)
          CROSS JOIN LATERAL (
                SELECT owner_id, group_id, project_id FROM allocations WHERE allocations.id = wish.id LIMIT 1) AS found",
    )
    .bind(ids)
    .bind(users)
    .fetch_all(store.pool())
    .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let role: Option<&str> = row.try_get(3)?;
        let relation = Relation {
            role: role.and_then(ProjectRole::parse),
            owner: row.try_get(1)?,
            grouped: row.try_get(2)?,
        };
        found.insert(row.try_get::<i64, _>(0)?, relation);
    }
    Ok((1..).take(wanted.len()).map(|place| found.remove(&place)).collect())
}
