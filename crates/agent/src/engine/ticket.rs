//! What is under way: a ticket for each task from the moment it is taken until the control plane knows how it ended,
//! and the board they hang on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::Coded;
use wire::node::{Phase, PhaseBatch, PhaseReport, PhaseStatus};

use crate::journal::Entry;
use crate::verify::Accepted;

/// One task under way.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) task: Uuid,
    pub(crate) allocation: Uuid,
    pub(crate) fence: i64,
    /// Set when newer work has come.
    pub(crate) cancel: CancellationToken,
    /// Set when nothing of it runs any more.
    pub(crate) stopped: CancellationToken,
    pub(crate) reports: Reports,
}

impl Ticket {
    /// For a task that has not begun.
    pub(crate) fn fresh(accepted: &Accepted) -> Arc<Ticket> {
        Ticket::new(accepted, Vec::new())
    }

    /// For a task that the journal knows.
    pub(crate) fn known(entry: &Entry) -> Arc<Ticket> {
        Ticket::new(&entry.accepted, entry.reports())
    }

    fn new(accepted: &Accepted, reports: Vec<PhaseReport>) -> Arc<Ticket> {
        Arc::new(Ticket {
            task: accepted.task,
            allocation: accepted.allocation,
            fence: accepted.fence,
            cancel: CancellationToken::new(),
            stopped: CancellationToken::new(),
            reports: Reports::new(accepted.dispatch, reports),
        })
    }
}

/// What there is to report of one task, and how much of it the control plane has.
#[derive(Debug)]
pub(crate) struct Reports {
    told: Mutex<Told>,
    news: Notify,
    /// Notified whenever somebody has tried to tell.
    tried: Notify,
}

#[derive(Debug)]
struct Told {
    dispatch: i64,
    reports: Vec<PhaseReport>,
    /// So many of them have arrived.
    arrived: usize,
    /// So many of them were told at least once, heard or not.
    tried: usize,
}

impl Reports {
    fn new(dispatch: i64, reports: Vec<PhaseReport>) -> Reports {
        let told = Mutex::new(Told { dispatch, reports, arrived: 0, tried: 0 });
        Reports { told, news: Notify::new(), tried: Notify::new() }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more report.
    pub(crate) fn push(&self, phase: Phase, status: PhaseStatus, at: Timestamp) {
        {
            let mut told = self.told();
            let seq = i32::try_from(told.reports.len() + 1).unwrap_or(i32::MAX);
            let report = PhaseReport { seq, phase: Coded(phase), status: Coded(status), at };
            told.reports.push(report);
        }
        self.news.notify_one();
    }

    /// Goes on under a new dispatch, which hears everything from the start. Whether that is news.
    pub(crate) fn adopt(&self, dispatch: i64) -> bool {
        {
            let mut told = self.told();
            if dispatch <= told.dispatch {
                return false;
            }
            told.dispatch = dispatch;
            told.arrived = 0;
        }
        self.news.notify_one();
        true
    }

    /// The present dispatch, and what it has not heard yet.
    pub(crate) fn pending(&self) -> PhaseBatch {
        let told = self.told();
        let phases = told.reports[told.arrived..].to_vec();
        PhaseBatch { dispatch: told.dispatch, phases }
    }

    /// A batch has arrived.
    pub(crate) fn arrived(&self, batch: &PhaseBatch) {
        let mut told = self.told();
        let last = batch.phases.last().map_or(0, |report| report.seq);
        if told.dispatch == batch.dispatch {
            told.arrived = told.arrived.max(usize::try_from(last).unwrap_or(0));
        }
    }

    /// Somebody has tried to tell a batch.
    pub(crate) fn tried(&self, batch: &PhaseBatch) {
        {
            let mut told = self.told();
            let last = batch.phases.last().map_or(0, |report| report.seq);
            told.tried = told.tried.max(usize::try_from(last).unwrap_or(0));
        }
        self.tried.notify_waiters();
    }

    /// Returns once an attempt was made to tell everything there is to say now.
    pub(crate) async fn said(&self) {
        let all = self.told().reports.len();
        loop {
            // Listening before looking, so that an attempt in between is not missed.
            let tried = self.tried.notified();
            if self.told().tried >= all {
                return;
            }
            tried.await;
        }
    }

    /// The present dispatch.
    pub(crate) fn dispatch(&self) -> i64 {
        self.told().dispatch
    }

    /// Returns when there is something new to say, or somebody new to say it to.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }
}

/// Everything under way.
#[derive(Debug, Default)]
pub(crate) struct Board {
    tickets: HashMap<Uuid, Arc<Ticket>>,
    /// The newest work of each allocation, while it runs or waits to.
    lanes: HashMap<Uuid, Arc<Ticket>>,
}

impl Board {
    /// The ticket of a task.
    pub(crate) fn find(&self, task: Uuid) -> Option<&Arc<Ticket>> {
        self.tickets.get(&task)
    }

    /// The newest work of an allocation that has not stopped.
    pub(crate) fn newest(&self, allocation: Uuid) -> Option<&Arc<Ticket>> {
        self.lanes.get(&allocation)
    }

    /// Hangs up the ticket of a task that only has something left to say.
    pub(crate) fn hang(&mut self, ticket: &Arc<Ticket>) {
        self.tickets.insert(ticket.task, Arc::clone(ticket));
    }

    /// Puts a ticket at the head of its allocation's lane; gives the one that was there.
    pub(crate) fn enter(&mut self, ticket: &Arc<Ticket>) -> Option<Arc<Ticket>> {
        self.hang(ticket);
        self.lanes.insert(ticket.allocation, Arc::clone(ticket))
    }

    /// The ticket's work has stopped.
    pub(crate) fn leave(&mut self, ticket: &Ticket) {
        if self.lanes.get(&ticket.allocation).is_some_and(|newest| newest.task == ticket.task) {
            self.lanes.remove(&ticket.allocation);
        }
    }

    /// Takes the ticket down, unless a dispatch has come that has not been told: then it stays.
    pub(crate) fn settle(&mut self, ticket: &Ticket, told: i64) -> bool {
        if ticket.reports.dispatch() != told {
            return false;
        }
        self.tickets.remove(&ticket.task);
        true
    }

    /// The tasks that run or wait to.
    pub(crate) fn running(&self) -> Vec<Uuid> {
        let running = self.tickets.values().filter(|ticket| !ticket.stopped.is_cancelled());
        let mut running: Vec<Uuid> = running.map(|ticket| ticket.task).collect();
        running.sort_unstable();
        running
    }
}
