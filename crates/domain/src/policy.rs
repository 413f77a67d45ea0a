//! Who may do what, as one table. Pure: it is asked with a role and answers.

use lifecycle::codes;

codes! {
    /// What a member may do in a project. Each may do what those before it may.
    pub enum ProjectRole {
        Viewer = "viewer",
        Member = "member",
        Admin = "admin",
    }
}

codes! {
    /// What a token may be used for.
    pub enum Scope {
        Read = "read",
        Write = "write",
        Admin = "admin",
    }
}

codes! {
    /// Something that a door needs. Every route names one.
    pub enum Permission {
        Public = "public",
        AccountRead = "account.read",
        AccountWrite = "account.write",
        CatalogueRead = "catalogue.read",
        ProjectRead = "project.read",
        ProjectManage = "project.manage",
        ProjectAudit = "project.audit",
        AllocationRead = "allocation.read",
        AllocationCreate = "allocation.create",
        AllocationRelease = "allocation.release",
        AllocationRestart = "allocation.restart",
        PaymentRead = "payment.read",
        PaymentCreate = "payment.create",
        PaymentReview = "payment.review",
        PaymentReconcile = "payment.reconcile",
        AuditRead = "audit.read",
        PolicyManage = "policy.manage",
        FleetRead = "fleet.read",
        FleetManage = "fleet.manage",
        AllocationForceRelease = "allocation.force_release",
        MoneyRead = "money.read",
        MoneyWrite = "money.write",
        LedgerRead = "ledger.read",
        LedgerAdjust = "ledger.adjust",
        PriceManage = "price.manage",
    }
}

/// Whom a permission asks for, beside the token's scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearer {
    /// Nobody in particular: no token is needed.
    Anybody,
    /// Whoever has an account.
    User,
    /// A member of the project, in this role at least.
    Member(ProjectRole),
    /// Who runs the platform.
    Operator,
}

impl Permission {
    /// The scope that a token needs.
    pub const fn scope(self) -> Option<Scope> {
        match self {
            Permission::Public => None,
            Permission::AccountRead
            | Permission::CatalogueRead
            | Permission::ProjectRead
            | Permission::ProjectAudit
            | Permission::MoneyRead
            | Permission::PaymentRead
            | Permission::AllocationRead => Some(Scope::Read),
            Permission::AccountWrite
            | Permission::ProjectManage
            | Permission::PaymentCreate
            | Permission::AllocationCreate
            | Permission::AllocationRelease
            | Permission::MoneyWrite
            | Permission::AllocationRestart => Some(Scope::Write),
            Permission::FleetRead
            | Permission::FleetManage
            | Permission::PaymentReview
            | Permission::PaymentReconcile
            | Permission::AuditRead
            | Permission::PolicyManage
            | Permission::LedgerRead
            | Permission::LedgerAdjust
            | Permission::PriceManage
            | Permission::AllocationForceRelease => Some(Scope::Admin),
        }
    }

    /// Whom it asks for.
    pub const fn bearer(self) -> Bearer {
        match self {
            Permission::Public => Bearer::Anybody,
            Permission::AccountRead
            | Permission::AccountWrite
            | Permission::MoneyRead
            | Permission::MoneyWrite
            | Permission::PaymentRead
            | Permission::PaymentCreate
            | Permission::CatalogueRead => Bearer::User,
            Permission::ProjectRead | Permission::AllocationRead => {
                Bearer::Member(ProjectRole::Viewer)
            }
            Permission::AllocationCreate
            | Permission::AllocationRelease
            | Permission::AllocationRestart => Bearer::Member(ProjectRole::Member),
            Permission::ProjectManage | Permission::ProjectAudit => {
                Bearer::Member(ProjectRole::Admin)
            }
            Permission::FleetRead
            | Permission::FleetManage
            | Permission::PaymentReview
            | Permission::PaymentReconcile
            | Permission::AuditRead
            | Permission::PolicyManage
            | Permission::LedgerRead
            | Permission::LedgerAdjust
            | Permission::PriceManage
            | Permission::AllocationForceRelease => Bearer::Operator,
        }
    }

    /// Whether a member in `role` may.
    pub fn allows(self, role: ProjectRole) -> bool {
        match self.bearer() {
            Bearer::Anybody | Bearer::User => true,
            Bearer::Member(least) => role >= least,
            Bearer::Operator => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::Code as _;

    use super::{Bearer, Permission, ProjectRole, Scope};

    #[test]
    fn a_greater_role_may_whatever_a_smaller_one_may() {
        for permission in Permission::ALL {
            let allowed: Vec<bool> =
                ProjectRole::ALL.iter().map(|role| permission.allows(*role)).collect();
            assert!(allowed.is_sorted(), "{permission}: {allowed:?}");
        }
    }

    #[test]
    fn what_operators_do_needs_the_scope_of_operators() {
        for permission in Permission::ALL {
            let operator = permission.bearer() == Bearer::Operator;
            assert_eq!(operator, permission.scope() == Some(Scope::Admin), "{permission}");
            assert_eq!(*permission == Permission::Public, permission.scope().is_none());
        }
    }
}
