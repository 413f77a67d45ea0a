//! What operators ask when something did not end well.

use uuid::Uuid;
use wire::http::admin::{Because, ClaimStatus, Node};
use wire::http::allocations::Allocation;
use wire::http::claims::Claim;
use wire::http::findings::{Finding, Look};

use super::Client;
use crate::exit::Done;

impl Client {
    pub(crate) async fn abandon(&self, id: Uuid, why: &Because) -> Done<Allocation> {
        self.post(&format!("/admin/allocations/{id}/abandon"), why).await
    }

    pub(crate) async fn clean(&self, id: Uuid, why: &Because) -> Done<Allocation> {
        self.post(&format!("/admin/allocations/{id}/clean"), why).await
    }

    pub(crate) async fn claims(&self, status: Option<ClaimStatus>) -> Done<Vec<Claim>> {
        let query: Vec<_> =
            status.map(|status| ("status", status.to_string())).into_iter().collect();
        self.all("/admin/claims", &query).await
    }

    pub(crate) async fn quarantine(&self, id: Uuid, why: &Because) -> Done<Claim> {
        self.post(&format!("/admin/claims/{id}/quarantine"), why).await
    }

    pub(crate) async fn clear(&self, id: Uuid, why: &Because) -> Done<Claim> {
        self.post(&format!("/admin/claims/{id}/clear"), why).await
    }

    pub(crate) async fn look_for_findings(&self) -> Done<Look> {
        self.post_nothing("/admin/findings/look").await
    }

    pub(crate) async fn findings(&self, all: bool) -> Done<Vec<Finding>> {
        self.all("/admin/findings", &[("all", all.to_string())]).await
    }

    pub(crate) async fn drain_node(&self, id: Uuid, why: &Because) -> Done<Node> {
        self.post(&format!("/admin/nodes/{id}/drain"), why).await
    }

    pub(crate) async fn resume_node(&self, id: Uuid, why: &Because) -> Done<Node> {
        self.post(&format!("/admin/nodes/{id}/resume"), why).await
    }

    pub(crate) async fn retire_node(&self, id: Uuid, why: &Because) -> Done<Node> {
        self.post(&format!("/admin/nodes/{id}/retire"), why).await
    }
}
