//! A process that is kept running: started again when it ends, after a pause, until it is no longer wanted. It ends with us,
//! however we end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::exit::Done;
use crate::say;
use crate::up::place::{Place, write_json};

/// The pause before a process that ended is started again.
const REST: Duration = Duration::from_secs(1);
/// How long one may take to end when it is told to. Longer than it drains.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be kept running.
#[derive(Clone)]
pub(super) struct Wanted {
    /// What it is called here.
    pub(super) name: String,
    /// The program.
    pub(super) program: PathBuf,
    /// Its words.
    pub(super) words: Vec<OsString>,
    /// Its variables, on top of ours that are not about Berth.
    pub(super) variables: Vec<(&'static str, String)>,
}

/// The processes that live, by name. Clones share it. Whoever is in the place can read it, too.
#[derive(Clone)]
pub(super) struct Living {
    place: Place,
    now: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Living {
    /// Nobody lives yet.
    pub(super) fn new(place: &Place) -> Living {
        Living { place: place.clone(), now: Arc::default() }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    pub(super) fn all(&self) -> BTreeMap<String, u32> {
        self.locked().clone()
    }

    fn set(&self, name: &str, process: Option<u32>) {
        let mut now = self.locked();
        match process {
            Some(process) => now.insert(name.to_owned(), process),
            None => now.remove(name),
        };
        // Under the lock, so that the file ends with what is true. For people: nothing depends on it.
        let _ = write_json(&self.place.processes(), &*now);
    }
}

/// Several of them, that are ended together.
pub(super) struct Family {
    living: Living,
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl Family {
    /// With nobody in it yet.
    pub(super) fn new(living: &Living) -> Family {
        Family { living: living.clone(), running: JoinSet::new(), stop: CancellationToken::new() }
    }

    /// Keeps one running from now on.
    pub(super) fn keep(&mut self, wanted: Wanted) {
        self.running.spawn(keep(wanted, self.living.clone(), self.stop.clone()));
    }

    /// Ends all of them, and waits until they have.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }
}

async fn keep(wanted: Wanted, living: Living, stop: CancellationToken) {
    let name = wanted.name.as_str();
    while !stop.is_cancelled() {
        match wanted.spawn(&living.place.process_log(name)) {
            Ok(mut child) => {
                living.set(name, child.id());
                let ended = tokio::select! {
                    ended = child.wait() => ended,
                    () = stop.cancelled() => {
                        end(&mut child).await;
                        living.set(name, None);
                        return;
                    }
                };
                living.set(name, None);
                let how = ended.map_or_else(|error| error.to_string(), |ended| ended.to_string());
                tracing::warn!(name, how, "a process has ended and is started again");
                say::note(format!("{name} has ended ({how}) and is started again."));
            }
            Err(failure) => tracing::error!(name, why = failure.sentence, "it can't be started"),
        }
        let _ = timeout(REST, stop.cancelled()).await;
    }
}

impl Wanted {
    fn spawn(&self, log: &Path) -> Done<Child> {
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(log);
        let log = open.with_context(|| format!("{} can't be written to", log.display()))?;
        // `setpriv` keeps the process: what it becomes is told to end when we are gone.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(&self.program).args(&self.words);
        for (variable, _) in std::env::vars_os() {
            let ours = variable.to_string_lossy();
            if ours.starts_with("BERTH_") || ours == "DATABASE_URL" {
                command.env_remove(&variable);
            }
        }
        for (variable, value) in &self.variables {
            command.env(variable, value);
        }
        let errors = log.try_clone().context("its log can't be written to")?;
        // A Ctrl-C in the terminal is for us alone: we end the others in order.
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0).kill_on_drop(true);
        Ok(command
            .spawn()
            .with_context(|| format!("{} can't be started", self.program.display()))?)
    }
}

async fn end(child: &mut Child) {
    if let Some(process) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
    {
        let _ = kill_process(process, Signal::TERM);
    }
    if timeout(PATIENCE, child.wait()).await.is_err() {
        tracing::warn!("a process did not end in time, and is killed");
        let _ = child.kill().await;
    }
}
