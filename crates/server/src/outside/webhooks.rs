//! Carries deliveries to webhooks. What a receiver says is read to a bounded length and thrown away: only its status counts, so
//! that nothing behind our own walls can be read through us.

use std::sync::Arc;
use std::time::Duration;

use control::webhook::courier::{Courier, Letter, Outcome};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response, redirect};
use wire::http::webhooks::DeliveryFault;

use super::destination::{Guard, NOT_PUBLIC, Names, Refused};
use crate::Error;

const CONNECT: Duration = Duration::from_secs(5);
const WHOLE: Duration = Duration::from_secs(10);
/// How much of an answer is read, so that who writes it can end.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
const AGENT: &str = "berth-webhooks/1";

/// See the module.
pub struct Webhooks {
    client: Client,
    guard: Guard,
}

impl Webhooks {
    /// A courier who looks names up in `names`. See [`Guard::new`] for what `allow_private` allows.
    ///
    /// # Errors
    /// [`Error::Outside`] when this machine can't speak TLS.
    pub fn new(names: Arc<dyn Names>, allow_private: bool) -> Result<Webhooks, Error> {
        let guard = Guard::new(names, allow_private);
        let client = Client::builder()
            .dns_resolver(Arc::new(guard.clone()))
            // Whatever the environment says: a proxy would look names up itself, and reach what we do not.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .https_only(!allow_private)
            .connect_timeout(CONNECT)
            .timeout(WHOLE)
            // Every delivery is judged anew, and so needs a connection of its own.
            .pool_max_idle_per_host(0)
            .retry(reqwest::retry::never())
            .referer(false)
            .user_agent(AGENT)
            .build()
            .map_err(Error::Outside)?;
        Ok(Webhooks { client, guard })
    }

    async fn send(&self, letter: Letter) -> Outcome {
        let failed = |fault| Outcome { http_status: None, fault: Some(fault) };
        let url = match self.guard.form(&letter.url) {
            Ok(url) => url,
            Err(NOT_PUBLIC) => return failed(DeliveryFault::AddressRefused),
            Err(_) => return failed(DeliveryFault::UrlRefused),
        };
        let mut request = self.client.post(url).header(CONTENT_TYPE, "application/json");
        for (name, value) in letter.headers {
            request = request.header(name, value);
        }
        match request.body(letter.body).send().await {
            Ok(answer) => {
                let status = answer.status();
                drain(answer).await;
                let fault = match status {
                    taken if taken.is_success() => None,
                    elsewhere if elsewhere.is_redirection() => Some(DeliveryFault::Redirected),
                    _ => Some(DeliveryFault::NotTaken),
                };
                Outcome { http_status: Some(status.as_u16()), fault }
            }
            Err(error) if was_refused(&error) => failed(DeliveryFault::AddressRefused),
            Err(error) if error.is_timeout() => failed(DeliveryFault::TimedOut),
            Err(_) => failed(DeliveryFault::NoConnection),
        }
    }
}

impl Courier for Webhooks {
    fn judge<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, String>> {
        async move {
            let judged = self.guard.judge(url).await;
            judged.map(String::from).map_err(|refused| refused.to_string())
        }
        .boxed()
    }

    fn carry(&self, letter: Letter) -> BoxFuture<'_, Outcome> {
        self.send(letter).boxed()
    }
}

/// Reads what is said, up to a bound. It was taken or not by its status, whatever becomes of the rest.
async fn drain(mut answer: Response) {
    let mut read = 0;
    while let Ok(Some(piece)) = answer.chunk().await {
        read += piece.len();
        if read >= ANSWER_BYTES_MAX {
            return;
        }
    }
}

/// Whether it was our own judgement that nothing was sent.
fn was_refused(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<Refused>() {
            return true;
        }
        cause = error.source();
    }
    false
}
