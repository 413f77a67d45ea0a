//! Groups of allocations, and what is bound to them.

use reqwest::Method;
use uuid::Uuid;
use wire::http::allocation_groups::{AllocationGroup, GroupStatus, NewGroup};
use wire::http::app_instances::{AppInstance, AppMembers, NewAppInstance};
use wire::http::explain::GroupExplanation;

use super::{Call, Client};
use crate::exit::Done;

impl Client {
    pub(crate) async fn groups(&self, status: Option<GroupStatus>) -> Done<Vec<AllocationGroup>> {
        let query: Vec<_> =
            status.map(|status| ("status", status.to_string())).into_iter().collect();
        self.all("/allocation-groups", &query).await
    }

    pub(crate) async fn group(&self, id: Uuid) -> Done<AllocationGroup> {
        self.send(Call::new(Method::GET, &format!("/allocation-groups/{id}"))).await
    }

    pub(crate) async fn explain_group(&self, id: Uuid) -> Done<GroupExplanation> {
        self.get(&format!("/allocation-groups/{id}/explain")).await
    }

    pub(crate) async fn all_groups(
        &self,
        status: Option<GroupStatus>,
    ) -> Done<Vec<AllocationGroup>> {
        let query: Vec<_> =
            status.map(|status| ("status", status.to_string())).into_iter().collect();
        self.all("/admin/allocation-groups", &query).await
    }

    pub(crate) async fn operator_explain_group(&self, id: Uuid) -> Done<GroupExplanation> {
        self.get(&format!("/admin/allocation-groups/{id}/explain")).await
    }

    pub(crate) async fn create_group(&self, new: &NewGroup) -> Done<AllocationGroup> {
        self.post("/allocation-groups", new).await
    }

    pub(crate) async fn release_group(&self, id: Uuid) -> Done<AllocationGroup> {
        self.post_nothing(&format!("/allocation-groups/{id}/release")).await
    }

    pub(crate) async fn app_instances(&self) -> Done<Vec<AppInstance>> {
        self.all("/app-instances", &[]).await
    }

    pub(crate) async fn app_instance(&self, id: Uuid) -> Done<AppInstance> {
        self.get(&format!("/app-instances/{id}")).await
    }

    pub(crate) async fn create_app_instance(&self, new: &NewAppInstance) -> Done<AppInstance> {
        self.post("/app-instances", new).await
    }

    pub(crate) async fn put_app_members(&self, id: Uuid, new: &AppMembers) -> Done<AppInstance> {
        let path = format!("/app-instances/{id}/members");
        self.send(Call::new(Method::PUT, &path).once().saying(new)?).await
    }

    pub(crate) async fn end_app_instance(&self, id: Uuid) -> Done<AppInstance> {
        self.post_nothing(&format!("/app-instances/{id}/end")).await
    }
}
