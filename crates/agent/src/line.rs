//! The line to the gateway, which the simulated world can cut: every call fails while it is, those under way too.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Notify;
use uuid::Uuid;
use wire::node::{
    Acknowledged, Certificate, Heartbeat, HeartbeatAnswer, PhaseBatch, Renewal, SignedTask,
    TaskResult,
};

use crate::Error;
use crate::client::{Answer, Gateway, GatewayError};
use crate::clock::Clock;
use crate::identity::Identity;

/// Whether the line is cut, and until when.
#[derive(Debug)]
pub(crate) struct Line {
    clock: Clock,
    cut_until: Mutex<Option<Timestamp>>,
    cut: Notify,
}

impl Line {
    /// A line that holds.
    pub(crate) fn new(clock: Clock) -> Line {
        Line { clock, cut_until: Mutex::new(None), cut: Notify::new() }
    }

    /// Cuts it for `duration`.
    pub(crate) fn cut(&self, duration: Duration) {
        let until = self.clock.now().saturating_add(duration).unwrap_or(Timestamp::MAX);
        *self.cut_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        self.cut.notify_waiters();
    }

    fn is_cut(&self) -> bool {
        let until = *self.cut_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| self.clock.now() < until)
    }

    async fn carry<T>(&self, call: Answer<'_, T>) -> Result<T, GatewayError> {
        let lost = || GatewayError::Unreachable("the network is lost".into());
        // Listening before looking, so that a cut in between is not missed.
        let cut = self.cut.notified();
        if self.is_cut() {
            return Err(lost());
        }
        tokio::select! {
            biased;
            () = cut => Err(lost()),
            answer = call => answer,
        }
    }
}

/// A gateway at the other end of a [`Line`].
pub(crate) struct Distant {
    /// What is there.
    pub(crate) gateway: Arc<dyn Gateway>,
    /// The line.
    pub(crate) line: Arc<Line>,
}

impl Gateway for Distant {
    fn heartbeat<'a>(&'a self, heartbeat: &'a Heartbeat) -> Answer<'a, HeartbeatAnswer> {
        Box::pin(self.line.carry(self.gateway.heartbeat(heartbeat)))
    }

    fn wait(&self) -> Answer<'_, Option<SignedTask>> {
        Box::pin(self.line.carry(self.gateway.wait()))
    }

    fn phases<'a>(&'a self, task: Uuid, batch: &'a PhaseBatch) -> Answer<'a, Acknowledged> {
        Box::pin(self.line.carry(self.gateway.phases(task, batch)))
    }

    fn result<'a>(&'a self, task: Uuid, result: &'a TaskResult) -> Answer<'a, Acknowledged> {
        Box::pin(self.line.carry(self.gateway.result(task, result)))
    }

    fn renew<'a>(&'a self, renewal: &'a Renewal) -> Answer<'a, Certificate> {
        Box::pin(self.line.carry(self.gateway.renew(renewal)))
    }

    fn install(&self, identity: &Identity) -> Result<(), Error> {
        self.gateway.install(identity)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Line;
    use crate::client::GatewayError;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_cut_ends_the_call_that_is_under_way() {
        let line = Line::new(Clock::system());
        let call = line.carry::<()>(Box::pin(std::future::pending()));
        let cut = async { line.cut(Duration::from_secs(30)) };
        let (answer, ()) = tokio::join!(call, cut);
        assert!(matches!(answer, Err(GatewayError::Unreachable(_))));
        let next = line.carry::<()>(Box::pin(async { Ok(()) })).await;
        assert!(next.is_err());
    }
}
