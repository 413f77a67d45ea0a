//! The payment sandbox beside the API: people pay there with nothing, and everything else is as with Stripe. Its key and its
//! secret are made up at every start, and it forgets everything when it ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use sandbox::Sandbox;
use server::outside::stripe::{Options, Secret, Stripe};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::install::password;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;

/// Where webhooks go, behind the address of the API.
const WEBHOOK: &str = "/api/v1/payments/stripe/webhook";

/// A sandbox that listens and does not serve yet.
pub(super) struct Till {
    sandbox: Sandbox,
    listener: TcpListener,
    key: String,
    secret: String,
}

impl Till {
    /// Opens a sandbox at that address, or at another port when somebody has it, for the API at `api`.
    pub(super) async fn open(address: SocketAddr, api: &str) -> Done<Till> {
        if !address.ip().is_loopback() {
            let sentence = "whoever reaches the payment sandbox pays with nothing: it is for this machine alone";
            return Err(Failure::new(Exit::Usage, sentence)
                .with("advice", "give --sandbox an address like 127.0.0.1:7719"));
        }
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await,
        };
        let listener = listener.context("nobody can listen for payments")?;
        let address = listener.local_addr().context("nobody can listen for payments")?;
        let (key, secret) = (password()?, password()?);
        let options = sandbox::Options {
            key: key.clone(),
            webhook_secrets: vec![secret.clone()],
            webhook_url: format!("{api}{WEBHOOK}"),
            clock: Arc::new(|| now().as_second()),
        };
        let sandbox = Sandbox::new(address, options).context("the payment sandbox")?;
        Ok(Till { sandbox, listener, key, secret })
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        self.sandbox.url().to_owned()
    }

    /// What is said of it.
    pub(super) fn said(&self) -> String {
        format!("sandbox at {}: nothing is charged there", self.sandbox.url())
    }

    /// What proves to it who asks, and to the API who tells.
    pub(super) fn secrets(&self) -> (&str, &str) {
        (&self.key, &self.secret)
    }

    /// The very client that reaches Stripe, to reach it with.
    pub(super) fn client(&self) -> Done<Stripe> {
        let (key, secret) = (Secret::new(&self.key), Secret::new(&self.secret));
        let options = Options::new(&self.url(), key, vec![secret], &self.back());
        Ok(Stripe::new(options).context("the payment sandbox can't be used")?)
    }

    /// Where payers go when they are done.
    pub(super) fn back(&self) -> String {
        format!("{}/done", self.sandbox.url())
    }

    /// Serves until stopped.
    pub(super) async fn run(self, stop: CancellationToken) -> Done {
        Ok(self.sandbox.run(self.listener, stop).await.context("the payment sandbox")?)
    }
}
