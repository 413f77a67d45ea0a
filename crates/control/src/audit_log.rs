//! What people did, for the audit log. Every mutation says so when it [finishes](crate::idempotency::finish): there is no
//! way to answer one without its entry. [`chain`] links entries a moment later, [`read`] shows them, [`denied`] writes
//! down who was not let in.

pub mod chain;
pub mod denied;
pub mod read;

use lifecycle::{Code as _, codes};
use serde_json::Value;
use store::Tx;
use store::audit_log::{self, Answering, NewEntry};
use uuid::Uuid;

use crate::node::enrol::AgentIdentity;
use crate::{Caller, Error};

/// What the log says of a deed that was done.
pub(crate) const DONE: &str = "done";

codes! {
    /// What somebody did.
    pub enum Action {
        ProjectCreate = "project.create",
        MemberPut = "member.put",
        MemberRemove = "member.remove",
        SshKeyCreate = "ssh_key.create",
        SshKeyDelete = "ssh_key.delete",
        TokenCreate = "token.create",
        TokenRevoke = "token.revoke",
        AllocationCreate = "allocation.create",
        AllocationRelease = "allocation.release",
        AllocationForceRelease = "allocation.force_release",
        AllocationRestart = "allocation.restart",
        AllocationAbandon = "allocation.abandon",
        AllocationClean = "allocation.clean",
        ClaimQuarantine = "claim.quarantine",
        ClaimClear = "claim.clear",
        GroupCreate = "group.create",
        GroupRelease = "group.release",
        AppInstanceCreate = "app_instance.create",
        AppInstanceMembers = "app_instance.members",
        AppInstanceEnd = "app_instance.end",
        NodeCreate = "node.create",
        NodeJoinToken = "node.join_token",
        NodeRevoke = "node.revoke",
        NodeDrain = "node.drain",
        NodeResume = "node.resume",
        NodeRetire = "node.retire",
        FleetAudit = "fleet.audit",
        DeadLetterRedrive = "dead_letter.redrive",
        CheckoutCreate = "checkout.create",
        PaymentResolve = "payment.resolve",
        PolicySet = "policy.set",
        PolicyReset = "policy.reset",
        LedgerAdjust = "ledger.adjust",
        PriceSet = "price.set",
        BalanceThreshold = "balance.threshold",
        SpendingCap = "project.spending_cap",
        NotificationRead = "notification.read",
        NotificationReadAll = "notification.read_all",
        WebhookCreate = "webhook.create",
        WebhookRotate = "webhook.rotate",
        WebhookDelete = "webhook.delete",
        WebhookTest = "webhook.test",
        WebhookRedeliver = "webhook.redeliver",
        Login = "login",
        AdminAttempt = "admin.attempt",
        NodeEnrol = "node.enrol",
        CertificateRenew = "certificate.renew",
        InstallUser = "install.user",
        InstallProject = "install.project",
        InstallToken = "install.token",
        AuditCut = "audit.cut",
    }
}

codes! {
    /// As what somebody did it.
    pub enum Role {
        User = "user",
        Operator = "operator",
        Agent = "agent",
        System = "system",
    }
}

impl Action {
    /// Whether nobody but operators does it.
    pub const fn is_operators(self) -> bool {
        match self {
            Action::AllocationForceRelease
            | Action::AllocationAbandon
            | Action::AllocationClean
            | Action::FleetAudit
            | Action::ClaimQuarantine
            | Action::ClaimClear
            | Action::NodeCreate
            | Action::NodeJoinToken
            | Action::NodeRevoke
            | Action::NodeDrain
            | Action::NodeResume
            | Action::NodeRetire
            | Action::DeadLetterRedrive
            | Action::PaymentResolve
            | Action::PolicySet
            | Action::PolicyReset
            | Action::LedgerAdjust
            | Action::PriceSet => true,
            Action::ProjectCreate
            | Action::MemberPut
            | Action::MemberRemove
            | Action::SshKeyCreate
            | Action::SshKeyDelete
            | Action::TokenCreate
            | Action::TokenRevoke
            | Action::AllocationCreate
            | Action::AllocationRelease
            | Action::AllocationRestart
            | Action::GroupCreate
            | Action::GroupRelease
            | Action::AppInstanceCreate
            | Action::AppInstanceMembers
            | Action::AppInstanceEnd
            | Action::BalanceThreshold
            | Action::SpendingCap
            | Action::NotificationRead
            | Action::NotificationReadAll
            | Action::WebhookCreate
            | Action::WebhookRotate
            | Action::WebhookDelete
            | Action::WebhookTest
            | Action::WebhookRedeliver
            | Action::CheckoutCreate
            | Action::Login
            | Action::AdminAttempt
            | Action::NodeEnrol
            | Action::CertificateRenew
            | Action::InstallUser
            | Action::InstallProject
            | Action::InstallToken
            | Action::AuditCut => false,
        }
    }
}

/// The longest reason.
const REASON_CHARS_MAX: usize = 256;

