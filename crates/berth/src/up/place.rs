//! Where an installation on this machine keeps everything, and who has it: one process at a time, by a lock that ends with
//! the process however it ends.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::{Done, Exit, Failure};

/// Where an installation is.
#[derive(Args, Clone)]
pub(crate) struct Placed {
    /// Where everything is kept: /var/lib/berth for root, else berth in $XDG_DATA_HOME or ~/.local/share
    #[arg(long = "data", env = "BERTH_DATA", value_name = "DIR")]
    folder: Option<PathBuf>,
}

impl Placed {
    /// The place that is meant. Nothing is made there yet.
    pub(crate) fn place(&self) -> Done<Place> {
        let given = self.folder.clone().filter(|folder| !folder.as_os_str().is_empty());
        let root = given.or_else(usual).context("there is no home directory: give --data")?;
        Ok(Place { root: std::path::absolute(root).context("the folder can't be used")? })
    }
}

fn usual() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/berth"));
    }
    let set = std::env::var_os("XDG_DATA_HOME").filter(|value| !value.is_empty());
    let folder = set.map(PathBuf::from);
    Some(folder.or_else(|| Some(std::env::home_dir()?.join(".local/share")))?.join("berth"))
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    root: PathBuf,
}

/// What is known of a process that runs here and is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// The process.
    pub(crate) process: u32,
    /// Where people come in.
    pub(crate) api: String,
    /// Where agents come in.
    pub(crate) gateway: String,
    /// Since when it is ready.
    pub(crate) since: Timestamp,
}

impl Place {
    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is where it is looked for when nobody says.
    pub(crate) fn is_usual(&self) -> bool {
        usual().as_ref() == Some(&self.root)
    }

    /// The private Postgres.
    pub(crate) fn postgres(&self) -> PathBuf {
        self.root.join("postgres")
    }

    /// The simulated nodes.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.root.join("nodes")
    }

    /// What the process has to say.
    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("berth.log")
    }

    /// What `berth up --scaled` keeps beside the database.
    pub(crate) fn scaled(&self) -> PathBuf {
        self.root.join("scaled")
    }

    /// What one of its processes has to say.
    pub(crate) fn process_log(&self, name: &str) -> PathBuf {
        self.scaled().join(format!("{name}.log"))
    }

    /// Which of its processes live, by name.
    pub(crate) fn processes(&self) -> PathBuf {
        self.root.join("processes.json")
    }

    /// The passwords that were made up.
    pub(crate) fn credentials(&self) -> PathBuf {
        self.root.join("credentials.json")
    }

    fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn running(&self) -> PathBuf {
        self.root.join("running.json")
    }

    /// Makes the folders.
    pub(crate) fn prepare(&self) -> Done {
        // As root the server of the database is somebody else, who has to get through to its own folder.
        let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
        let make = |folder: &Path, mode: u32| {
            let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
            made.with_context(|| format!("{} can't be made", folder.display()))
        };
        make(&self.root, mode)?;
        make(&self.nodes(), 0o700)?;
        Ok(())
    }

    /// Takes the place for this process.
    pub(crate) fn take(&self) -> Done<Taken> {
        let path = self.lock();
        let failed = || format!("{} can't be used", path.display());
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file = open.with_context(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(self.taken_by(self.holder())),
            Err(error) => return Err(Failure::from(anyhow::Error::new(error).context(failed()))),
        }
        file.set_len(0).with_context(failed)?;
        file.rewind().with_context(failed)?;
        write!(file, "{}", std::process::id()).with_context(failed)?;
        file.sync_all().with_context(failed)?;
        Ok(Taken { place: self.clone(), _lock: file })
    }

    fn taken_by(&self, holder: Option<u32>) -> Failure {
        let who = holder
            .map_or_else(|| "another process".to_owned(), |process| format!("process {process}"));
        Failure::new(Exit::Conflict, format!("{who} runs in {} already", self.root.display()))
            .with(
                "advice",
                "stop it, or give another folder and other ports: --data, --api, --gateway",
            )
            .next("down")
    }

    /// The process that has the place, if one does.
    pub(crate) fn holder(&self) -> Option<u32> {
        let mut file = File::open(self.lock()).ok()?;
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => {}
            Ok(()) | Err(_) => return None,
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        text.trim().parse().ok().filter(|process| *process > 1)
    }

    /// Returns once nobody has the place.
    pub(crate) fn wait_until_free(&self) {
        if let Ok(file) = File::open(self.lock()) {
            // It may be interrupted; who asks looks again anyway.
            let _ = flock(&file, FlockOperation::LockShared);
        }
    }

    /// What the process that has the place says of itself.
    pub(crate) fn running_now(&self) -> Option<Running> {
        let holder = self.holder()?;
        let running: Running = read_json(&self.running()).ok().flatten()?;
        (running.process == holder).then_some(running)
    }

    /// The end of the log, for somebody who wonders why.
    pub(crate) fn log_end(&self, lines_max: usize) -> Vec<String> {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(lines_max);
        lines[from..].iter().map(|line| (*line).to_owned()).collect()
    }
}

/// A place that is this process's. It is given back with the process.
pub(crate) struct Taken {
    place: Place,
    _lock: File,
}

impl Taken {
    /// Says that it is ready.
    pub(crate) fn announce(&self, running: &Running) -> Done {
        write_json(&self.place.running(), running)
    }

    /// Takes that back.
    pub(crate) fn retract(&self) {
        let _ = std::fs::remove_file(self.place.running());
    }
}

/// What a file of ours says; nothing when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Done<Option<T>> {
    let failed = || format!("{} can't be read", path.display());
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).with_context(failed)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::from(anyhow::Error::new(error).context(failed()))),
    }
}

/// Replaces a file of ours as a whole; only its owner can read it.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Done {
    let failed = || format!("{} can't be written", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    // A fresh file of this kind is for its owner alone.
    let mut draft = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    serde_json::to_writer_pretty(&mut draft, value).with_context(failed)?;
    draft.as_file().sync_all().with_context(failed)?;
    draft.persist(path).with_context(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{Placed, Running};
    use crate::exit::Exit;

    #[test]
    fn a_place_is_one_process_s_and_says_whose() {
        let folder = tempfile::tempdir().expect("a folder");
        let placed = Placed { folder: Some(folder.path().join("deep")) };
        let place = placed.place().expect("it is one");
        assert!(place.prepare().is_ok());
        assert_eq!(place.holder(), None);
        let taken = place.take().expect("it is free");
        assert_eq!(place.holder(), Some(std::process::id()));
        let Err(failure) = place.take() else { panic!("it was given out twice") };
        assert_eq!(failure.exit, Exit::Conflict);
        assert!(failure.sentence.contains(&std::process::id().to_string()));
        let running = Running {
            process: std::process::id(),
            api: "http://a".to_owned(),
            gateway: "https://g".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        };
        assert!(taken.announce(&running).is_ok());
        assert_eq!(place.running_now(), Some(running));
        drop(taken);
        assert_eq!(place.running_now(), None, "what it said of itself went with it");
        assert!(place.take().is_ok());
    }
}
