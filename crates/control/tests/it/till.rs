//! Somebody who takes money, for tests in which HTTP is not the point: it makes one page a session, fails when it is told to, and
//! says what the test wants it to say.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use control::idempotency::{Answer, Key};
use control::payment::provider::{
    About, Checkout, CheckoutFacts, NewCheckout, Provider, ProviderError, RefundFacts, Told,
};
use control::payment::{checkout, view, webhook};
use control::{Ctx, Error};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use testkit::{House, new_id};
use tokio::sync::Semaphore;
use uuid::Uuid;
use wire::http::payments::{NewCheckoutSession, PaymentSession};

/// What comes with everything that it says.
const PROOF: &str = "it is me";
/// How much is paid, where it does not matter.
pub(crate) const AMOUNT: i64 = 2_500;

/// See the module.
pub(crate) struct Till {
    made: Mutex<HashMap<Uuid, Checkout>>,
    asked: AtomicUsize,
    troubles: Mutex<VecDeque<ProviderError>>,
    stands: Mutex<HashMap<String, Result<About, ProviderError>>>,
    /// Who has a permit gets an answer.
    pub(crate) gate: Semaphore,
}

impl Till {
    /// A till in the house.
    pub(crate) fn open(ctx: &Ctx) -> Arc<Till> {
        let till = Arc::new(Till {
            made: Mutex::default(),
            asked: AtomicUsize::new(0),
            troubles: Mutex::default(),
            stands: Mutex::default(),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
        });
        assert!(ctx.payments.take_through(till.clone()), "there was none before");
        till
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn fails(&self, error: ProviderError) {
        self.troubles.lock().expect("nobody panicked").push_back(error);
    }

    /// How a page stands, from now on.
    pub(crate) fn stands(&self, page: &str, how: Result<About, ProviderError>) {
        self.stands.lock().expect("nobody panicked").insert(page.to_owned(), how);
    }
}

impl Provider for Till {
    fn create_session<'a>(
        &'a self,
        new: &'a NewCheckout,
    ) -> BoxFuture<'a, Result<Checkout, ProviderError>> {
        async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let _permit = self.gate.acquire().await;
            let page = Checkout {
                id: page_of(new.session),
                url: format!("https://pay.example.test/{}", new.session),
            };
            self.made.lock().expect("nobody panicked").insert(new.session, page.clone());
            let trouble = self.troubles.lock().expect("nobody panicked").pop_front();
            trouble.map_or(Ok(page), Err)
        }
        .boxed()
    }

    fn retrieve_session<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<About, ProviderError>> {
        let stands = self.stands.lock().expect("nobody panicked").get(id).cloned();
        async move { stands.unwrap_or(Ok(About::Nothing)) }.boxed()
    }

    fn hear(&self, proof: Option<&str>, body: &[u8], _now: Timestamp) -> Result<Told, Error> {
        if proof != Some(PROOF) {
            return Err(Error::Unproven("it is not me"));
        }
        let (id, about): (String, About) = serde_json::from_slice(body).expect("it is ours");
        Ok(Told { id, kind: "of.the.test".to_owned(), about })
    }
}

/// What the till calls the page of a session.
pub(crate) fn page_of(session: Uuid) -> String {
    format!("cs_{}", session.simple())
}

/// What the till calls the payment of a session.
pub(crate) fn payment_of(session: Uuid) -> String {
    format!("pi_{}", session.simple())
}

/// The page of a session, paid as it was asked for.
pub(crate) fn facts(session: Uuid) -> CheckoutFacts {
    CheckoutFacts {
        provider_id: page_of(session),
        session: Some(session),
        amount_minor: Some(AMOUNT),
        currency: Some("USD".to_owned()),
        payment: Some(payment_of(session)),
    }
}

/// So much was given back of a session in all.
pub(crate) fn refund(session: Uuid, total_minor: i64) -> About {
    About::Refunded(RefundFacts {
        payment: Some(payment_of(session)),
        session: Some(session),
        total_minor,
        currency: "USD".to_owned(),
    })
}

/// The tenant's key of that name for a checkout of so much.
pub(crate) fn key(house: &House, name: &str, amount_minor: i64) -> Key {
    let body = format!("{{\"amount_minor\":{amount_minor}}}");
    Key::of(house.tenant.user_id, "create_checkout_session", name, body.as_bytes())
}

/// The tenant asks for a checkout.
pub(crate) async fn ask(
    house: &House,
    name: &str,
    amount_minor: i64,
) -> Result<Answer<PaymentSession>, Error> {
    let asked = NewCheckoutSession { amount_minor };
    checkout::create(&house.ctx, &house.tenant, &asked, &key(house, name, amount_minor)).await
}

/// A checkout with a page.
pub(crate) async fn session(house: &House) -> Uuid {
    ask(house, &new_id().to_string(), AMOUNT).await.expect("a checkout").body.id
}

/// The till says something under that name.
pub(crate) async fn tell(house: &House, id: &str, about: &About) {
    let body = serde_json::to_vec(&(id, about)).expect("JSON");
    webhook::receive(&house.ctx, Some(PROOF), &body).await.expect("it is written down");
}

/// The till says something, whatever it is called.
pub(crate) async fn tell_new(house: &House, about: &About) -> String {
    let id = format!("evt_{}", new_id().simple());
    tell(house, &id, about).await;
    id
}

/// How the tenant sees a session.
pub(crate) async fn show(house: &House, id: Uuid) -> PaymentSession {
    view::show(&house.ctx, &house.tenant, id).await.expect("it is theirs")
}

/// Where a session stands, what was credited of it and what was given back.
pub(crate) async fn stands(house: &House, id: Uuid) -> (String, Option<i64>, i64) {
    let shown = show(house, id).await;
    (shown.status.to_string(), shown.credited_amount_minor, shown.refunded_minor)
}

/// What came of an event; none while it is not settled.
pub(crate) async fn outcome(house: &House, id: &str) -> Option<String> {
    house.database.payment_event(id).await.expect("it was written down").outcome
}

/// Every posting is balanced, every balance is the sum of its entries, and the tenant has so much more than at the beginning.
pub(crate) async fn books_are_right(house: &House, more_minor: i64) {
    let wrong = house.database.ledger_faults().await;
    assert!(wrong.is_empty(), "{wrong:?}");
    let balance = house.database.funds_of(house.tenant.user_id).await;
    assert_eq!(balance - testkit::FUNDS_MINOR, more_minor, "what the tenant has more");
    house.is_sound().await;
}
