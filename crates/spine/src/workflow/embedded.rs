//! The engine in Postgres itself. A run that is being stepped is leased, and nothing is held meanwhile; if its engine dies,
//! another takes it over when the lease ends. A step that fails is tried again for ever, more and more seldom.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use store::workflow_runs::driven::{self, Due, Stands};
use store::workflow_runs::{self, Claim, Claimed, Failed, Saved, Taken, Wait};
use store::{Company, Ring, Store, Tx};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Definition, Happened, NewRun, Next, Run, StepError, Workflows};
use crate::error::chain;
use crate::pump::{self, Work, guarded, pause_after, persist};
use crate::{Clock, Error, Wake};

/// When a run is taken over if nothing is heard of it.
pub const LEASE: Duration = Duration::from_secs(25);
/// How long one step may take: it is done, or has failed, before anybody takes the run over.
const STEP_MAX: Duration = Duration::from_secs(20);
/// How many runs are stepped at once: as many as may share a transaction.
const AT_ONCE: usize = 64;
/// The longest pause between two attempts of a step.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The engine. Clones share it; several of them, in one process or in many, share the runs.
#[derive(Clone)]
pub struct Embedded {
    engine: Arc<Engine>,
}

struct Engine {
    store: Store,
    clock: Clock,
    definitions: OnceLock<Vec<Definition>>,
    in_hand: AtomicUsize,
}

impl Embedded {
    /// An engine that knows these workflows.
    pub fn new(store: Store, clock: Clock, definitions: Vec<Definition>) -> Embedded {
        let engine = Embedded::undefined(store, clock);
        engine.define(definitions);
        engine
    }

    /// An engine that knows no workflow before [`Embedded::define`], for workflows whose steps themselves need the engine.
    pub fn undefined(store: Store, clock: Clock) -> Embedded {
        Embedded {
            engine: Arc::new(Engine {
                store,
                clock,
                definitions: OnceLock::new(),
                in_hand: AtomicUsize::new(0),
            }),
        }
    }

    /// Says which workflows there are. Only the first time counts; answers whether this was it.
    pub fn define(&self, definitions: Vec<Definition>) -> bool {
        self.engine.definitions.set(definitions).is_ok()
    }

    /// Steps the runs that are due now, each as far as it gets; answers how many that were.
    ///
    /// # Errors
    /// When nothing could be claimed.
    pub async fn step(&self) -> Result<usize, Error> {
        pump::step(self).await
    }

    /// Steps runs as they are due, until stopped.
    pub async fn run(&self, wake: &Wake, stop: &CancellationToken) {
        let bell = wake.on(Ring::Workflows);
        pump::run(self, &bell, stop).await;
    }

    /// Up to `room` runs that are due and that no engine was told of. It is not asked again for them before `quiet` has passed,
    /// unless something happens.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn announce(&self, room: usize, quiet: Duration) -> Result<Vec<Due>, Error> {
        let engine = &self.engine;
        let workflows = engine.names();
        let claim = engine.terms(&workflows, quiet, room);
        Ok(driven::announce(&engine.store, &claim).await?)
    }

    /// An engine could not be told of these runs.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn unannounce(&self, runs: &[String]) -> Result<(), Error> {
        Ok(driven::unannounce(&self.engine.store, runs).await?)
    }

    /// Steps one run as far as it gets; says for how long it then rests, or nothing when it is over.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn step_run(&self, id: &str) -> Result<Option<Duration>, Error> {
        self.engine.in_hand.fetch_add(1, Ordering::SeqCst);
        let stepped = self.carry_one(id).await;
        self.engine.in_hand.fetch_sub(1, Ordering::SeqCst);
        stepped
    }

    /// How many runs are due, and in nobody's hand.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn count_due(&self) -> Result<usize, Error> {
        let engine = &self.engine;
        let due = driven::count_due(&engine.store, &engine.names(), engine.clock.now()).await?;
        Ok(usize::try_from(due).unwrap_or_default())
    }

    /// How many runs it is about to take, or steps; never none while there is one.
    pub fn in_hand(&self) -> usize {
        self.engine.in_hand.load(Ordering::SeqCst)
    }

    async fn carry_one(&self, id: &str) -> Result<Option<Duration>, Error> {
        let engine = &self.engine;
        loop {
            let (now, lease_until) = (engine.clock.now(), engine.clock.after(LEASE));
            match driven::take(&engine.store, id, now, lease_until).await? {
                Stands::Taken(claimed) => {
                    let span = span_of(&claimed);
                    Arc::clone(engine).carry(claimed).instrument(span).await;
                }
                Stands::Rests(until) => {
                    let rest = Duration::try_from(until.duration_since(engine.clock.now()));
                    return Ok(Some(rest.unwrap_or_default()));
                }
                Stands::Over => return Ok(None),
            }
        }
    }

    fn known(&self, workflow: &str) -> Result<(), Error> {
        match self.engine.definition(workflow) {
            Some(_) => Ok(()),
            None => Err(Error::UnknownWorkflow(workflow.to_owned())),
        }
    }
}

