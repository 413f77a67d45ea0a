//! A gateway in memory: it hands out what it is given, and remembers what it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::{Answer, Clock, Error, Gateway, GatewayError, Identity};
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use uuid::Uuid;
use wire::node::{
    Acknowledged, Certificate, Heartbeat, HeartbeatAnswer, Phase, PhaseBatch, PhaseReport,
    PhaseStatus, Renewal, SignedTask, TaskOutcome, TaskResult,
};

/// How the gateway behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    /// It answers.
    #[default]
    Well,
    /// It hears results and phases, but its answers are lost.
    Deaf,
    /// It refuses the node.
    Revoking,
    /// It hears results, and answers them when [`FakeGateway::let_go`] says so.
    Holding,
    /// It is not there, and whoever waits at it is cut off.
    Away,
}

/// What it was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) batches: Vec<(Uuid, PhaseBatch)>,
    pub(crate) results: Vec<(Uuid, TaskResult)>,
    pub(crate) renewals: Vec<Renewal>,
    pub(crate) installed: Vec<Identity>,
    pub(crate) waits: u64,
    pub(crate) refusals: u64,
    /// Who found nobody there, and when.
    pub(crate) in_vain: Vec<(&'static str, Timestamp)>,
}

impl Log {
    /// The results of a task.
    pub(crate) fn results_of(&self, task: Uuid) -> Vec<&TaskResult> {
        self.results.iter().filter(|(of, _)| *of == task).map(|(_, result)| result).collect()
    }

    /// The outcome of a task, if there is one.
    pub(crate) fn outcome(&self, task: Uuid) -> Option<&TaskOutcome> {
        self.results_of(task).last().map(|result| &result.outcome)
    }

    /// Everything reported of a dispatch, by number.
    pub(crate) fn reports(&self, task: Uuid, dispatch: i64) -> Vec<PhaseReport> {
        let batches =
            self.batches.iter().filter(|(of, batch)| *of == task && batch.dispatch == dispatch);
        let results =
            self.results.iter().filter(|(of, result)| *of == task && result.dispatch == dispatch);
        let batches = batches.flat_map(|(_, batch)| batch.phases.iter());
        let results = results.flat_map(|(_, result)| result.phases.iter());
        let mut reports: Vec<PhaseReport> = batches.chain(results).cloned().collect();
        reports.sort_by_key(|report| report.seq);
        reports.dedup_by_key(|report| report.seq);
        reports
    }

    /// Whether a phase of a task was reported with that status.
    pub(crate) fn heard(&self, task: Uuid, phase: Phase, status: PhaseStatus) -> bool {
        let of_task = self.batches.iter().filter(|(of, _)| *of == task);
        let mut reports = of_task.flat_map(|(_, batch)| batch.phases.iter());
        reports.any(|report| report.phase.0 == phase && report.status.0 == status)
    }
}

/// The gateway.
pub(crate) struct FakeGateway {
    clock: Clock,
    /// Notified when it behaves otherwise.
    moods: Notify,
    tasks: Mutex<VecDeque<SignedTask>>,
    arrived: Notify,
    log: watch::Sender<Log>,
    mood: Mutex<Mood>,
    certificate: Mutex<Option<Certificate>>,
    ask_renewal: Mutex<bool>,
    /// After so many calls the agent is to be killed.
    calls_left: Mutex<Option<u32>>,
    pub(crate) killed: Notify,
    held: Notify,
    /// The allocations that are over.
    over: Mutex<Vec<Uuid>>,
}

impl FakeGateway {
    pub(crate) fn new(clock: Clock) -> Arc<FakeGateway> {
        Arc::new(FakeGateway {
            clock,
            moods: Notify::new(),
            tasks: Mutex::default(),
            arrived: Notify::new(),
            log: watch::Sender::new(Log::default()),
            mood: Mutex::default(),
            certificate: Mutex::default(),
            ask_renewal: Mutex::default(),
            calls_left: Mutex::default(),
            killed: Notify::new(),
            held: Notify::new(),
            over: Mutex::default(),
        })
    }

    pub(crate) fn push(&self, task: SignedTask) {
        self.tasks.lock().expect("nobody panicked with it").push_back(task);
        self.arrived.notify_one();
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        *self.mood.lock().expect("nobody panicked with it") = mood;
        self.moods.notify_waiters();
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().expect("nobody panicked with it")
    }

    /// Answers the result that is held, and holds no more.
    pub(crate) fn let_go(&self) {
        self.set_mood(Mood::Well);
        self.held.notify_one();
    }

    /// Waits for so many more heartbeats: whatever could happen at once has happened by then.
    pub(crate) async fn heartbeats(&self, more: usize) -> Log {
        let so_far = self.log().heartbeats.len();
        self.until("heartbeats", |log| log.heartbeats.len() >= so_far + more).await
    }

    pub(crate) fn offer_certificate(&self, certificate: Certificate) {
        *self.certificate.lock().expect("nobody panicked with it") = Some(certificate);
    }

    /// From now on it says, of what a heartbeat names, that this is over.
    pub(crate) fn end(&self, allocation: Uuid) {
        self.over.lock().expect("nobody panicked with it").push(allocation);
    }

