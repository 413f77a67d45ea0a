//! The audit log as people read it: operators all of it, the admins of a project what was done there.

use domain::policy::Permission;
use jiff::Timestamp;
use store::audit_log::list::{self, Filter, Row};
use uuid::Uuid;
use wire::http::Page;
use wire::http::audit::{AuditEntry, AuditHead, AuditVerdict};

use super::{Role, chain};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// The place of an entry in the list: when, and which.
type Place = (Timestamp, Uuid);

/// Which part of the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// How many at most.
    pub limit: Option<u16>,
    /// Where to go on.
    pub cursor: Option<&'a str>,
}

/// Everything that was done, newest first.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn all(
    ctx: &Ctx,
    caller: &Caller,
    filter: &Filter,
    part: Part<'_>,
) -> Result<Page<AuditEntry>, Error> {
    caller.needs(Permission::AuditRead)?;
    page(ctx, ("admin/audit", caller.user_id), filter, part).await
}

/// What was done in a project, newest first. Which operator did something stays between operators.
///
/// # Errors
/// [`Error::NotFound`] for who is no member, [`Error::Forbidden`] for who is not its admin.
pub async fn of_project(
    ctx: &Ctx,
    caller: &Caller,
    project: Uuid,
    part: Part<'_>,
) -> Result<Page<AuditEntry>, Error> {
    caller.needs(Permission::ProjectAudit)?;
    caller.in_project(ctx, project, Permission::ProjectAudit).await?;
    let filter = Filter { project_id: Some(project), ..Filter::default() };
    let mut page = page(ctx, ("projects/audit", caller.user_id), &filter, part).await?;
    page.items.iter_mut().for_each(for_tenants);
    Ok(page)
}

/// Whether the chain is as it was made.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a head that is none.
pub async fn verify(ctx: &Ctx, caller: &Caller, kept: Option<&str>) -> Result<AuditVerdict, Error> {
    caller.needs(Permission::AuditRead)?;
    let kept = kept.map(head).transpose()?;
    chain::verify(&ctx.store, kept.as_ref()).await
}

/// A head as it is written down: `POSITION:HASH`.
///
/// # Errors
/// [`Error::Invalid`] when it is none.
pub fn head(text: &str) -> Result<AuditHead, Error> {
    let parts = text.trim().split_once(':').and_then(|(position, hash)| {
        let position = position.parse().ok().filter(|position: &i64| *position >= 1)?;
        let hex = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| AuditHead { position, hash: hash.to_lowercase() })
    });
    let none =
        || Error::invalid("/head", "is not of the form POSITION:HASH, as a verification prints it");
    parts.ok_or_else(none)
}

async fn page(
    ctx: &Ctx,
    (name, caller): (&'static str, Uuid),
    filter: &Filter,
    part: Part<'_>,
) -> Result<Page<AuditEntry>, Error> {
    let Filter { user_id, action, target, project_id, from, to } = filter;
    let of = (name, caller, (user_id, action, target, project_id, from, to));
    let paging = Paging::<Place>::read(ctx, &of, part.limit, part.cursor)?;
    let rows = list::list(&ctx.store, filter, paging.after(), paging.rows()).await?;
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |entry| (entry.at, entry.id)))
}

fn shown(row: Row) -> AuditEntry {
    AuditEntry {
        id: row.id,
        at: row.at,
        role: row.role,
        user_id: row.user_id,
        user: row.email,
        token_id: row.token_id,
        action: row.action,
        target_kind: row.target_kind,
        target: row.target,
        project_id: row.project_id,
        outcome: row.outcome,
        reason: row.reason,
        detail: row.detail,
        request_id: row.request_id,
        source: row.source,
        position: row.position,
    }
}

/// Where somebody sits is between them and the platform; who of the operators it was, too.
fn for_tenants(entry: &mut AuditEntry) {
    use lifecycle::Code as _;
    (entry.token_id, entry.source) = (None, None);
    if entry.role != Role::User.code() {
        (entry.user_id, entry.user, entry.request_id) = (None, None, None);
    }
}
