//! The Postgres of `berth up`: started, started again whenever it ends, and stopped by one thread. A server ends with the thread
//! that started it, so that thread lives as long as the database is wanted.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use store::cluster::{Cluster, Durability};

use super::place::Place;
use super::steps::Steps;
use crate::exit::{Done, Exit, Failure};
use crate::say;

/// The database in a cluster of our own.
const DATABASE: &str = "berth";
/// How often it is looked whether the server lives.
const LOOK: Duration = Duration::from_millis(100);
/// The pause before a server is tried again that could not be started.
const REST: Duration = Duration::from_secs(1);

/// A Postgres that is kept running until it is stopped.
pub(super) struct Postgres {
    url: String,
    /// Dropped, it ends the thread, and with it the server.
    stop: Sender<()>,
    keeper: JoinHandle<()>,
}

impl Postgres {
    /// Starts it, and makes its database if it is not there yet.
    pub(super) fn start(place: &Place, steps: &mut Steps) -> Done<Postgres> {
        steps.begin("Postgres");
        let folder = place.postgres();
        let made = !folder.join("data").exists();
        let (stop, stopped) = channel();
        let (tells, told) = channel();
        let keeper = std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || keep(&folder, &tells, &stopped))
            .context("a thread can't be had")?;
        let ended = || Err(Failure::new(Exit::Failed, "who keeps Postgres running has ended"));
        match told.recv().unwrap_or_else(|_| ended()) {
            Ok(url) => {
                steps.done(if made { "a new cluster" } else { "" });
                Ok(Postgres { url, stop, keeper })
            }
            Err(failure) => {
                steps.failed();
                Err(failure)
            }
        }
    }

    /// The address of its database.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Stops it, and waits until it has ended.
    pub(super) fn stop(self, steps: &mut Steps) {
        steps.begin("Stopping Postgres");
        drop(self.stop);
        // Who panicked has dropped the cluster, too.
        let _ = self.keeper.join();
        steps.done("");
    }
}

/// Keeps a server running until `stop` is dropped; `tells` hears where its database is.
fn keep(folder: &Path, tells: &Sender<Done<String>>, stop: &Receiver<()>) {
    let mut cluster = match first(folder) {
        Ok(cluster) => cluster,
        Err(failure) => {
            let _ = tells.send(Err(failure));
            return;
        }
    };
    let _ = tells.send(Ok(cluster.url(DATABASE)));
    while is_wanted(stop, LOOK) {
        let Some(how) = cluster.ended() else { continue };
        tracing::warn!(how, "Postgres has ended and is started again");
        say::note(format!("Postgres has ended ({how}) and is started again."));
        match again(folder, stop) {
            Some(started) => cluster = started,
            None => return,
        }
    }
}

fn first(folder: &Path) -> Done<Cluster> {
    let cluster = Cluster::start(folder, Durability::Full)?;
    make_database(&cluster)?;
    Ok(cluster)
}

/// Tries until it runs, or is no longer wanted.
fn again(folder: &Path, stop: &Receiver<()>) -> Option<Cluster> {
    loop {
        match Cluster::start(folder, Durability::Full) {
            Ok(cluster) => {
                tracing::info!("Postgres is back");
                return Some(cluster);
            }
            Err(error) => tracing::error!(%error, "Postgres can't be started again"),
        }
        if !is_wanted(stop, REST) {
            return None;
        }
    }
}

/// Waits; whether it is still wanted then.
fn is_wanted(stop: &Receiver<()>, wait: Duration) -> bool {
    stop.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
}

/// Makes the database, if it is not there yet.
fn make_database(cluster: &Cluster) -> Done {
    let output = Command::new(cluster.binaries.join("createdb"))
        .env("LC_ALL", "C")
        .current_dir(Path::new("/"))
        .args(["--username", "berth", "--host"])
        .arg(cluster.socket_directory())
        .arg(DATABASE)
        .output()
        .context(
            "the program createdb can't be run: install the Debian package `postgresql-client`",
        )?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || said.contains("already exists") {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, format!("the database can't be made: {}", said.trim())))
}
