//! What the engine says to the gateway: phases as they come, beside the work, and results until they are heard.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use wire::node::{TaskOutcome, TaskResult};

use super::ticket::Ticket;
use super::{Engine, Lives, failure};
use crate::Error;
use crate::backoff::Backoff;
use crate::client::chain;
use crate::clock::{Paused, pause};
use crate::verify::Refusal;

/// Reports that come within this time travel together; work that is shorter says all of it with its result.
const BATCH: Duration = Duration::from_millis(20);

impl Engine {
    /// Waits before another attempt. There is none once the agent ends.
    async fn hold(&self, delay: Duration) {
        if pause(delay, &self.parts.halt).await == Paused::Stopped {
            std::future::pending::<()>().await;
        }
    }

    /// Streams the phases of one task, as long as it is asked to.
    pub(super) async fn report(&self, ticket: &Ticket) -> Infallible {
        let mut backoff = Backoff::new(Arc::clone(&self.parts.dice));
        loop {
            ticket.reports.news().await;
            self.hold(BATCH).await;
            loop {
                let batch = ticket.reports.pending();
                if batch.phases.is_empty() {
                    break;
                }
                let answer = self.parts.gateway.phases(ticket.task, &batch).await;
                ticket.reports.tried(&batch);
                match answer {
                    Ok(_) => {
                        backoff.reset();
                        ticket.reports.arrived(&batch);
                    }
                    Err(error) => {
                        let delay = backoff.after(&error);
                        tracing::debug!(task = %ticket.task, error = chain(&error), ?delay, "phases wait");
                        self.hold(delay).await;
                    }
                }
            }
        }
    }

    /// Says how a task ended until it is heard, by the newest dispatch there is.
    pub(super) async fn deliver(&self, ticket: &Ticket, outcome: TaskOutcome) -> Result<(), Error> {
        let mut backoff = Backoff::new(Arc::clone(&self.parts.dice));
        loop {
            let batch = ticket.reports.pending();
            let outcome = outcome.clone();
            let result = TaskResult { dispatch: batch.dispatch, outcome, phases: batch.phases };
            let answer = self.parts.gateway.result(ticket.task, &result).await;
            let settled = answer.is_ok() && self.board().settle(ticket, result.dispatch);
            match answer {
                Ok(acknowledged) if settled => {
                    let answer = crate::sentence(&acknowledged.answer);
                    tracing::info!(task = %ticket.task, answer, "a result is acknowledged");
                    return self.parts.journal.acknowledge(ticket.task).await;
                }
                Ok(_) => backoff.reset(),
                Err(error) => {
                    let delay = backoff.after(&error);
                    tracing::warn!(task = %ticket.task, error = chain(&error), ?delay, "a result waits");
                    tokio::select! {
                        () = self.hold(delay) => {}
                        () = ticket.reports.news() => {}
                    }
                }
            }
        }
    }

    /// Says that a task was refused. It is not in the journal: if the agent ends first, the task comes again.
    pub(super) fn refuse(
        self: &Arc<Self>,
        (task, dispatch): (Uuid, i64),
        refusal: Refusal,
        lives: &mut Lives,
    ) {
        let engine = Arc::clone(self);
        lives.spawn(async move {
            let Ok(_turn) = engine.refusing.try_acquire() else {
                tracing::error!(%task, "too many refusals wait: this one is not told");
                return Ok(());
            };
            let result = TaskResult { dispatch, outcome: failure(refusal), phases: Vec::new() };
            let mut backoff = Backoff::new(Arc::clone(&engine.parts.dice));
            while let Err(error) = engine.parts.gateway.result(task, &result).await {
                let delay = backoff.after(&error);
                tracing::warn!(%task, error = chain(&error), ?delay, "a refusal waits");
                engine.hold(delay).await;
            }
            Ok(())
        });
    }
}
