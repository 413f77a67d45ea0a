//! What people did, for the audit log. Every mutation says so when it [finishes](crate::idempotency::finish): there is no
//! way to answer one without its entry.

use lifecycle::{Code as _, codes};
use serde_json::Value;
use store::Tx;
use store::audit_log::{self, NewEntry};
use uuid::Uuid;

use crate::{Caller, Error};

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
        DeadLetterRedrive = "dead_letter.redrive",
        PolicySet = "policy.set",
        PolicyReset = "policy.reset",
    }
}

/// What somebody did, to what.
#[derive(Clone, Debug)]
pub struct Deed<'a> {
    /// Who.
    pub caller: &'a Caller,
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
    /// A deed, about which nothing more is known yet.
    pub fn new(
        caller: &'a Caller,
        action: Action,
        target_kind: &'static str,
        target: impl ToString,
    ) -> Deed<'a> {
        Deed {
            caller,
            action,
            target_kind,
            target: target.to_string(),
            project_id: None,
            reason: None,
            detail: Value::Object(serde_json::Map::new()),
        }
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
        let Deed { caller, action, .. } = self;
        let entry = NewEntry {
            user_id: Some(caller.user_id),
            token_id: Some(caller.token_id),
            role: if caller.operator { "operator" } else { "user" },
            action: action.code(),
            target_kind: self.target_kind,
            target: self.target.clone(),
            project_id: self.project_id,
            outcome,
            reason: self.reason.clone(),
            detail: self.detail.clone(),
            request_id: Some(caller.request_id),
            source: caller.source.clone(),
        };
        audit_log::append(tx, &entry).await?;
        Ok(())
    }
}
