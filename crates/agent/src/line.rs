//! The line to the gateway, which the simulated world can cut, whole or in one direction: then calls fail, those under
//! way too.

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
use crate::faults::Direction;
use crate::identity::Identity;

/// Whether the line is cut, and until when.
#[derive(Debug)]
pub(crate) struct Line {
    clock: Clock,
    cut: Mutex<Option<Cut>>,
    news: Notify,
}

/// A line that is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    until: Timestamp,
    /// Both, when it is not said.
    direction: Option<Direction>,
}

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// The agent says something.
    Say,
    /// The agent waits to be told something.
    Hear,
}

impl Line {
    /// A line that holds.
    pub(crate) fn new(clock: Clock) -> Line {
        Line { clock, cut: Mutex::new(None), news: Notify::new() }
    }

    /// Cuts it for `duration`, in one direction or in both.
    pub(crate) fn cut(&self, duration: Duration, direction: Option<Direction>) {
        let until = self.clock.now().saturating_add(duration).unwrap_or(Timestamp::MAX);
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(Cut { until, direction });
        self.news.notify_waiters();
    }

    /// The cut that holds now.
    fn present(&self) -> Option<Cut> {
        let cut = *self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        cut.filter(|cut| self.clock.now() < cut.until)
    }

    /// Returns once both directions are cut.
    async fn severed(&self) {
        loop {
            // Listening before looking, so that a cut in between is not missed.
            let news = self.news.notified();
            if self.present().is_some_and(|cut| cut.direction.is_none()) {
                return;
            }
            news.await;
        }
    }

    async fn carry<T>(&self, sort: Sort, call: Answer<'_, T>) -> Result<T, GatewayError> {
        let lost = || GatewayError::Unreachable("the network is lost".into());
        let out = |cut: Cut| cut.direction == Some(Direction::Out);
        if sort == Sort::Say && self.present().is_some_and(out) {
            return Err(lost());
        }
        let answer = tokio::select! {
            biased;
            () = self.severed() => return Err(lost()),
            answer = call => answer,
        };
        // It was heard, but nobody here knows.
        match self.present() {
            Some(Cut { direction: Some(Direction::In), .. }) => Err(lost()),
            Some(_) | None => answer,
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
        Box::pin(self.line.carry(Sort::Say, self.gateway.heartbeat(heartbeat)))
    }

    fn wait(&self) -> Answer<'_, Vec<SignedTask>> {
        Box::pin(self.line.carry(Sort::Hear, self.gateway.wait()))
    }

    fn phases<'a>(&'a self, task: Uuid, batch: &'a PhaseBatch) -> Answer<'a, Acknowledged> {
        Box::pin(self.line.carry(Sort::Say, self.gateway.phases(task, batch)))
    }

    fn result<'a>(&'a self, task: Uuid, result: &'a TaskResult) -> Answer<'a, Acknowledged> {
        Box::pin(self.line.carry(Sort::Say, self.gateway.result(task, result)))
    }

    fn renew<'a>(&'a self, renewal: &'a Renewal) -> Answer<'a, Certificate> {
        Box::pin(self.line.carry(Sort::Say, self.gateway.renew(renewal)))
    }

    fn install(&self, identity: &Identity) -> Result<(), Error> {
        self.gateway.install(identity)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Line, Sort};
    use crate::client::GatewayError;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_cut_ends_the_call_that_is_under_way() {
        let line = Line::new(Clock::system());
        let call = line.carry::<()>(Sort::Hear, Box::pin(std::future::pending()));
        let cut = async { line.cut(Duration::from_secs(30), None) };
        let (answer, ()) = tokio::join!(call, cut);
        assert!(matches!(answer, Err(GatewayError::Unreachable(_))));
        let next = line.carry::<()>(Sort::Say, Box::pin(async { Ok(()) })).await;
        assert!(next.is_err());
    }
}
