//! The members of a project. Its admins manage them, anybody may leave, and one admin always stays.

use domain::policy::Permission;
use serde_json::json;
use store::projects::Change;
use uuid::Uuid;
use wire::http::Page;
use wire::http::account::{Member, NewMember};

use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// The members of a project of the caller.
///
/// # Errors
/// [`Error::NotFound`] when the caller is no member.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    project: Uuid,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Member>, Error> {
    caller.needs(Permission::ProjectRead)?;
    caller.in_project(ctx, project, Permission::ProjectRead).await?;
    let paging = Paging::read(ctx, &("members", caller.user_id, project), limit, cursor)?;
    let (rows, after) = (paging.rows(), paging.after());
    let rows = store::projects::list_members(&ctx.store, project, rows, after).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |member| member.user_id))
}

/// Makes somebody a member, or gives a member another role.
///
/// # Errors
/// [`Error::Conflict`] when no admin would be left.
pub async fn put(
    ctx: &Ctx,
    caller: &Caller,
    project: Uuid,
    new: &NewMember,
    key: Option<&Key>,
) -> Result<Answer<Member>, Error> {
    caller.needs(Permission::ProjectManage)?;
    caller.in_project(ctx, project, Permission::ProjectManage).await?;
    let found = store::users::find_by_email(&ctx.store, new.email.trim()).await?;
    let Some(user) = found.map(|found| found.user) else {
        return Err(Error::invalid("/email", "nobody has an account with this address"));
    };
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        Begun::Known(answer) => return Ok(answer),
    };
    made(store::projects::put_member(&mut tx, project, user.id, new.role.0).await?)?;
    let deed = Deed::new(caller, Action::MemberPut, "user", user.id)
        .in_project(project)
        .with(json!({ "role": new.role }));
    let member = Member { user_id: user.id, email: user.email, name: user.name, role: new.role };
    finish(tx, &deed, key, 200, member).await
}

/// Ends a membership. Admins may end anybody's, others their own.
///
/// # Errors
/// [`Error::Conflict`] when no admin would be left.
pub async fn remove(
    ctx: &Ctx,
    caller: &Caller,
    project: Uuid,
    user: Uuid,
    key: Option<&Key>,
) -> Result<Answer<()>, Error> {
    caller.needs(Permission::ProjectManage)?;
    let leaves = user == caller.user_id;
    let permission = if leaves { Permission::ProjectRead } else { Permission::ProjectManage };
    let in_project = caller.in_project(ctx, project, permission).await;
    let mut tx = match begin(ctx, key).await? {
        Begun::Fresh(tx) => tx,
        // Who has left is no member any more, and is still told so.
        Begun::Known(answer) => return Ok(answer),
    };
    in_project?;
    made(store::projects::remove_member(&mut tx, project, user).await?)?;
    let deed = Deed::new(caller, Action::MemberRemove, "user", user).in_project(project);
    finish(tx, &deed, key, 204, ()).await
}

fn made(change: Change) -> Result<(), Error> {
    match change {
        Change::Made => Ok(()),
        Change::LastAdmin => Err(Error::Conflict(
            "this is the last admin of the project: make somebody else one first".to_owned(),
        )),
        Change::NoMember => Err(Error::NotFound("member")),
    }
}

fn shown(member: store::projects::Member) -> Member {
    Member {
        user_id: member.user_id,
        email: member.email,
        name: member.name,
        role: member.role.into(),
    }
}
