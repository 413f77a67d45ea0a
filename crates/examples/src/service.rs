//! A small product on top of the two machines: it starts, stops, finalises and cleans up, and talks
//! to a daemon whose answers a test delivers late, twice or never. It never picks a status; it
//! reports what it learns. `let _` on an outcome says that nothing hangs on it here; the store has
//! the record.

use std::collections::{HashMap, VecDeque};

use lifecycle::{Column, InFlight, Outcome, Permit, Report, Source, Value};

use crate::columns::{
    CLEANUP_MODE, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID, ENVIRONMENT_ID, PATH,
    STOP_REQUESTED_AT,
};
use crate::environment_v1::{Event as EnvironmentEvent, Status as EnvironmentStatus};
use crate::home::{Home, is_live};
use crate::shelf::Shelf;
use crate::thread_v1::{Event as ThreadEvent, Status as ThreadStatus};

/// What the service asks the daemon to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Start the runtime of a thread.
    Start {
        /// The thread.
        thread: u128,
    },
    /// Stop the runtime of a thread.
    Stop {
        /// The thread.
        thread: u128,
    },
    /// Make the workspace of an environment.
    Provision {
        /// The environment.
        environment: u128,
    },
    /// Take the workspace of an environment down.
    Destroy {
        /// The environment.
        environment: u128,
        /// Which of possibly many attempts this is.
        attempt: u128,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It did what it was to do.
    Done,
    /// A workspace was made here.
    MadeAt(&'static str),
    /// It failed.
    Failed,
}

/// The remote end, reduced to the commands it was sent. It answers when the test does.
#[derive(Debug, Default)]
pub struct Daemon {
    waiting: VecDeque<Command>,
}

impl Daemon {
    /// The oldest command that nobody has taken yet.
    pub fn take(&mut self) -> Option<Command> {
        self.waiting.pop_front()
    }

    /// How many commands nobody has taken yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// What one process does only once at a time for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A start that the daemon has not answered.
    Start,
    /// A stop that the daemon has not answered.
    Stop,
    /// The generated title goes with the start.
    TitleSync,
}

/// To the sender of an event: taken care of, whatever came of it.
pub const ACKNOWLEDGED: u16 = 200;
/// To the sender of an event: send it again.
pub const TRY_AGAIN: u16 = 503;

/// The service, at home in `H`.
pub struct Service<H> {
    /// The rows.
    pub home: H,
    /// The remote end.
    pub daemon: Daemon,
    /// What a person sees happen, by thread.
    pub timeline: Vec<(u128, &'static str)>,
    in_flight: InFlight<(Work, u128)>,
    permits: HashMap<(Work, u128), Permit<(Work, u128)>>,
    last_id: u128,
}

impl<H: Home> Service<H> {
    /// A service over these rows, with nothing under way.
    pub fn new(home: H) -> Self {
        Self {
            home,
            daemon: Daemon::default(),
            timeline: Vec::new(),
            in_flight: InFlight::new(),
            permits: HashMap::new(),
            // Far from the small numbers that tests give away by hand.
            last_id: 1 << 64,
        }
    }

    fn fresh_id(&mut self) -> u128 {
        self.last_id += 1;
        self.last_id
    }

    /// Whether this process is doing `work` for the thread right now.
    pub fn is_under_way(&self, work: Work, thread: u128) -> bool {
        self.in_flight.is_held(&(work, thread))
    }

    fn begin(&mut self, work: Work, thread: u128) -> bool {
        let permit = self.in_flight.claim((work, thread));
        let begun = permit.is_some();
        if let Some(permit) = permit {
            self.permits.insert((work, thread), permit);
        }
        begun
    }

    fn end(&mut self, work: Work, thread: u128) {
        self.permits.remove(&(work, thread));
    }

    fn report_thread(
        &mut self,
        id: u128,
        event: ThreadEvent,
        source: Source,
    ) -> Result<Outcome<ThreadStatus>, H::Fault> {
        let report = Report::new(event, self.fresh_id(), source);
        self.home.threads().report(id, &report)
    }

    fn report_environment(
        &mut self,
        id: u128,
        event: EnvironmentEvent,
        payload: Option<(Column, Value)>,
    ) -> Result<Outcome<EnvironmentStatus>, H::Fault> {
        let mut report = Report::new(event, self.fresh_id(), Source::Worker);
        if let Some((field, value)) = payload {
            report = report.with(field, value);
        }
        self.home.environments().report(id, &report)
    }

    /// Asks the daemon to start the thread, unless a start is under way already.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn request_start(&mut self, thread: u128, sync_title: bool) -> Result<(), H::Fault> {
        if self.is_under_way(Work::Start, thread) {
            return Ok(());
        }
        self.begin(Work::Start, thread);
        if sync_title {
            self.begin(Work::TitleSync, thread);
        }
        self.daemon.waiting.push_back(Command::Start { thread });
        Ok(())
    }

    /// Records the wish to stop on the row, where it outlives this process, and asks the daemon
    /// once.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn request_stop(&mut self, thread: u128) -> Result<(), H::Fault> {
        self.home.threads().write_aside(thread, STOP_REQUESTED_AT, Value::Time(1))?;
        if self.begin(Work::Stop, thread) {
            self.daemon.waiting.push_back(Command::Stop { thread });
        }
        Ok(())
    }

    /// Asks the daemon for the workspace of an environment that is provisioning.
    pub fn provision(&mut self, environment: u128) {
        self.daemon.waiting.push_back(Command::Provision { environment });
    }

    /// Wants an environment back, whatever became of it.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn revive(&mut self, environment: u128) -> Result<(), H::Fault> {
        let outcome =
            self.report_environment(environment, EnvironmentEvent::ProvisionRequested, None)?;
        if outcome.is_applied() {
            self.provision(environment);
        }
        Ok(())
    }

    /// Leaves tombstones of all threads in the environment and asks for its clean-up, as deleting a
    /// project does.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn delete_project(&mut self, environment: u128) -> Result<(), H::Fault> {
        for thread in self.threads_in(environment)? {
            self.home.threads().write_aside(thread, DELETED_AT, Value::Time(1))?;
        }
        self.request_clean_up(environment)
    }

    /// Records the wish to clean an environment up.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn request_clean_up(&mut self, environment: u128) -> Result<(), H::Fault> {
        let environments = self.home.environments();
        environments.write_aside(environment, CLEANUP_REQUESTED_AT, Value::Time(1))?;
        environments.write_aside(environment, CLEANUP_MODE, Value::Text("full".into()))
    }

    /// Carries a requested clean-up one step on: claims the environment for a destroy, or ends
    /// without one.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn clean_up(&mut self, environment: u128) -> Result<(), H::Fault> {
        let Some(row) = self.home.environments().find(environment)? else {
            return Ok(());
        };
        if row.facts.get(CLEANUP_REQUESTED_AT).is_null() {
            return Ok(());
        }
        if row.facts.get(PATH).is_null() {
            let event = EnvironmentEvent::CleanupCompleted;
            let _ = self.report_environment(environment, event, None)?;
            return Ok(());
        }
        let attempt = self.fresh_id();
        let claim = Some((DESTROY_ATTEMPT_ID, Value::Id(attempt)));
        let event = EnvironmentEvent::DestroyDispatched;
        // The claim is the transition. Only who made it may send: a duplicate was claimed by
        // somebody else.
        if self.report_environment(environment, event, claim)?.is_applied() {
            self.daemon.waiting.push_back(Command::Destroy { environment, attempt });
        }
        Ok(())
    }

    fn threads_in(&mut self, environment: u128) -> Result<Vec<u128>, H::Fault> {
        let mut inside = Vec::new();
        for id in self.home.threads().ids()? {
            let row = self.home.threads().find(id)?;
            let there = Value::Id(environment);
            if row.is_some_and(|row| *row.facts.get(ENVIRONMENT_ID) == there) {
                inside.push(id);
            }
        }
        Ok(inside)
    }

    /// Takes the daemon's answer to a command, as often as it comes.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn settle(&mut self, command: &Command, answer: &Answer) -> Result<(), H::Fault> {
        let failed = *answer == Answer::Failed;
        match *command {
            Command::Start { thread } => {
                self.end(Work::Start, thread);
                self.end(Work::TitleSync, thread);
                let event =
                    if failed { ThreadEvent::CommandFailed } else { ThreadEvent::StartSucceeded };
                let _ = self.report_thread(thread, event, Source::Agent)?;
            }
            Command::Stop { thread } => {
                self.end(Work::Stop, thread);
                // A stop that failed leaves the wish on the row, where the next attempt finds it.
                if !failed {
                    self.finalise(thread)?;
                }
            }
            Command::Provision { environment } => self.settle_provision(environment, answer)?,
            Command::Destroy { environment, attempt } => {
                self.settle_destroy(environment, attempt, failed)?;
            }
        }
        Ok(())
    }

    fn settle_provision(&mut self, environment: u128, answer: &Answer) -> Result<(), H::Fault> {
        let path = match answer {
            Answer::MadeAt(path) => *path,
            Answer::Done | Answer::Failed => {
                let _ =
                    self.report_environment(environment, EnvironmentEvent::ProvisionFailed, None)?;
                for thread in self.threads_in(environment)? {
                    let _ =
                        self.report_thread(thread, ThreadEvent::ProvisionFailed, Source::Worker)?;
                }
                return Ok(());
            }
        };
        // A workspace on disk is a fact, whatever its environment is worth now: without the path
        // nobody cleans it up.
        self.home.environments().write_aside(environment, PATH, Value::Text(path.into()))?;
        let event = EnvironmentEvent::ProvisionSucceeded;
        if self.report_environment(environment, event, None)?.is_applied() {
            for thread in self.threads_in(environment)? {
                let row = self.home.threads().find(thread)?;
                if row.is_some_and(|row| is_live(&row.facts)) {
                    self.request_start(thread, false)?;
                } else {
                    self.finalise(thread)?;
                }
            }
        }
        self.clean_up(environment)
    }

    fn settle_destroy(
        &mut self,
        environment: u128,
        attempt: u128,
        failed: bool,
    ) -> Result<(), H::Fault> {
        if failed {
            let answered = Some((DESTROY_ATTEMPT_ID, Value::Id(attempt)));
            let _ =
                self.report_environment(environment, EnvironmentEvent::DestroyFailed, answered)?;
            return Ok(());
        }
        let event = EnvironmentEvent::DestroySucceeded;
        let outcome = self.report_environment(environment, event, None)?;
        if outcome.landed_on(EnvironmentStatus::Destroyed) {
            for thread in self.threads_in(environment)? {
                let _ = self.report_thread(thread, ThreadEvent::WorkspaceLost, Source::Worker)?;
            }
        }
        Ok(())
    }

    /// Ends a requested stop, or what is left of a tombstone. Doing so twice does nothing twice.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn finalise(&mut self, thread: u128) -> Result<(), H::Fault> {
        let outcome = self.report_thread(thread, ThreadEvent::StopCompleted, Source::Worker)?;
        if outcome.is_applied() {
            self.timeline.push((thread, "stopped"));
        }
        // Last: should the process die before, the wish is still there and this runs again.
        self.home.threads().write_aside(thread, STOP_REQUESTED_AT, Value::Null)
    }

    /// Takes an event from the daemon and says what its sender is told. A refusal that will never
    /// change must not block what is behind it, so only a lost race is sent again.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn ingest(
        &mut self,
        thread: u128,
        event: ThreadEvent,
        event_id: u128,
    ) -> Result<u16, H::Fault> {
        let report = Report::new(event, event_id, Source::Agent);
        let outcome = self.home.threads().report(thread, &report)?;
        if event == ThreadEvent::TurnInterrupted && outcome.is_applied() {
            self.timeline.push((thread, "interrupted"));
            // The interruption is the daemon's word that the stop has happened.
            self.home.threads().write_aside(thread, STOP_REQUESTED_AT, Value::Null)?;
        }
        Ok(if outcome.is_retryable() { TRY_AGAIN } else { ACKNOWLEDGED })
    }

    /// Tells each of `threads` that the daemon has lost its session. Each is on its own: one that
    /// has moved on since the list was drawn up does not hold up the rest.
    ///
    /// # Errors
    /// Whatever breaks in the home.
    pub fn lose_sessions(
        &mut self,
        threads: &[u128],
    ) -> Result<Vec<Outcome<ThreadStatus>>, H::Fault> {
        let mut outcomes = Vec::new();
        for thread in threads {
            outcomes.push(self.report_thread(*thread, ThreadEvent::SessionLost, Source::Worker)?);
        }
        Ok(outcomes)
    }
}
