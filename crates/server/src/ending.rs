//! How a server ends: first it says that it will, and still serves whoever comes, so that a balancer has time to notice; then
//! nobody is let in any more, and what is under way is finished.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    draining: CancellationToken,
    closing: CancellationToken,
}

impl From<CancellationToken> for Ending {
    /// Both at once, when it is told to stop.
    fn from(stop: CancellationToken) -> Ending {
        Ending { draining: stop.clone(), closing: stop }
    }
}

impl Ending {
    /// Begins with one, and lets nobody in any more with the other.
    pub fn of(draining: CancellationToken, closing: CancellationToken) -> Ending {
        Ending { draining, closing }
    }

    /// Begins when `stop` says so; nobody is let in any more after `notice`.
    pub async fn follow(&self, stop: &CancellationToken, notice: Duration) {
        stop.cancelled().await;
        self.draining.cancel();
        metrics::gauge!("berth_draining").set(1.0);
        tracing::info!(notice_seconds = notice.as_secs_f64(), "ending: whoever asks is told so");
        let _ = timeout(notice, self.closing.cancelled()).await;
        self.closing.cancel();
    }

    /// Whether it has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Returns when it has begun: long answers are over, and a connection is told to go elsewhere with its next one.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether nobody is let in any more.
    pub fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Returns when nobody is let in any more.
    pub async fn closing(&self) {
        self.closing.cancelled().await;
    }
}
