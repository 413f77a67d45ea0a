//! Ctrl-C and SIGTERM, which mean the same.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Done;

/// Listens from the moment it is made.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen; from now on neither ends the process by itself.
    pub(crate) fn listen() -> Done<Signals> {
        let heard = |kind| signal(kind).context("signals can't be heard");
        let (interrupt, terminate) =
            (heard(SignalKind::interrupt())?, heard(SignalKind::terminate())?);
        Ok(Signals { interrupt, terminate })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the first one, and passes it on.
    pub(crate) async fn first(mut self, stop: &CancellationToken) {
        self.next().await;
        stop.cancel();
    }
}