/// What an operator says why, if it is something to read.
///
/// # Errors
/// [`Error::Invalid`] when it says nothing, too much, or what can't be shown.
pub fn because(reason: &str) -> Result<&str, Error> {
    let reason = reason.trim();
    let fits = (1..=REASON_CHARS_MAX).contains(&reason.chars().count());
    if fits && !reason.chars().any(char::is_control) {
        return Ok(reason);
    }
    let detail = format!("1 to {REASON_CHARS_MAX} characters, none of them control characters");
    Err(Error::invalid("/reason", detail))
}

/// What somebody did, to what.
#[derive(Clone, Debug)]
pub struct Deed<'a> {
    /// Who.
    pub caller: &'a Caller,
    /// As what.
    pub role: Role,
    /// What.
    pub action: Action,
    /// To what kind of thing: `allocation`, `node`, …
    pub target_kind: &'static str,
    /// To which: an identity, or a name where there is none.
    pub target: String,
    /// In which project.
    pub project_id: Option<Uuid>,
    /// Why, as they said it.
    pub reason: Option<String>,
    /// What changed, as words of ours: never a secret.
    pub detail: Value,
}

impl<'a> Deed<'a> {
    /// A deed, about which nothing more is known yet. What nobody but operators does is done as one; whatever else an
    /// operator does, they do like everybody.
    pub fn new(
        caller: &'a Caller,
        action: Action,
        target_kind: &'static str,
        target: impl ToString,
    ) -> Deed<'a> {
        Deed {
            caller,
            role: if action.is_operators() { Role::Operator } else { Role::User },
            action,
            target_kind,
            target: target.to_string(),
            project_id: None,
            reason: None,
            detail: nothing(),
        }
    }

    /// The same, done by somebody who may because they run the platform.
    #[must_use]
    pub fn as_operator(mut self) -> Self {
        self.role = Role::Operator;
        self
    }

    /// The same, in a project.
    #[must_use]
    pub fn in_project(mut self, project: Uuid) -> Self {
        self.project_id = Some(project);
        self
    }

    /// The same, with what they said why.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// The same, with what changed. Words of ours: never a secret.
    #[must_use]
    pub fn with(mut self, detail: Value) -> Self {
        self.detail = detail;
        self
    }

    /// Writes it, in the transaction of the deed.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn write(&self, tx: &mut Tx, outcome: &'static str) -> Result<(), Error> {
        audit_log::append(tx, &self.entry(outcome)).await?;
        Ok(())
    }

    /// Writes that it was done together with the answer to the request; says whether the transaction had its key.
    pub(crate) async fn write_answering(
        &self,
        tx: &mut Tx,
        answer: Answering,
    ) -> Result<bool, Error> {
        Ok(audit_log::append_answering(tx, self.entry(DONE), answer).await?)
    }

    /// The entry of it, done.
    pub(crate) fn done(&self) -> NewEntry {
        self.entry(DONE)
    }

    fn entry(&self, outcome: &'static str) -> NewEntry {
        let Deed { caller, action, .. } = self;
        NewEntry {
            user_id: Some(caller.user_id),
            token_id: Some(caller.token_id),
            role: self.role.code(),
            action: action.code(),
            target_kind: self.target_kind,
            target: self.target.clone(),
            project_id: self.project_id,
            outcome,
            reason: self.reason.clone(),
            detail: self.detail.clone(),
            request_id: Some(caller.request_id),
            source: caller.source.clone(),
        }
    }
}

/// Writes what the agent of a node did with its own identity.
///
/// # Errors
/// When the store fails.
pub async fn by_agent(tx: &mut Tx, agent: &AgentIdentity, action: Action) -> Result<(), Error> {
    let detail = serde_json::json!({ "agent_id": agent.agent_id, "until": agent.not_after });
    let node = ("node", agent.node_id.to_string());
    audit_log::append(tx, &NewEntry { detail, ..of_nobody(Role::Agent, action, node) }).await?;
    Ok(())
}

/// Writes that the log itself was cut behind a link.
pub(crate) async fn of_cut(tx: &mut Tx, position: i64, detail: Value) -> Result<(), Error> {
    let what = ("audit_log", position.to_string());
    let entry = of_nobody(Role::System, Action::AuditCut, what);
    audit_log::append(tx, &NewEntry { detail, ..entry }).await?;
    Ok(())
}

/// Writes what an installation did to itself, before there was anybody.
///
/// # Errors
/// When the store fails.
pub async fn by_system(
    tx: &mut Tx,
    action: Action,
    (kind, id): (&'static str, Uuid),
    detail: Value,
) -> Result<(), Error> {
    let what = (kind, id.to_string());
    audit_log::append(tx, &NewEntry { detail, ..of_nobody(Role::System, action, what) }).await?;
    Ok(())
}

fn of_nobody(role: Role, action: Action, (kind, target): (&'static str, String)) -> NewEntry {
    NewEntry {
        role: role.code(),
        action: action.code(),
        target_kind: kind,
        target,
        outcome: DONE,
        detail: nothing(),
        ..NewEntry::default()
    }
}

fn nothing() -> Value {
    Value::Object(serde_json::Map::new())
}