impl Workflows for Embedded {
    fn start(&self, run: NewRun) -> BoxFuture<'_, Result<bool, Error>> {
        async move {
            self.known(run.workflow)?;
            Ok(workflow_runs::start(&self.engine.store, &run.stored()).await?)
        }
        .boxed()
    }

    fn tell(&self, id: &str, happened: Happened) -> BoxFuture<'_, Result<bool, Error>> {
        let id = id.to_owned();
        async move {
            let word = serde_json::to_value(happened)?;
            Ok(workflow_runs::tell(&self.engine.store, &id, &word).await?)
        }
        .boxed()
    }

    fn start_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        run: &'a NewRun,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            self.known(run.workflow)?;
            Ok(workflow_runs::start_in(tx, &run.stored()).await?)
        }
        .boxed()
    }

    fn tell_in<'a>(
        &'a self,
        tx: &'a mut Tx,
        id: &'a str,
        happened: &'a Happened,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move { Ok(workflow_runs::tell_in(tx, id, &serde_json::to_value(happened)?).await?) }
            .boxed()
    }
}

impl Work for Embedded {
    /// When the run is due again, if it is known.
    type Done = Option<Timestamp>;

    fn room(&self) -> usize {
        AT_ONCE
    }

    async fn claim(&self, room: usize) -> Result<Vec<BoxFuture<'static, Self::Done>>, Error> {
        let engine = &self.engine;
        let workflows = engine.names();
        engine.in_hand.fetch_add(1, Ordering::SeqCst);
        let claimed =
            workflow_runs::claim(&engine.store, &engine.terms(&workflows, LEASE, room)).await;
        let count = claimed.as_ref().map_or(0, Vec::len);
        engine.in_hand.fetch_add(count, Ordering::SeqCst);
        engine.in_hand.fetch_sub(1, Ordering::SeqCst);
        let claimed = claimed?;
        let begin = |claimed: Claimed| {
            let span = span_of(&claimed);
            Arc::clone(engine).carry(claimed).instrument(span).boxed()
        };
        Ok(claimed.into_iter().map(begin).collect())
    }

    async fn settle(&self, done: Vec<Self::Done>) -> Result<Option<Timestamp>, Error> {
        self.engine.in_hand.fetch_sub(done.len(), Ordering::SeqCst);
        // Each run was saved by its own step, because the next word may be waiting for it.
        Ok(done.into_iter().flatten().min())
    }

    fn clock(&self) -> &Clock {
        &self.engine.clock
    }
}

/// How it goes on with a run after one step.
enum Goes {
    /// The run is put down, until then if that is known.
    Down(Option<Timestamp>),
    /// It has been told more.
    On { state: Value, word: Value, lease: i64 },
}

