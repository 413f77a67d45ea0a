//! App instances: bound to an allocation or to a group, with roles of their own. They follow nothing and move nothing: what
//! they are bound to is shown as it stands. Doors: /app-instances.

use domain::ids::AppInstanceId;
use domain::policy::Permission;
use serde_json::json;
use store::app_instances::{self, Bindable, Bound, Instance, NewInstance, Part};
use uuid::Uuid;
use wire::Coded;
use wire::http::Page;
use wire::http::app_instances::{
    AppAction, AppInstance, AppMember, AppMembers, NewAppInstance, NewAppMember,
};
use wire::problem::Fault;

use crate::allocation::judge::name_fault;
use crate::allocation::view::Viewer;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

const ROLE_CHARS_MAX: usize = 32;
const APP_CHARS_MAX: usize = 64;
const MEMBERS_MAX: usize = 32;

/// Somebody binds an application to what they have.
///
/// # Errors
/// What is wrong with the request; [`Error::Conflict`] when what it is to be bound to has ended.
pub async fn create(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewAppInstance,
    key: Option<&Key>,
) -> Result<Answer<AppInstance>, Error> {
    let bound = well_formed(asked)?;
    let role = caller.in_project(ctx, asked.project_id, Permission::AllocationCreate).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let pointer = match bound {
        Bound::Allocation(_) => "/allocation_id",
        Bound::Group(_) => "/group_id",
    };
    let found = app_instances::bindable(&mut tx, bound, asked.project_id).await?;
    let found = found.ok_or_else(|| Error::invalid(pointer, "there is none in this project"))?;
    if found.ended {
        return Err(Error::Conflict(format!(
            "what it is to be bound to is {}: bind it to something that lives",
            found.status
        )));
    }
    let members = members_of(&found, &asked.members)?;
    let id = AppInstanceId(tx.new_id());
    let new = NewInstance {
        id,
        project_id: asked.project_id,
        owner_id: caller.user_id,
        name: asked.name.clone(),
        app: asked.app.clone(),
        bound,
    };
    app_instances::insert(&mut tx, &new).await?;
    app_instances::put_members(&mut tx, id, &members).await?;
    let made = app_instances::lock(&mut tx, id).await?.ok_or(Error::NotFound("app instance"))?;
    let viewer = Viewer::of(caller, Some(role));
    let deed = Deed::new(caller, Action::AppInstanceCreate, "app_instance", id)
        .in_project(asked.project_id)
        .with(json!({ "app": asked.app, "members": members.len() }));
    finish(tx, &deed, key, 201, shown(made, viewer)).await
}

/// Somebody gives the parts of an application other roles.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, [`Error::Conflict`] when it was ended.
pub async fn put_members(
    ctx: &Ctx,
    caller: &Caller,
    id: AppInstanceId,
    asked: &AppMembers,
    key: Option<&Key>,
) -> Result<Answer<AppInstance>, Error> {
    let faults = role_faults(&asked.members);
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    let viewer = may_change(ctx, caller, id).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let instance =
        app_instances::lock(&mut tx, id).await?.ok_or(Error::NotFound("app instance"))?;
    if instance.ended_at.is_some() {
        return Err(Error::Conflict("it was ended: make a new one".to_owned()));
    }
    let project = instance.project_id;
    let bound = app_instances::bindable(&mut tx, instance.bound, project).await?;
    let bound = bound.ok_or(Error::NotFound("app instance"))?;
    let members = members_of(&bound, &asked.members)?;
    app_instances::put_members(&mut tx, id, &members).await?;
    let changed = app_instances::lock(&mut tx, id).await?.ok_or(Error::NotFound("app instance"))?;
    let deed = Deed::new(caller, Action::AppInstanceMembers, "app_instance", id)
        .in_project(project)
        .with(json!({ "members": members.len() }));
    finish(tx, &deed, key, 200, shown(changed, viewer)).await
}

/// Somebody has no use for an application any more. What it was bound to stays as it is.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, [`Error::Conflict`] when it was ended before.
pub async fn end(
    ctx: &Ctx,
    caller: &Caller,
    id: AppInstanceId,
    key: Option<&Key>,
) -> Result<Answer<AppInstance>, Error> {
    let viewer = may_change(ctx, caller, id).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    if !app_instances::end(&mut tx, id).await? {
        return Err(Error::Conflict("it was ended before".to_owned()));
    }
    let ended = app_instances::lock(&mut tx, id).await?.ok_or(Error::NotFound("app instance"))?;
    let deed =
        Deed::new(caller, Action::AppInstanceEnd, "app_instance", id).in_project(ended.project_id);
    finish(tx, &deed, key, 200, shown(ended, viewer)).await
}

/// One app instance of the caller's projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn show(ctx: &Ctx, caller: &Caller, id: AppInstanceId) -> Result<AppInstance, Error> {
    caller.needs(Permission::AllocationRead)?;
    let found = app_instances::find_for(&ctx.store, id, caller.user_id).await?;
    let found = found.ok_or(Error::NotFound("app instance"))?;
    let viewer = Viewer::of(caller, found.role);
    Ok(shown(found, viewer))
}

