//! What a node does when told: typed tasks, a journal, drivers.
//!
//! One [`run`] is one agent; a process may run many. It keeps everything under its directory, and goes on there after
//! any death: nothing that was begun is forgotten, nothing that was done is done twice.

pub mod arguments;
mod backoff;
mod client;
mod clock;
mod crash;
pub mod drivers;
mod durable;
mod engine;
mod error;
pub mod faults;
mod identity;
pub mod journal;
mod leases;
mod line;
mod session;
pub mod tasks;
pub mod verify;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use arguments::Arguments;
pub use client::{Answer, Gateway, GatewayError, HttpGateway, SERVER_NAME};
pub use clock::Clock;
pub use crash::CrashMode;
pub use drivers::simulated::SimulatedConfig;
pub use error::Error;
pub use identity::Identity;

use clock::{Dice, Paused};
use crash::Crash;
use drivers::Driver;
use drivers::simulated::{self, Simulated};
use engine::{Engine, Parts};
use journal::{COMPACT_BYTES, Journal};
use leases::Reconciler;
use line::{Distant, Line};
use session::Session;
use verify::Verifier;

const INBOX: usize = 16;
const MESSAGE_CHARS_MAX: usize = 512;

/// What an agent needs to know before it begins.
#[derive(Clone)]
pub struct Config {
    /// Where it keeps everything.
    pub directory: PathBuf,
    /// The join token; needed once.
    pub join: Option<String>,
    /// What touches the machine.
    pub driver: DriverConfig,
    /// Where it takes the time from.
    pub clock: Clock,
    /// What the fault `crash` does.
    pub crash: CrashMode,
    /// How long between two heartbeats until the gateway has said it.
    pub heartbeat: Duration,
    /// How long the journal gets before it is rewritten.
    pub journal_bytes: u64,
}

impl Config {
    /// An agent of a simulated machine, with everything else as usual.
    pub fn simulated(directory: impl Into<PathBuf>, machine: SimulatedConfig) -> Config {
        Config {
            directory: directory.into(),
            join: None,
            driver: DriverConfig::Simulated(machine),
            clock: Clock::system(),
            crash: CrashMode::default(),
            heartbeat: Duration::from_secs(10),
            journal_bytes: COMPACT_BYTES,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret.
        write!(f, "Config({}, {:?})", self.directory.display(), self.driver)
    }
}

/// What touches the machine.
#[derive(Clone)]
pub enum DriverConfig {
    /// Nothing: the machine is simulated.
    Simulated(SimulatedConfig),
    /// A driver of the caller's.
    Given(Arc<dyn Driver>),
}

impl fmt::Debug for DriverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriverConfig::Simulated(config) => write!(f, "Simulated({} GPUs)", config.gpus.len()),
            DriverConfig::Given(_) => f.write_str("Given"),
        }
    }
}

/// Runs an agent until `stop`, through every reboot of its simulated machine. Work under way is left as it is, and the
/// next run goes on with it.
///
/// # Errors
/// When the node can't be enrolled, its files can't be used, or a fault made it crash.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), Error> {
    loop {
        match run_once(config.clone(), stop.clone()).await {
            Err(Error::Rebooting) => {
                let directory = config.directory.display();
                tracing::info!(%directory, "the machine reboots, and its agent with it");
            }
            ended => return ended,
        }
    }
}

/// The identity of the node that an agent is for, from its directory or, with its join token, from the gateway. Nothing when it was
/// stopped meanwhile.
///
/// # Errors
/// When the node can't be enrolled, or its files can't be used.
pub async fn enrol(config: &Config, stop: &CancellationToken) -> Result<Option<Identity>, Error> {
    identity::establish(config, stop).await
}

async fn run_once(config: Config, stop: CancellationToken) -> Result<(), Error> {
    let identity = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        identity = identity::establish(&config, &stop) => identity?,
    };
    let Some(identity) = identity else { return Ok(()) };
    let gateway = Arc::new(HttpGateway::new(&identity)?);
    run_with(config, identity, gateway, stop).await
}

/// Runs an agent that has its identity and its way to the gateway, once the machine is up.
///
/// # Errors
/// As [`run`]; and [`Error::Rebooting`] when the machine went down: whoever called this calls it again.
pub async fn run_with(
    config: Config,
    identity: Identity,
    gateway: Arc<dyn Gateway>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let crash = Crash::new(config.crash);
    let halt = CancellationToken::new();
    if let DriverConfig::Simulated(_) = &config.driver
        && simulated::booted(&config.directory, &config.clock, &stop).await? == Paused::Stopped
    {
        return Ok(());
    }
    let agent = Box::pin(assemble(config, identity, gateway, (&crash, &halt))).await?;
    let engine = Arc::clone(&agent.engine);
    let (inbox, tasks) = mpsc::channel(INBOX);
    let mut loops = JoinSet::new();
    loops.spawn(Arc::clone(&engine).run(tasks));
    loops.spawn(Arc::clone(&agent).run_heartbeats());
    loops.spawn(Arc::clone(&agent).run_waits(inbox));
    loops.spawn(agent.run_renewals());
    let ended = tokio::select! {
        biased;
        error = crash.happened() => Err(error),
        () = stop.cancelled() => Ok(()),
        Some(ended) = loops.join_next() => outcome(ended),
    };
    // Nothing is tidied up, but nothing of this run goes on behind the next one's back.
    halt.cancel();
    while loops.join_next().await.is_some() {}
    if ended.is_ok() {
        engine.journal().rest().await?;
    }
    ended
}

fn outcome(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    ended.map_err(Error::Panicked)?
}

async fn assemble(
    config: Config,
    identity: Identity,
    gateway: Arc<dyn Gateway>,
    (crash, halt): (&Crash, &CancellationToken),
) -> Result<Arc<Session>, Error> {
    let Config { directory, driver, clock, heartbeat, journal_bytes, .. } = config;
    let journal = Arc::new(Journal::open(&directory, clock.clone(), journal_bytes).await?);
    let line = Arc::new(Line::new(clock.clone()));
    let driver: Arc<dyn Driver> = match driver {
        DriverConfig::Given(driver) => driver,
        DriverConfig::Simulated(machine) => {
            let (crash, line) = (crash.clone(), Arc::clone(&line));
            Arc::new(Simulated::open(&directory, machine, clock.clone(), (crash, line))?)
        }
    };
    let verifier = Arc::new(Verifier::new(identity.node_id, identity.verifying_keys()?));
    let gateway: Arc<dyn Gateway> = Arc::new(Distant { gateway, line });
    let dice = Arc::new(Dice::fresh());
    let engine = Engine::new(Parts {
        journal: Arc::clone(&journal),
        driver: Arc::clone(&driver),
        gateway: Arc::clone(&gateway),
        verifier: Arc::clone(&verifier),
        clock: clock.clone(),
        dice: Arc::clone(&dice),
        halt: halt.clone(),
    });
    let (books, machine) = (journal, Arc::clone(&driver));
    Ok(Arc::new(Session {
        directory,
        identity: Mutex::new(identity),
        gateway,
        driver,
        engine: Arc::new(engine),
        reconciler: Reconciler { journal: books, driver: machine, left: Mutex::default() },
        verifier,
        clock,
        dice,
        heartbeat,
        halt: halt.clone(),
        renew: Notify::new(),
        revoked: AtomicBool::new(false),
    }))
}

/// Text that comes from elsewhere, as one short line.
pub(crate) fn sentence(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(MESSAGE_CHARS_MAX).map(clean).collect()
}
