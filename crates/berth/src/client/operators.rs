//! What operators look after: the audit log, policies, what is stuck.

use reqwest::Method;
use uuid::Uuid;
use wire::http::Page;
use wire::http::audit::{AuditEntry, AuditVerdict};
use wire::http::policies::{NewPolicy, Policy};
use wire::http::stuck::Stuck;

use super::call::Call;
use super::{Client, Query};
use crate::exit::Done;

impl Client {
    /// The newest entries of the audit log, of all or of one project.
    pub(crate) async fn audit_entries(
        &self,
        of_project: Option<Uuid>,
        query: Query<'_>,
        most: u16,
    ) -> Done<Vec<AuditEntry>> {
        let path = match of_project {
            Some(project) => format!("/projects/{project}/audit"),
            None => "/admin/audit".to_owned(),
        };
        let mut call = Call::new(Method::GET, &path).asking("limit", most.to_string());
        for (name, value) in query {
            call = call.asking(name, value.clone());
        }
        Ok(self.send::<Page<AuditEntry>>(call).await?.items)
    }

    pub(crate) async fn verify_audit_log(&self, head: Option<String>) -> Done<AuditVerdict> {
        let call = Call::new(Method::GET, "/admin/audit/verify");
        self.send(head.into_iter().fold(call, |call, head| call.asking("head", head))).await
    }

    pub(crate) async fn stuck(&self) -> Done<Stuck> {
        self.get("/admin/stuck").await
    }

    pub(crate) async fn policies(&self) -> Done<Vec<Policy>> {
        self.whole("/admin/policies").await
    }

    pub(crate) async fn set_policy(&self, key: &str, new: &NewPolicy) -> Done<Policy> {
        let path = format!("/admin/policies/{key}");
        self.send(Call::new(Method::PUT, &path).once().saying(new)?).await
    }

    pub(crate) async fn reset_policy(&self, key: &str) -> Done<Policy> {
        self.send(Call::new(Method::DELETE, &format!("/admin/policies/{key}")).once()).await
    }
}
