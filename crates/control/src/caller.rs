//! Who asks. Made by the door that has checked the token; stories take it as it is.

use domain::ids::{AllocationGroupId, AllocationId};
use domain::policy::{Bearer, Permission, ProjectRole, Scope};
use lifecycle::Source;
use store::allocations::Relation;
use store::lifecycle::Actor;
use uuid::Uuid;

use crate::{Ctx, Error};

/// Somebody with a valid token.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The user.
    pub user_id: Uuid,
    /// Their address.
    pub email: String,
    /// Their name.
    pub name: String,
    /// Whether they run the platform.
    pub operator: bool,
    /// The token they came with.
    pub token_id: Uuid,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// The request.
    pub request_id: Uuid,
    /// Where the request came from, as far as it is known.
    pub source: Option<String>,
}

impl Caller {
    /// Whether the token and the account may go through a door that needs `permission`. What a member may in a project is
    /// asked by [`Caller::in_project`].
    ///
    /// # Errors
    /// [`Error::Forbidden`], with what is missing.
    pub fn needs(&self, permission: Permission) -> Result<(), Error> {
        if let Some(scope) = permission.scope()
            && !self.scopes.contains(&scope)
        {
            return Err(Error::Forbidden(format!("this token does not have the scope {scope}")));
        }
        if permission.bearer() == Bearer::Operator && !self.operator {
            return Err(Error::Forbidden("only operators of the platform may do this".to_owned()));
        }
        Ok(())
    }

    /// The caller's role in a project, if it is enough for `permission`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when they are no member: they do not learn whether it exists. [`Error::Forbidden`] when their
    /// role is too small.
    pub async fn in_project(
        &self,
        ctx: &Ctx,
        project: Uuid,
        permission: Permission,
    ) -> Result<ProjectRole, Error> {
        let role = store::projects::role_of(&ctx.store, project, self.user_id).await?;
        enough(role.ok_or(Error::NotFound("project"))?, permission)
    }

    /// What the caller has to do with an allocation, and their role in its project, if it is enough for `permission`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not theirs, or there is none: they do not learn which.
    pub async fn on_allocation(
        &self,
        ctx: &Ctx,
        id: AllocationId,
        permission: Permission,
    ) -> Result<(ProjectRole, Relation), Error> {
        let relation = ctx.desks.relation(id, self.user_id).await?;
        let theirs = relation.and_then(|relation| Some((relation.role?, relation)));
        let (role, relation) = theirs.ok_or(Error::NotFound("allocation"))?;
        Ok((enough(role, permission)?, relation))
    }

    /// The caller's role in the project of a group, if it is enough for `permission`.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not theirs, or there is none: they do not learn which.
    pub async fn on_group(
        &self,
        ctx: &Ctx,
        id: AllocationGroupId,
        permission: Permission,
    ) -> Result<ProjectRole, Error> {
        let role = store::allocation_groups::role_on(&ctx.store, id, self.user_id).await?;
        enough(role.ok_or(Error::NotFound("allocation group"))?, permission)
    }

    /// As the log will name them.
    pub fn actor(&self) -> Actor {
        Actor::new(Source::User, format!("user {}", self.user_id))
    }

    /// As the log will name them when they act as an operator.
    pub fn operator_actor(&self) -> Actor {
        Actor::new(Source::Operator, format!("operator {}", self.user_id))
    }

    /// What led to what they do.
    pub fn cause(&self) -> String {
        format!("request {}", self.request_id)
    }
}

fn enough(role: ProjectRole, permission: Permission) -> Result<ProjectRole, Error> {
    if !permission.allows(role) {
        return Err(Error::Forbidden(format!(
            "your role in this project is {role}, which may not do this"
        )));
    }
    Ok(role)
}
