//! The conversation with the gateway: signs of life, the long poll for tasks, and a new certificate in time.
//! Each is a loop of its own around one step; a gateway that is away, or refuses the node, ends none of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use wire::node::{Guest, Heartbeat, PROTOCOL, Renewal, SignedTask};

use crate::Error;
use crate::backoff::Backoff;
use crate::client::{Gateway, GatewayError, chain};
use crate::clock::{Clock, Dice, Paused, pause};
use crate::drivers::Driver;
use crate::engine::Engine;
use crate::identity::{Identity, Request};
use crate::leases::Reconciler;
use crate::verify::Verifier;

/// A clock that is set anew is noticed after this long at the latest.
const RENEWAL_LOOK: Duration = Duration::from_secs(600);

/// One agent's conversation.
pub(crate) struct Session {
    pub(crate) directory: PathBuf,
    pub(crate) identity: Mutex<Identity>,
    pub(crate) gateway: Arc<dyn Gateway>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) reconciler: Reconciler,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) clock: Clock,
    pub(crate) dice: Arc<Dice>,
    /// How long between two heartbeats until the gateway has said it.
    pub(crate) heartbeat: Duration,
    pub(crate) halt: CancellationToken,
    /// Set when the gateway wants a new certificate.
    pub(crate) renew: Notify,
    /// Whether the gateway refused the node when it was last heard.
    pub(crate) revoked: AtomicBool,
}

impl Session {
    /// Sends signs of life until the agent ends, the first at once.
    pub(crate) async fn run_heartbeats(self: Arc<Self>) -> Result<(), Error> {
        let mut backoff = self.backoff();
        let mut interval = self.heartbeat;
        loop {
            let delay = match self.step_heartbeat().await? {
                Ok(answered) => {
                    backoff.reset();
                    interval = answered;
                    interval.mul_f64(0.9 + 0.2 * self.dice.roll())
                }
                // A sign of life is not sent more often for having been lost.
                Err(error) => self.setback(&mut backoff, &error, "a heartbeat").max(interval / 2),
            };
            if pause(delay, &self.halt).await == Paused::Stopped {
                return Ok(());
            }
        }
    }

    async fn step_heartbeat(&self) -> Result<Result<Duration, GatewayError>, Error> {
        let machine = self.driver.machine();
        let leases = self.reconciler.leases();
        let guests = self.driver.guests().unwrap_or_else(|failure| {
            tracing::error!(?failure, "the machine does not say what runs on it");
            // Whatever has a lease may be there: saying that nothing is would be taken for a proof.
            leases.iter().map(Guest::from).collect()
        });
        let heartbeat = Heartbeat {
            protocol: PROTOCOL,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: machine.boot_id,
            gpus: machine.gpus,
            images: machine.images,
            guests,
            leases,
            running: self.engine.running(),
            refused: self.engine.refused(),
        };
        let answer = match self.gateway.heartbeat(&heartbeat).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        self.accepted();
        self.reconciler.settle(&answer.over).await?;
        if answer.renew {
            self.renew.notify_one();
        }
        Ok(Ok(Duration::from_secs(answer.next_seconds.max(1).into())))
    }

    /// Waits for tasks until the agent ends; one poll is open at any time.
    pub(crate) async fn run_waits(
        self: Arc<Self>,
        inbox: mpsc::Sender<SignedTask>,
    ) -> Result<(), Error> {
        let mut backoff = self.backoff();
        loop {
            let waited = tokio::select! {
                biased;
                () = self.halt.cancelled() => return Ok(()),
                waited = self.gateway.wait() => waited,
            };
            match waited {
                Ok(tasks) => {
                    backoff.reset();
                    self.accepted();
                    for task in tasks {
                        if inbox.send(task).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                Err(error) => {
                    let delay = self.setback(&mut backoff, &error, "waiting for tasks");
                    if pause(delay, &self.halt).await == Paused::Stopped {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Renews the certificate before half of its life is over, or when the gateway asks for it, until the agent ends.
    pub(crate) async fn run_renewals(self: Arc<Self>) -> Result<(), Error> {
        let mut backoff = self.backoff();
        loop {
            let asked = self.renewal_is_due().await;
            if self.halt.is_cancelled() {
                return Ok(());
            }
            if !asked {
                continue;
            }
            match self.step_renewal().await? {
                Ok(()) => {
                    backoff.reset();
                    // What was asked for meanwhile is what has just been done.
                    let _ = self.renew.notified().now_or_never();
                }
                Err(error) => {
                    let delay = self.setback(&mut backoff, &error, "renewing the certificate");
                    self.renew.notify_one();
                    pause(delay, &self.halt).await;
                }
            }
        }
    }

    /// Waits a while; says whether the certificate is to be renewed now.
    async fn renewal_is_due(&self) -> bool {
        let due = self.identity().renewal_due();
        let left = due.duration_since(self.clock.now());
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        if left.is_zero() {
            return true;
        }
        tokio::select! {
            biased;
            () = self.renew.notified() => true,
            _ = pause(left.min(RENEWAL_LOOK), &self.halt) => false,
        }
    }

    async fn step_renewal(&self) -> Result<Result<(), GatewayError>, Error> {
        let request = Request::make()?;
        let certificate = match self.gateway.renew(&Renewal { csr: request.csr }).await {
            Ok(certificate) => certificate,
            Err(error) => return Ok(Err(error)),
        };
        let renewed = self.identity().renewed(request.key, certificate, self.clock.now());
        let keys = renewed.verifying_keys()?;
        // On disk first: the old certificate may be refused as soon as the new one is out.
        renewed.keep(&self.directory)?;
        self.gateway.install(&renewed)?;
        self.verifier.pin(keys);
        tracing::info!(until = %renewed.not_after, "the certificate is renewed");
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
        self.accepted();
        Ok(Ok(()))
    }

    fn identity(&self) -> Identity {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Arc::clone(&self.dice))
    }

    /// The gateway takes this node for what it says it is.
    fn accepted(&self) {
        if self.revoked.swap(false, Ordering::Relaxed) {
            tracing::info!("the gateway accepts this node again");
        }
    }

    /// Logs a failure and says how long to wait.
    fn setback(&self, backoff: &mut Backoff, error: &GatewayError, what: &str) -> Duration {
        let delay = backoff.after(error);
        match error {
            GatewayError::Revoked { .. } => {
                if !self.revoked.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        error = chain(error),
                        "the gateway refuses this node: it gets no work until an operator enrols it \
                         again; what runs on it is left alone"
                    );
                }
            }
            GatewayError::Unreachable(_)
            | GatewayError::Refused { .. }
            | GatewayError::Unreadable(_) => {
                tracing::warn!(error = chain(error), ?delay, "{what} failed");
            }
        }
        delay
    }
}