    fn over(&self, heartbeat: &Heartbeat) -> Vec<Uuid> {
        let leases = heartbeat.leases.iter().map(|lease| lease.allocation_id);
        let guests = heartbeat.guests.iter().map(|guest| guest.allocation_id);
        let named: Vec<Uuid> = leases.chain(guests).collect();
        let over = self.over.lock().expect("nobody panicked with it");
        over.iter().copied().filter(|over| named.contains(over)).collect()
    }

    pub(crate) fn ask_renewal(&self) {
        *self.ask_renewal.lock().expect("nobody panicked with it") = true;
    }

    pub(crate) fn kill_after(&self, calls: u32) {
        *self.calls_left.lock().expect("nobody panicked with it") = Some(calls);
    }

    pub(crate) fn log(&self) -> Log {
        self.log.borrow().clone()
    }

    /// Waits until the log is as it should be, and gives it.
    pub(crate) async fn until(&self, what: &str, holds: impl FnMut(&Log) -> bool) -> Log {
        let mut log = self.log.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(100_000), log.wait_for(holds)).await;
        match waited {
            Ok(log) => log.expect("the gateway lives").clone(),
            Err(_) => panic!("never came: {what}; {:#?}", self.log()),
        }
    }

    /// Waits for the outcome of a task.
    pub(crate) async fn outcome(&self, task: Uuid) -> TaskOutcome {
        let log = self.until("an outcome", |log| log.outcome(task).is_some()).await;
        log.outcome(task).expect("it was waited for").clone()
    }

    /// Counts a call; the one that kills never returns.
    async fn call(&self, what: &'static str) -> Result<(), GatewayError> {
        let dead = {
            let mut left = self.calls_left.lock().expect("nobody panicked with it");
            match left.as_mut() {
                Some(0) => true,
                Some(calls) => {
                    *calls -= 1;
                    false
                }
                None => false,
            }
        };
        if dead {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
        match self.mood() {
            Mood::Well | Mood::Deaf | Mood::Holding => Ok(()),
            Mood::Away => {
                let at = self.clock.now();
                self.log.send_modify(|log| log.in_vain.push((what, at)));
                Err(GatewayError::Unreachable("nobody is there".into()))
            }
            Mood::Revoking => {
                self.log.send_modify(|log| log.refusals += 1);
                Err(GatewayError::Revoked { status: 403, detail: "retired".to_owned() })
            }
        }
    }

    fn acknowledge(&self) -> Result<Acknowledged, GatewayError> {
        match self.mood() {
            Mood::Deaf => Err(GatewayError::Unreachable("the answer is lost".into())),
            Mood::Well | Mood::Revoking | Mood::Holding | Mood::Away => {
                Ok(Acknowledged { applied: true, answer: "applied".to_owned() })
            }
        }
    }
}

impl Gateway for FakeGateway {
    fn heartbeat<'a>(&'a self, heartbeat: &'a Heartbeat) -> Answer<'a, HeartbeatAnswer> {
        Box::pin(async move {
            self.call("heartbeat").await?;
            self.log.send_modify(|log| log.heartbeats.push(heartbeat.clone()));
            let renew =
                std::mem::take(&mut *self.ask_renewal.lock().expect("nobody panicked with it"));
            Ok(HeartbeatAnswer {
                next_seconds: 10,
                renew,
                status: "ready".to_owned(),
                over: self.over(heartbeat),
            })
        })
    }

    fn wait(&self) -> Answer<'_, Vec<SignedTask>> {
        Box::pin(async move {
            self.call("wait").await?;
            self.log.send_modify(|log| log.waits += 1);
            loop {
                let tasks: Vec<SignedTask> =
                    self.tasks.lock().expect("nobody panicked with it").drain(..).collect();
                if !tasks.is_empty() {
                    return Ok(tasks);
                }
                let moved = self.moods.notified();
                if self.mood() == Mood::Away {
                    return Err(GatewayError::Unreachable("it went away".into()));
                }
                tokio::select! {
                    () = self.arrived.notified() => {}
                    () = moved => {}
                }
            }
        })
    }

    fn phases<'a>(&'a self, task: Uuid, batch: &'a PhaseBatch) -> Answer<'a, Acknowledged> {
        Box::pin(async move {
            self.call("phases").await?;
            self.log.send_modify(|log| log.batches.push((task, batch.clone())));
            self.acknowledge()
        })
    }

    fn result<'a>(&'a self, task: Uuid, result: &'a TaskResult) -> Answer<'a, Acknowledged> {
        Box::pin(async move {
            self.call("result").await?;
            self.log.send_modify(|log| log.results.push((task, result.clone())));
            if self.mood() == Mood::Holding {
                self.held.notified().await;
            }
            self.acknowledge()
        })
    }

    fn renew<'a>(&'a self, renewal: &'a Renewal) -> Answer<'a, Certificate> {
        Box::pin(async move {
            self.call("renew").await?;
            self.log.send_modify(|log| log.renewals.push(renewal.clone()));
            let certificate = self.certificate.lock().expect("nobody panicked with it").clone();
            certificate.ok_or_else(|| GatewayError::Unreachable("no authority".into()))
        })
    }

    fn install(&self, identity: &Identity) -> Result<(), Error> {
        self.log.send_modify(|log| log.installed.push(identity.clone()));
        Ok(())
    }
}
