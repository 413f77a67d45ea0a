//! The API with a sandbox beside it, reached through the client that reaches Stripe.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use sandbox::Sandbox;
use serde_json::{Value, json};
use server::outside::stripe::{Options, Secret, Stripe};
use testkit::new_id;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{Api, Told, told};

pub(crate) const KEY: &str = "sk_test_of_the_shop";
pub(crate) const SECRET: &str = "whsec_of_the_shop";
/// A secret that is known as well, as while they are changed.
pub(crate) const OLD_SECRET: &str = "whsec_that_was";
pub(crate) const CHECKOUT: &str = "/api/v1/payments/checkout-session";
pub(crate) const WEBHOOK: &str = "/api/v1/payments/stripe/webhook";

/// See the module.
pub(crate) struct Shop {
    pub(crate) api: Api,
    pub(crate) sandbox: Sandbox,
    stop: CancellationToken,
    running: JoinSet<std::io::Result<()>>,
}

impl Shop {
    pub(crate) async fn open() -> Shop {
        Shop::patient(Duration::from_secs(10)).await
    }

    /// The same, whose client has that much patience with the provider.
    pub(crate) async fn patient(patience: Duration) -> Shop {
        let api = Api::open().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it has one");
        let clock = api.house.ctx.clock.clone();
        let options = sandbox::Options {
            key: KEY.to_owned(),
            webhook_secrets: vec![SECRET.to_owned()],
            webhook_url: format!("http://{}{WEBHOOK}", api.address),
            clock: Arc::new(move || clock.now().as_second()),
        };
        let sandbox = Sandbox::new(address, options).expect("a sandbox");
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        running.spawn(sandbox.clone().run(listener, stop.clone()));
        let secrets = [OLD_SECRET, SECRET].map(Secret::new).to_vec();
        let back = "https://berth.example.test/billing";
        let options = Options::new(sandbox.url(), Secret::new(KEY), secrets, back);
        let stripe = Stripe::new(Options { patience, ..options }).expect("a client");
        assert!(api.house.ctx.payments.take_through(Arc::new(stripe)), "there was none before");
        Shop { api, sandbox, stop, running }
    }

    /// The tenant asks for a checkout by that key.
    pub(crate) async fn ask(&self, key: &str, amount_minor: i64) -> Told {
        let request = self.api.request("POST", CHECKOUT, Some(&self.api.tenant));
        let request = request.json(&json!({ "amount_minor": amount_minor }));
        told(request.header("idempotency-key", key)).await
    }

    /// A checkout: what we call it, and what the sandbox calls it.
    pub(crate) async fn checkout(&self, amount_minor: i64) -> (String, String) {
        let made = self.ask(&new_id().to_string(), amount_minor).await;
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.json()["id"].as_str().expect("an id").to_owned();
        (id, self.sandbox.sessions().pop().expect("a session"))
    }

    /// How the tenant sees a session.
    pub(crate) async fn show(&self, id: &str) -> Value {
        self.api.get(&format!("/api/v1/payments/sessions/{id}"), &self.api.tenant).await.json()
    }

    pub(crate) async fn status(&self, id: &str) -> String {
        self.show(id).await["status"].as_str().expect("a status").to_owned()
    }

    /// The books are right, and the tenant has so much more than at the beginning.
    pub(crate) async fn has_more(&self, more_minor: i64) {
        let house = &self.api.house;
        let faults = house.database.ledger_faults().await;
        assert!(faults.is_empty(), "{faults:?}");
        let funds = house.database.funds_of(house.tenant.user_id).await;
        assert_eq!(funds - testkit::FUNDS_MINOR, more_minor, "what the tenant has more");
    }

    /// Somebody at a browser.
    pub(crate) fn browser() -> Client {
        let browser = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        browser.build().expect("a client")
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended.expect("nothing panicked").expect("it ended well");
        }
        self.api.close().await;
    }
}
