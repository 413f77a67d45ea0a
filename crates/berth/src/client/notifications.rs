//! What somebody was told, and their webhooks.

use reqwest::Method;
use uuid::Uuid;
use wire::http::notifications::{HaveRead, Notification, Notifications, ReadAll};
use wire::http::webhooks::{Delivery, FreshWebhook, NewWebhook, Webhook};
use wire::http::{PAGE_MAX, Page};

use super::Client;
use super::call::Call;
use crate::exit::Done;

impl Client {
    /// The newest of what somebody was told, as many as fit on a page.
    pub(crate) async fn notifications(&self, unread: bool) -> Done<Notifications> {
        let call = Call::new(Method::GET, "/notifications");
        let call = call.asking("limit", PAGE_MAX.to_string()).asking("unread", unread.to_string());
        self.send(call).await
    }

    pub(crate) async fn read_notification(&self, id: Uuid) -> Done<Notification> {
        self.post_nothing(&format!("/notifications/{id}/read")).await
    }

    pub(crate) async fn read_all_notifications(&self) -> Done<HaveRead> {
        self.post("/notifications/read-all", &ReadAll::default()).await
    }

    pub(crate) async fn webhooks(&self) -> Done<Vec<Webhook>> {
        self.all("/webhooks", &[]).await
    }

    pub(crate) async fn add_webhook(&self, new: &NewWebhook) -> Done<FreshWebhook> {
        self.post("/webhooks", new).await
    }

    pub(crate) async fn rotate_webhook(&self, id: Uuid) -> Done<FreshWebhook> {
        self.post_nothing(&format!("/webhooks/{id}/rotate")).await
    }

    pub(crate) async fn remove_webhook(&self, id: Uuid) -> Done {
        self.delete(&format!("/webhooks/{id}")).await
    }

    pub(crate) async fn test_webhook(&self, id: Uuid) -> Done<Delivery> {
        self.post_nothing(&format!("/webhooks/{id}/test")).await
    }

    /// The newest deliveries, as many as fit on a page.
    pub(crate) async fn webhook_deliveries(&self, id: Uuid) -> Done<Vec<Delivery>> {
        let call = Call::new(Method::GET, &format!("/webhooks/{id}/deliveries"));
        Ok(self.send::<Page<Delivery>>(call.asking("limit", PAGE_MAX.to_string())).await?.items)
    }

    pub(crate) async fn redeliver(&self, id: Uuid, notification: Uuid) -> Done<Delivery> {
        self.post_nothing(&format!("/webhooks/{id}/deliveries/{notification}/redeliver")).await
    }
}
