//! Paying in, and what operators do when it does not add up.

use reqwest::Method;
use uuid::Uuid;
use wire::http::payments::{
    NewCheckoutSession, PaymentCase, PaymentCases, PaymentEvent, PaymentSession, ResolvePayment,
};

use super::Client;
use super::call::Call;
use crate::exit::Done;

impl Client {
    pub(crate) async fn checkout(&self, new: &NewCheckoutSession) -> Done<PaymentSession> {
        self.post("/payments/checkout-session", new).await
    }

    pub(crate) async fn payment_sessions(&self) -> Done<Vec<PaymentSession>> {
        self.all("/payments/sessions", &[]).await
    }

    pub(crate) async fn payment_session(&self, id: Uuid) -> Done<PaymentSession> {
        self.get(&format!("/payments/sessions/{id}")).await
    }

    /// The newest of everybody's, or those that somebody should look at.
    pub(crate) async fn payment_cases(&self, stuck: bool) -> Done<PaymentCases> {
        let call =
            Call::new(Method::GET, "/admin/payments/sessions").asking("limit", "200".to_owned());
        self.send(call.asking("stuck", stuck.to_string())).await
    }

    pub(crate) async fn payment_events(&self, unmatched: bool) -> Done<Vec<PaymentEvent>> {
        self.all("/admin/payments/events", &[("unmatched", unmatched.to_string())]).await
    }

    pub(crate) async fn resolve_payment(
        &self,
        id: Uuid,
        how: &ResolvePayment,
    ) -> Done<PaymentCase> {
        self.post(&format!("/admin/payments/sessions/{id}/resolve"), how).await
    }
}