/// The app instances of the caller's projects, or of one of them, newest first.
///
/// # Errors
/// [`Error::NotFound`] for a project that is not theirs, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    project: Option<Uuid>,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<AppInstance>, Error> {
    caller.needs(Permission::AllocationRead)?;
    if let Some(project) = project {
        caller.in_project(ctx, project, Permission::AllocationRead).await?;
    }
    let of = ("app-instances", caller.user_id, project);
    let paging = Paging::read(ctx, &of, limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let rows = app_instances::list_for(&ctx.store, caller.user_id, project, rows, before).await?;
    let shown = |row: Instance| {
        let viewer = Viewer::of(caller, row.role);
        shown(row, viewer)
    };
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |instance| instance.id))
}

/// Whether the caller may change an instance.
async fn may_change(ctx: &Ctx, caller: &Caller, id: AppInstanceId) -> Result<Viewer, Error> {
    let found = app_instances::find_for(&ctx.store, id, caller.user_id).await?;
    let role = found.and_then(|found| found.role).ok_or(Error::NotFound("app instance"))?;
    if !Permission::AllocationCreate.allows(role) {
        return Err(Error::Forbidden(format!(
            "your role in this project is {role}, which may not change app instances"
        )));
    }
    Ok(Viewer::of(caller, Some(role)))
}

/// What can be said of a request without looking anything up; what it is to be bound to.
fn well_formed(asked: &NewAppInstance) -> Result<Bound, Error> {
    let mut faults = role_faults(&asked.members);
    if let Some(detail) = name_fault(&asked.name) {
        faults.push(Fault { pointer: "/name".to_owned(), detail });
    }
    if !is_word(&asked.app, APP_CHARS_MAX) {
        faults.push(Fault { pointer: "/app".to_owned(), detail: word_wanted(APP_CHARS_MAX) });
    }
    let bound = match (asked.allocation_id, asked.group_id) {
        (Some(allocation), None) => Some(Bound::Allocation(allocation)),
        (None, Some(group)) => Some(Bound::Group(group)),
        (Some(_), Some(_)) | (None, None) => {
            let detail = "bind it to an allocation or to a group: one of the two".to_owned();
            faults.push(Fault { pointer: "/allocation_id".to_owned(), detail });
            None
        }
    };
    match bound {
        Some(bound) if faults.is_empty() => Ok(bound),
        Some(_) | None => Err(Error::Invalid(faults)),
    }
}

fn role_faults(members: &[NewAppMember]) -> Vec<Fault> {
    let mut faults = Vec::new();
    if members.len() > MEMBERS_MAX {
        let detail = format!("at most {MEMBERS_MAX} members");
        return vec![Fault { pointer: "/members".to_owned(), detail }];
    }
    for (place, member) in members.iter().enumerate() {
        if !is_word(&member.role, ROLE_CHARS_MAX) {
            let pointer = format!("/members/{place}/role");
            faults.push(Fault { pointer, detail: word_wanted(ROLE_CHARS_MAX) });
        }
        let first = members.iter().position(|each| each.allocation_id == member.allocation_id);
        if first != Some(place) {
            let pointer = format!("/members/{place}/allocation_id");
            faults.push(Fault { pointer, detail: "each allocation once".to_owned() });
        }
    }
    faults
}

/// Whether a text is a short word, such as `head` or `worker-1`.
fn is_word(text: &str, chars_max: usize) -> bool {
    let letter =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    (1..=chars_max).contains(&text.len()) && text.bytes().all(letter)
}

fn word_wanted(chars_max: usize) -> String {
    format!("a word of 1 to {chars_max} small letters, digits, dots, dashes and underscores")
}

/// Roles can be played by what is bound, and by nothing else.
fn members_of(bound: &Bindable, asked: &[NewAppMember]) -> Result<Vec<(Uuid, String)>, Error> {
    let stray = asked
        .iter()
        .enumerate()
        .filter(|(_, member)| !bound.allocations.contains(&member.allocation_id));
    let faults: Vec<Fault> = stray
        .map(|(place, member)| Fault {
            pointer: format!("/members/{place}/allocation_id"),
            detail: format!("{} is no part of what it is bound to", member.allocation_id),
        })
        .collect();
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    Ok(asked.iter().map(|member| (member.allocation_id, member.role.clone())).collect())
}

fn shown(row: Instance, viewer: Viewer) -> AppInstance {
    let (allocation_id, group_id) = match row.bound {
        Bound::Allocation(id) => (Some(id), None),
        Bound::Group(id) => (None, Some(id)),
    };
    let may = viewer.role.is_some_and(|role| Permission::AllocationCreate.allows(role));
    let actions = [AppAction::PutMembers, AppAction::End].map(Coded);
    let part = |part: Part| AppMember {
        allocation_id: part.allocation_id,
        name: part.name.unwrap_or_default(),
        status: part.status,
        role: part.role,
    };
    AppInstance {
        id: row.id,
        name: row.name,
        app: row.app,
        project_id: row.project_id,
        owner_id: row.owner_id,
        allocation_id,
        group_id,
        bound_name: row.bound_name.unwrap_or_default(),
        bound_status: row.bound_status,
        members: row.members.into_iter().map(part).collect(),
        created_at: row.created_at,
        allowed_actions: if may && row.ended_at.is_none() { actions.to_vec() } else { Vec::new() },
        ended_at: row.ended_at,
    }
}
