//! Webhooks: signed, told to one address, and told again, with pauses that grow, until somebody says that they heard. Each event
//! waits for itself alone, so that one nobody wants to hear holds up no other.

use std::fmt::Write as _;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use reqwest::header::CONTENT_TYPE;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Sandbox;
use crate::book::Event;

/// How long whoever is told may take to say that they heard.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often it is looked whether somebody's time to pay is up.
const SWEEP: Duration = Duration::from_secs(5);

/// Tells everything there is to tell, for as long as it is let.
pub(crate) async fn run(sandbox: &Sandbox) {
    let mut telling = JoinSet::new();
    loop {
        while telling.try_join_next().is_some() {}
        let next = {
            let mut book = sandbox.book();
            let next = book.queue.pop_front();
            book.underway += usize::from(next.is_some());
            next
        };
        match next {
            Some(event) => {
                telling.spawn(until_heard(sandbox.clone(), event));
            }
            None => {
                if timeout(SWEEP, sandbox.0.told.notified()).await.is_err() {
                    sandbox.sweep();
                }
            }
        }
    }
}

async fn until_heard(sandbox: Sandbox, event: Event) {
    let mut pause = FIRST_PAUSE;
    loop {
        match tell(&sandbox, &event, sandbox.now()).await {
            Ok(200..=299) => break,
            Ok(status) => tracing::debug!(event = event.id, status, "a webhook was not taken"),
            Err(_) => tracing::debug!(event = event.id, "nobody takes webhooks"),
        }
        // A wait that nothing ends sooner.
        let _ = timeout(pause, std::future::pending::<()>()).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    sandbox.book().underway -= 1;
    sandbox.0.heard.notify_waiters();
}

/// Tells an event once, signed at that time; the status of the answer.
pub(crate) async fn tell(sandbox: &Sandbox, event: &Event, at: i64) -> Result<u16, reqwest::Error> {
    let inside = &sandbox.0;
    let signature = signature(&inside.options.webhook_secrets, at, &event.body);
    let request = inside.http.post(&inside.options.webhook_url);
    let request = request.header("stripe-signature", signature);
    let request = request.header(CONTENT_TYPE, "application/json; charset=utf-8");
    Ok(request.body(event.body.clone()).send().await?.status().as_u16())
}

fn signature(secrets: &[String], at: i64, body: &str) -> String {
    let mut header = format!("t={at}");
    for secret in secrets {
        let key = hmac::Key::new(HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, format!("{at}.{body}").as_bytes());
        header.push_str(",v1=");
        for byte in tag.as_ref() {
            // Writing to a text does not fail.
            let _ = write!(header, "{byte:02x}");
        }
    }
    header
}
