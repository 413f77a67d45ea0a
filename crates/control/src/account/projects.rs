//! Projects: whoever makes one is its first admin.

use domain::policy::Permission;
use wire::http::Page;
use wire::http::account::{NewProject, Project};

use super::faults::Faults;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error, billing};

/// Makes a project.
///
/// # Errors
/// [`Error::Invalid`] for a name that is none.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    new: &NewProject,
    key: Option<&Key>,
) -> Result<Answer<Project>, Error> {
    caller.needs(Permission::AccountWrite)?;
    let mut faults = Faults::default();
    let name = faults.name("/name", &new.name);
    faults.settle()?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    let admin = caller.user_id;
    let account = Some(billing::account::ensure(ctx, &mut tx, admin).await?);
    let new = store::projects::NewProject { id: tx.new_id(), name, admin, account };
    let project = store::projects::insert(&mut tx, new).await?;
    let deed =
        Deed::new(caller, Action::ProjectCreate, "project", project.id).in_project(project.id);
    finish(tx, &deed, key, 201, shown(project)).await
}

/// The projects of the caller.
///
/// # Errors
/// [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Project>, Error> {
    caller.needs(Permission::AccountRead)?;
    let paging = Paging::read(ctx, &("projects", caller.user_id), limit, cursor)?;
    let (rows, after) = (paging.rows(), paging.after());
    let rows = store::projects::list_for(&ctx.store, caller.user_id, rows, after).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |project| project.id))
}

pub(super) fn shown(project: store::projects::Project) -> Project {
    Project {
        id: project.id,
        name: project.name,
        role: project.role.into(),
        created_at: project.created_at,
    }
}
