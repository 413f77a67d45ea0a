//! A local server that speaks the part of Stripe that the product needs: Checkout sessions, the page where people pay, refunds,
//! and signed webhooks that are told again until they are heard. The product reaches it through the very client that it reaches
//! Stripe with. It takes no money, and keeps everything in memory: what a former run has sold is gone.

mod api;
mod book;
mod delivery;
mod form;
mod page;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::rand;
use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use book::Book;
pub use book::Event;

/// What goes wrong with the next request for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing is made, and the answer is a 500.
    FailBefore,
    /// The session is made, and the answer is a 500 all the same.
    FailAfter,
    /// The session is made, and there is never an answer.
    Hang,
}

/// What time it is, in seconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Who may ask, and who is told.
#[derive(Clone)]
pub struct Options {
    /// The key that a client must show.
    pub key: String,
    /// What webhooks are signed with: each of them signs.
    pub webhook_secrets: Vec<String>,
    /// Where webhooks go.
    pub webhook_url: String,
    /// What time it is.
    pub clock: Clock,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("webhook_url", &self.webhook_url).finish_non_exhaustive()
    }
}

/// See the module. Clones share it.
#[derive(Clone)]
pub struct Sandbox(Arc<Inside>);

struct Inside {
    options: Options,
    /// Where it is reached.
    url: String,
    http: reqwest::Client,
    book: Mutex<Book>,
    /// Somebody should look whether there is something to tell.
    told: Notify,
    /// Something was heard.
    heard: Notify,
}

impl Sandbox {
    /// A sandbox that will be reached at `address`.
    ///
    /// # Errors
    /// When HTTP can't be spoken here.
    pub fn new(address: SocketAddr, options: Options) -> std::io::Result<Sandbox> {
        let http = reqwest::Client::builder().no_proxy().timeout(delivery::PATIENCE).build();
        let http = http.map_err(std::io::Error::other)?;
        let (book, told, heard) = (Mutex::default(), Notify::new(), Notify::new());
        let url = format!("http://{address}");
        Ok(Sandbox(Arc::new(Inside { options, url, http, book, told, heard })))
    }

    /// Where it is reached.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Serves, tells and expires until stopped. Whoever still waits for an answer then gets none.
    ///
    /// # Errors
    /// When nobody can be let in.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let router = Router::new()
            .route("/", get(page::front))
            .route("/done", get(page::done))
            .route("/v1/checkout/sessions", post(api::create_session))
            .route("/v1/checkout/sessions/{id}", get(api::show_session))
            .route("/v1/checkout/sessions/{id}/expire", post(api::expire_session))
            .route("/v1/refunds", post(api::create_refund))
            .route("/pay/{id}", get(page::show).post(page::decide))
            .with_state(self.clone());
        tokio::select! {
            served = axum::serve(listener, router) => served,
            () = delivery::run(&self) => Ok(()),
            () = stop.cancelled() => Ok(()),
        }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        // What is behind it is whole after every statement.
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        (self.0.options.clock)()
    }

    /// A name that nobody has, and nobody guesses.
    fn name(&self, prefix: &str) -> String {
        let mut bytes = [0; 16];
        // A machine without randomness still counts.
        if rand::fill(&mut bytes).is_err() {
            let number = self.book().count();
            bytes[..8].copy_from_slice(&number.to_be_bytes());
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{prefix}_{hex}")
    }
}

/// What tests do with it.
impl Sandbox {
    /// These go wrong with the next requests for a session, one by one.
    pub fn will(&self, troubles: &[Trouble]) {
        self.book().troubles.extend(troubles);
    }

    /// Nothing is told by itself from now on; see [`Sandbox::events`] and [`Sandbox::deliver`].
    pub fn hold(&self) {
        self.book().held = true;
    }

    /// Everything that there is, or was, to tell, in the order in which it happened.
    pub fn events(&self) -> Vec<Event> {
        self.book().events.clone()
    }

    /// Tells one event now, once; the status that it was answered with.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn deliver(&self, event: &Event) -> Result<u16, reqwest::Error> {
        delivery::tell(self, event, self.now()).await
    }

    /// Waits until everything that happened so far was heard.
    pub async fn settled(&self) {
        loop {
            let heard = self.0.heard.notified();
            if self.book().unheard() == 0 {
                return;
            }
            heard.await;
        }
    }

    /// The sessions that were made, in order.
    pub fn sessions(&self) -> Vec<String> {
        self.book().order.clone()
    }

    /// How often a session was asked for, whatever was answered.
    pub fn asked(&self) -> usize {
        self.book().asked
    }

    /// Somebody pays another amount, in another currency, than was asked for: what no page lets them do.
    pub fn tamper(&self, id: &str, amount: i64, currency: &str) {
        if let Some(session) = self.book().sessions.get_mut(id) {
            (session.amount, session.currency) = (amount, currency.to_owned());
        }
    }

    /// Somebody pays.
    pub fn pay(&self, id: &str) {
        self.complete(id, true);
    }

    /// Somebody pays in a way that takes days.
    pub fn pay_later(&self, id: &str) {
        self.complete(id, false);
    }
}