fn span_of(claimed: &Claimed) -> tracing::Span {
    tracing::info_span!("workflow", workflow = claimed.workflow, run = claimed.id)
}

/// The step's place in the trace of what started the run, whatever it hears and from whom.
fn traced(claimed: &Claimed) -> tracing::Span {
    if claimed.traceparent.is_none() {
        return tracing::Span::none();
    }
    let Claimed { workflow, id, entity_id, attempts, .. } = claimed;
    let word = claimed.word.as_ref().and_then(|word| word["happened"].as_str());
    let heard = word.unwrap_or("time_out");
    let span = tracing::trace_span!(
        target: trace::TARGET, "step", otel.name = format!("{workflow}: {heard}"),
        workflow, run = id, heard, attempts, %entity_id, result = tracing::field::Empty,
    );
    trace::follow(&span, claimed.traceparent.as_deref());
    span
}

impl Engine {
    /// The workflows it knows. A run of one that only a newer binary knows is left to that one.
    fn names(&self) -> Vec<&'static str> {
        self.definitions.get().into_iter().flatten().map(|each| each.name).collect()
    }

    fn terms<'a>(&self, workflows: &'a [&'a str], lease: Duration, room: usize) -> Claim<'a> {
        Claim {
            workflows,
            now: self.clock.now(),
            lease_until: self.clock.after(lease),
            limit: i64::try_from(room).unwrap_or(i64::MAX),
        }
    }

    fn definition(&self, workflow: &str) -> Option<&Definition> {
        self.definitions.get()?.iter().find(|each| each.name == workflow)
    }

    /// Steps a run until it has heard all it was told.
    async fn carry(self: Arc<Self>, mut claimed: Claimed) -> Option<Timestamp> {
        // Only runs of workflows that are known were claimed.
        let definition = self.definition(&claimed.workflow)?;
        loop {
            let span = traced(&claimed);
            let stepped = self.step(definition, &claimed).instrument(span.clone()).await;
            let (result, stepped) = match stepped {
                Ok(answer) => answer,
                Err(error) => {
                    pump::tell(&error, "a step could not be saved");
                    ("unsaved", Goes::Down(None))
                }
            };
            span.record("result", result);
            let workflow = definition.name;
            metrics::counter!("berth_workflow_steps_total", "workflow" => workflow, "result" => result)
                .increment(1);
            match stepped {
                Goes::Down(until) => return until,
                Goes::On { state, word, lease } => {
                    claimed = Claimed { state, word: Some(word), lease, attempts: 1, ..claimed };
                }
            }
        }
    }

    async fn step(
        &self,
        definition: &Definition,
        claimed: &Claimed,
    ) -> Result<(&'static str, Goes), store::Error> {
        let heard = claimed.word.is_some();
        let taken = Taken { id: &claimed.id, lease: claimed.lease, heard };
        // Who has failed before does not take others along.
        let first = claimed.attempts <= 1;
        let company = if first { company_of(definition, claimed) } else { Company::Alone };
        let mut tried = self.attempt(definition, claimed, (taken, company)).await?;
        if let Err(StepError { in_company: true, .. }) = tried {
            tried = self.attempt(definition, claimed, (taken, Company::Alone)).await?;
        }
        let why = match tried {
            Ok(goes) => return Ok(goes),
            Err(error) => error.reason,
        };
        let (attempts, reason) = (claimed.attempts, why.as_str());
        tracing::warn!(attempts, reason, "a step failed, and will be tried again");
        let again_at = self.clock.after(pause_after(attempts, PAUSE_MAX));
        let failed = Failed { reason, attempts, again_at };
        let ours = persist(|| workflow_runs::fail(&self.store, taken, &failed)).await?;
        Ok((if ours { "failed" } else { "lost" }, Goes::Down(ours.then_some(again_at))))
    }

    /// A step, and that it was done; or why it was not.
    async fn attempt(
        &self,
        definition: &Definition,
        claimed: &Claimed,
        (taken, company): (Taken<'_>, Company),
    ) -> Result<Result<(&'static str, Goes), StepError>, store::Error> {
        // Called inside, because it may panic before there is anything to await.
        let step = async {
            let happened = happened(claimed.word.as_ref()).map_err(StepError::new)?;
            let run = Run {
                id: claimed.id.clone(),
                entity_id: claimed.entity_id,
                state: claimed.state.clone(),
                company,
            };
            (definition.step)(run, happened).await
        };
        let stepped = match guarded(STEP_MAX, step).await {
            Ok(Ok(stepped)) => stepped,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(why) => return Ok(Err(StepError::new(why))),
        };
        let next = &stepped.next;
        let Some(work) = stepped.work else {
            return Ok(Ok(self.goes(next, persist(|| self.keep(taken, next)).await?)));
        };
        Ok(match self.keep_in(work, taken, next).await {
            Ok(saved) => Ok(self.goes(next, saved)),
            Err(error) => {
                let in_company = matches!(error, store::Error::Company);
                Err(StepError { reason: chain(&error), in_company })
            }
        })
    }

    /// Writes down that a step was done whose work is committed already.
    async fn keep(&self, taken: Taken<'_>, next: &Next) -> Result<Saved, store::Error> {
        match self.saving(next) {
            Saving::Done(now) => workflow_runs::finish(&self.store, taken, now).await,
            Saving::Waits(wait) => workflow_runs::save(&self.store, taken, &wait).await,
        }
    }

    /// Writes down that a step was done, in the transaction of its work, and commits both; or neither, when the run is somebody else's
    /// by now.
    async fn keep_in(
        &self,
        mut work: Tx,
        taken: Taken<'_>,
        next: &Next,
    ) -> Result<Saved, store::Error> {
        let saved = match self.saving(next) {
            Saving::Done(now) => workflow_runs::finish_in(&mut work, taken, now).await?,
            Saving::Waits(wait) => workflow_runs::save_in(&mut work, taken, &wait).await?,
        };
        match saved {
            Saved::Lost => work.rollback().await?,
            Saved::Over | Saved::Rests | Saved::Told { .. } => work.commit().await?,
        }
        Ok(saved)
    }

    fn saving<'n>(&self, next: &'n Next) -> Saving<'n> {
        match next {
            Next::Done => Saving::Done(self.clock.now()),
            Next::Wait { state, until, waits_for } => {
                let lease_until = self.clock.after(LEASE);
                Saving::Waits(Wait { state, until: *until, waits_for, lease_until })
            }
        }
    }

    fn goes(&self, next: &Next, saved: Saved) -> (&'static str, Goes) {
        match (saved, next) {
            (Saved::Lost, _) => ("lost", Goes::Down(None)),
            (Saved::Over, _) | (_, Next::Done) => ("done", Goes::Down(None)),
            (Saved::Rests, Next::Wait { until, .. }) => ("waits", Goes::Down(Some(*until))),
            (Saved::Told { word, lease }, Next::Wait { state, .. }) => {
                ("waits", Goes::On { state: state.clone(), word, lease })
            }
        }
    }
}

/// What is written down of a step.
enum Saving<'a> {
    Done(Timestamp),
    Waits(Wait<'a>),
}

/// Those who hear the same in the same workflow, each about a row of its own.
fn company_of(definition: &Definition, claimed: &Claimed) -> Company {
    let heard = happened(claimed.word.as_ref());
    let doing = (definition.name, heard.as_ref().map_or("", Happened::word));
    Company::Same { doing, about: claimed.entity_id }
}

fn happened(word: Option<&Value>) -> Result<Happened, String> {
    let Some(word) = word else {
        return Ok(Happened::TimeOut);
    };
    serde::Deserialize::deserialize(word)
        .map_err(|error| format!("nobody knows what it was told: {error}"))
}
