//! The API as a typed client. Whatever changes something carries a key of its own, so that asking again after a broken
//! connection never does it twice.

mod call;
pub(crate) mod events;
mod groups;
mod money;
mod notifications;
mod operators;
mod payments;
mod recovery;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;
use wire::http::account::{
    FreshToken, Login, Me, Member, NewMember, NewProject, NewSshKey, NewToken, Project, SshKey,
    Token,
};
use wire::http::admin::{Because, DeadLetter, FreshNode, Invariants, NewNode, Node};
use wire::http::allocations::{Allocation, AllocationStatus, ForceRelease, NewAllocation};
use wire::http::catalogue::{Availability, CapacityExplained, CapacityQuestion, Sku};
use wire::http::explain::Explanation;
use wire::http::timeline::Timeline;
use wire::http::{Health, PAGE_MAX, Page};
use wire::receipt::SignedReceipt;

use crate::context::Reach;
use crate::exit::{Done, Exit, Failure};
use call::Call;

/// A client of one API.
pub(crate) struct Client {
    http: reqwest::Client,
    /// Where the API is, and who asks.
    pub(crate) reach: Reach,
}

type Query<'a> = &'a [(&'a str, String)];

impl Client {
    /// A client for that place. Nothing is sent yet.
    pub(crate) fn new(reach: Reach) -> Done<Client> {
        Ok(Client { http: call::http(&reach.api)?, reach })
    }

    /// The same for somebody who must be known there.
    pub(crate) fn known(reach: Reach) -> Done<Client> {
        if reach.token.is_none() {
            let place =
                reach.context.as_deref().map_or_else(String::new, |name| format!(" as `{name}`"));
            let sentence = format!("you are not logged in at {}{place}", reach.api);
            return Err(Failure::new(Exit::NotAuthenticated, sentence)
                .with("advice", "log in, or set BERTH_TOKEN")
                .next("login"));
        }
        Client::new(reach)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Done<T> {
        self.send(Call::new(Method::GET, path)).await
    }

    /// All of a list, page after page.
    async fn all<T: DeserializeOwned>(&self, path: &str, query: Query<'_>) -> Done<Vec<T>> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut call = Call::new(Method::GET, path).asking("limit", PAGE_MAX.to_string());
            for (name, value) in query {
                call = call.asking(name, value.clone());
            }
            if let Some(cursor) = cursor {
                call = call.asking("cursor", cursor);
            }
            let page: Page<T> = self.send(call).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(items);
            }
        }
    }

    /// All of a list that has only one page.
    async fn whole<T: DeserializeOwned>(&self, path: &str) -> Done<Vec<T>> {
        Ok(self.get::<Page<T>>(path).await?.items)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Done<T> {
        self.send(Call::new(Method::POST, path).once().saying(body)?).await
    }

    async fn post_nothing<T: DeserializeOwned>(&self, path: &str) -> Done<T> {
        self.send(Call::new(Method::POST, path).once()).await
    }

    async fn delete(&self, path: &str) -> Done {
        self.send(Call::new(Method::DELETE, path).once()).await
    }
}

/// One's own.
impl Client {
    pub(crate) async fn ready(&self) -> Done<Health> {
        self.send(Call::new(Method::GET, "/readyz").at_root()).await
    }

    /// Trades a password for a token. It is asked once: a second try would make a second token.
    pub(crate) async fn login(&self, login: &Login) -> Done<FreshToken> {
        self.send(Call::new(Method::POST, "/login").unrepeatable().saying(login)?).await
    }

    pub(crate) async fn me(&self) -> Done<Me> {
        self.get("/me").await
    }

    pub(crate) async fn projects(&self) -> Done<Vec<Project>> {
        self.all("/projects", &[]).await
    }

    pub(crate) async fn create_project(&self, new: &NewProject) -> Done<Project> {
        self.post("/projects", new).await
    }

    pub(crate) async fn members(&self, project: Uuid) -> Done<Vec<Member>> {
        self.all(&format!("/projects/{project}/members"), &[]).await
    }

    pub(crate) async fn put_member(&self, project: Uuid, new: &NewMember) -> Done<Member> {
        let path = format!("/projects/{project}/members");
        self.send(Call::new(Method::PUT, &path).once().saying(new)?).await
    }

    pub(crate) async fn remove_member(&self, project: Uuid, user: Uuid) -> Done {
        self.delete(&format!("/projects/{project}/members/{user}")).await
    }

    pub(crate) async fn ssh_keys(&self) -> Done<Vec<SshKey>> {
        self.all("/ssh-keys", &[]).await
    }

    pub(crate) async fn add_ssh_key(&self, new: &NewSshKey) -> Done<SshKey> {
        self.post("/ssh-keys", new).await
    }

    pub(crate) async fn remove_ssh_key(&self, id: Uuid) -> Done {
        self.delete(&format!("/ssh-keys/{id}")).await
    }

    pub(crate) async fn tokens(&self) -> Done<Vec<Token>> {
        self.all("/tokens", &[]).await
    }

    pub(crate) async fn create_token(&self, new: &NewToken) -> Done<FreshToken> {
        self.post("/tokens", new).await
    }

    pub(crate) async fn revoke_token(&self, id: Uuid) -> Done {
        self.delete(&format!("/tokens/{id}")).await
    }
}

/// What is on offer, and what one has of it.
impl Client {
    pub(crate) async fn skus(&self) -> Done<Vec<Sku>> {
        self.whole("/skus").await
    }

    pub(crate) async fn availability(&self) -> Done<Vec<Availability>> {
        self.whole("/availability").await
    }

    pub(crate) async fn allocations(&self, query: Query<'_>) -> Done<Vec<Allocation>> {
        self.all("/allocations", query).await
    }

    pub(crate) async fn create_allocation(&self, new: &NewAllocation) -> Done<Allocation> {
        self.post("/allocations", new).await
    }

    pub(crate) async fn allocation(&self, id: Uuid) -> Done<Allocation> {
        self.get(&format!("/allocations/{id}")).await
    }

    pub(crate) async fn restart(&self, id: Uuid) -> Done<Allocation> {
        self.post_nothing(&format!("/allocations/{id}/restart")).await
    }

    pub(crate) async fn release(&self, id: Uuid) -> Done<Allocation> {
        self.post_nothing(&format!("/allocations/{id}/release")).await
    }

    pub(crate) async fn timeline(&self, id: Uuid) -> Done<Timeline> {
        self.get(&format!("/allocations/{id}/timeline")).await
    }

    pub(crate) async fn explain(&self, id: Uuid) -> Done<Explanation> {
        self.get(&format!("/allocations/{id}/explain")).await
    }

    pub(crate) async fn explain_availability(
        &self,
        question: &CapacityQuestion,
    ) -> Done<CapacityExplained> {
        let mut call = Call::new(Method::GET, "/availability/explain")
            .asking("sku", question.sku.clone())
            .asking("region", question.region.clone())
            .asking("gpus", question.gpus.to_string());
        if let Some(image) = &question.image {
            call = call.asking("image", image.clone());
        }
        self.send(call).await
    }

    pub(crate) async fn receipt(&self, id: Uuid) -> Done<SignedReceipt> {
        self.get(&format!("/allocations/{id}/receipt")).await
    }
}

/// What operators do.
impl Client {
    pub(crate) async fn all_allocations(
        &self,
        status: Option<AllocationStatus>,
    ) -> Done<Vec<Allocation>> {
        let query: Vec<_> =
            status.map(|status| ("status", status.to_string())).into_iter().collect();
        self.all("/admin/allocations", &query).await
    }

    pub(crate) async fn force_release(&self, id: Uuid, why: &ForceRelease) -> Done<Allocation> {
        self.post(&format!("/admin/allocations/{id}/force-release"), why).await
    }

    pub(crate) async fn operator_timeline(&self, id: Uuid) -> Done<Timeline> {
        self.get(&format!("/admin/allocations/{id}/timeline")).await
    }

    pub(crate) async fn operator_explain(&self, id: Uuid) -> Done<Explanation> {
        self.get(&format!("/admin/allocations/{id}/explain")).await
    }

    pub(crate) async fn nodes(&self) -> Done<Vec<Node>> {
        self.all("/admin/nodes", &[]).await
    }

    pub(crate) async fn node(&self, id: Uuid) -> Done<Node> {
        self.get(&format!("/admin/nodes/{id}")).await
    }

    pub(crate) async fn create_node(&self, new: &NewNode) -> Done<FreshNode> {
        self.post("/admin/nodes", new).await
    }

    pub(crate) async fn reissue_join_token(&self, id: Uuid) -> Done<FreshNode> {
        self.post_nothing(&format!("/admin/nodes/{id}/join-token")).await
    }

    pub(crate) async fn revoke_node(&self, id: Uuid, why: &Because) -> Done<Node> {
        self.post(&format!("/admin/nodes/{id}/revoke"), why).await
    }

    pub(crate) async fn dead_letters(&self) -> Done<Vec<DeadLetter>> {
        self.all("/admin/dead-letters", &[]).await
    }

    pub(crate) async fn redrive(&self, consumer: &str, event: Uuid) -> Done {
        self.post_nothing(&format!("/admin/dead-letters/{consumer}/{event}/redrive")).await
    }

    pub(crate) async fn invariants(&self) -> Done<Invariants> {
        self.get("/admin/invariants").await
    }
}
