//! The journal: what the agent has begun, done and said, on disk before it acts on it.
//! One writer at a time; a line is lost only if it is the last and was torn; the newest work of an allocation, never.

mod record;
mod state;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::TaskOutcome;

pub use record::{Lease, Mark, Place, Span};
pub use state::{Beginning, Entry, Standing};

use crate::Error;
use crate::clock::{Clock, Paused, pause};
use crate::durable;
use crate::verify::Accepted;
use record::{Flaw, Record};
use state::{Objection, State, beginning};

const FILE: &str = "journal";
const LOCK: &str = "lock";
/// A predecessor that was told to stop gets this long to let go of the directory.
const LOCK_ATTEMPTS: u32 = 250;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
/// A journal shorter than this is not worth rewriting.
pub const COMPACT_BYTES: u64 = 1 << 20;

/// What must have happened before an append is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// The line outlives the loss of power.
    Synced,
    /// The line outlives the process; losing it costs a repetition, not a mistake.
    Written,
}

/// The journal of one agent.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    clock: Clock,
    compact_bytes: u64,
    memory: Mutex<Memory>,
    disk: Arc<AsyncMutex<Disk>>,
}

/// The fold, and the lines that are part of it but not on disk yet, in the same order.
#[derive(Debug, Default)]
struct Memory {
    state: State,
    lines: String,
    synced: bool,
    appended: u64,
}

/// The file, held by whoever writes.
#[derive(Debug)]
struct Disk {
    file: File,
    bytes: u64,
    /// Compaction left this many.
    bytes_least: u64,
    written: u64,
    broken: bool,
    /// Held as long as anything may still write.
    _lock: File,
}

impl Journal {
    /// The journal in `directory`; nobody else may have it open.
    ///
    /// # Errors
    /// When it is in use, can't be read, or is damaged before its last line.
    pub async fn open(
        directory: &Path,
        clock: Clock,
        compact_bytes: u64,
    ) -> Result<Journal, Error> {
        fs::create_dir_all(directory).map_err(Error::file(directory))?;
        let lock = lock(directory).await?;
        let path = directory.join(FILE);
        let (state, bytes) = recover(&path)?;
        let disk = Disk {
            file: open_at_end(&path).map_err(Error::file(&path))?,
            bytes,
            bytes_least: 0,
            written: 0,
            broken: false,
            _lock: lock,
        };
        durable::sync_parent(&path).map_err(Error::file(&path))?;
        let memory = Mutex::new(Memory { state, ..Memory::default() });
        Ok(Journal { path, clock, compact_bytes, memory, disk: Arc::new(AsyncMutex::new(disk)) })
    }

    /// Begins a task, if the fence lets it; with its leases, if nobody else has them. A restart says which boot it is
    /// to end.
    ///
    /// # Errors
    /// When it can't be written down: then nothing may be done.
    pub async fn begin(&self, accepted: &Accepted, boot: Option<Uuid>) -> Result<Beginning, Error> {
        let (begun, number) = {
            let mut memory = self.memory();
            let considered = match memory.state.consider(accepted) {
                Ok(considered) => considered,
                Err(Objection::Newer(mark)) => return Ok(Beginning::Stale(mark)),
                Err(Objection::Over) => return Ok(Beginning::Over),
            };
            let record = beginning(accepted, considered.leases, boot);
            let number = self.append(&mut memory, &[record], Care::Synced)?;
            let entry = memory.state.entries.get(&accepted.task).cloned();
            let begun = match (considered.conflict, entry) {
                (Some((place, lease)), _) => Beginning::Conflict(place, lease),
                (None, Some(entry)) => Beginning::Begun(Box::new(entry)),
                (None, None) => return Err(self.impossible("a task that begins is not there")),
            };
            (begun, number)
        };
        self.flush(number).await?;
        Ok(begun)
    }

    /// A phase is done.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn phase_done(&self, task: Uuid, span: Span) -> Result<(), Error> {
        self.write(&[Record::PhaseDone { task, span }], Care::Synced).await
    }

    /// A task has ended with its last phase, or in a phase that did not succeed.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn finish(&self, task: Uuid, ending: Ending) -> Result<(), Error> {
        let Ending { last, failed, outcome } = ending;
        let mut records = Vec::with_capacity(2);
        records.extend(last.map(|span| Record::PhaseDone { task, span }));
        records.push(Record::Finished { task, outcome, failed });
        self.write(&records, Care::Synced).await
    }

    /// A task was stopped for newer work.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn supersede(
        &self,
        task: Uuid,
        outcome: TaskOutcome,
        failed: Option<Span>,
    ) -> Result<(), Error> {
        self.write(&[Record::Superseded { task, outcome, failed }], Care::Synced).await
    }

    /// The control plane handed the task out again under another number.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn redispatch(&self, task: Uuid, dispatch: i64) -> Result<(), Error> {
        self.note(task, Record::Redispatched { task, dispatch }).await
    }

    /// The control plane knows how the task ended.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn acknowledge(&self, task: Uuid) -> Result<(), Error> {
        self.note(task, Record::Acknowledged { task }).await
    }

    /// A later agent goes on with a task whose phase was entered by `deaths` others, who died there.
    ///
    /// # Errors
    /// When it can't be written down: then it must not go on.
    pub async fn resume(&self, task: Uuid, deaths: u32) -> Result<(), Error> {
        self.write(&[Record::Resumed { task, deaths }], Care::Synced).await
    }

    /// The agent ends because it was told to: what is under way does not count this as a death.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn rest(&self) -> Result<(), Error> {
        let open = self.open_entries().into_iter().filter(|entry| entry.outcome().is_none());
        let rested = |entry: Entry| Record::Rested { task: entry.accepted.task };
        let records: Vec<Record> = open.map(rested).collect();
        if records.is_empty() {
            return Ok(());
        }
        self.write(&records, Care::Written).await
    }

    /// The machine is about to be told to reboot, for the `times`th time since `since`.
    ///
    /// # Errors
    /// When it can't be written down: then it must not be told.
    pub async fn ask_reboot(&self, task: Uuid, times: u32, since: Timestamp) -> Result<(), Error> {
        self.write(&[Record::RebootAsked { task, times, since }], Care::Synced).await
    }

    /// An allocation is over and nothing of it is there: its leases are returned, and nothing begins for it any more.
    /// `false` when a task of it is under way, or it was closed before.
    ///
    /// # Errors
    /// When it can't be written down.
    pub async fn close(&self, allocation: Uuid) -> Result<bool, Error> {
        let number = {
            let mut memory = self.memory();
            if memory.state.works_for(allocation) || memory.state.closed.contains(&allocation) {
                return Ok(false);
            }
            self.append(&mut memory, &[Record::Closed { allocation }], Care::Synced)?
        };
        self.flush(number).await?;
        Ok(true)
    }

    /// What is known of a task.
    pub fn find(&self, task: Uuid) -> Option<Entry> {
        self.memory().state.entries.get(&task).cloned()
    }

    /// The newest work ever begun for an allocation.
    pub fn mark(&self, allocation: Uuid) -> Option<Mark> {
        self.memory().state.marks.get(&allocation).copied()
    }

    /// Every task that still has something to do or to say.
    pub fn open_entries(&self) -> Vec<Entry> {
        let memory = self.memory();
        memory.state.entries.values().filter(|entry| !entry.acknowledged).cloned().collect()
    }

    /// Who has which place.
    pub fn leases(&self) -> Vec<(Place, Lease)> {
        self.memory().state.leases.iter().map(|(place, lease)| (*place, *lease)).collect()
    }

    /// Waits until nothing is being written any more.
    pub async fn settle(&self) {
        drop(self.disk.lock().await);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, records: &[Record], care: Care) -> Result<(), Error> {
        let number = self.append(&mut self.memory(), records, care)?;
        self.flush(number).await
    }

    /// Writes down what is worth knowing of a task, if it is still remembered.
    async fn note(&self, task: Uuid, record: Record) -> Result<(), Error> {
        let number = {
            let mut memory = self.memory();
            if !memory.state.entries.contains_key(&task) {
                return Ok(());
            }
            self.append(&mut memory, &[record], Care::Written)?
        };
        self.flush(number).await
    }

    /// Puts records into the fold and into the queue, in one order.
    fn append(&self, memory: &mut Memory, records: &[Record], care: Care) -> Result<u64, Error> {
        for record in records {
            let line = record.line().map_err(|_| self.impossible("a record is no JSON"))?;
            memory.state.apply(record.clone()).map_err(|why| self.impossible(&why))?;
            memory.lines.push_str(&line);
        }
        memory.synced |= care == Care::Synced;
        memory.appended += 1;
        Ok(memory.appended)
    }

    /// Returns when append number `number` is on disk; whoever comes first writes for all who wait.
    async fn flush(&self, number: u64) -> Result<(), Error> {
        let disk = Arc::clone(&self.disk).lock_owned().await;
        if disk.broken {
            return Err(Error::file(&self.path)(io::Error::other("an earlier write failed")));
        }
        if disk.written >= number {
            return Ok(());
        }
        let job = self.job(&disk);
        let path = self.path.clone();
        let write = move || job.run(disk, &path);
        let written = match tokio::task::spawn_blocking(write).await {
            Ok(written) => written,
            Err(panic) => return Err(Error::Panicked(panic)),
        };
        written.map_err(Error::file(&self.path))
    }

    fn job(&self, disk: &Disk) -> Job {
        let mut memory = self.memory();
        let lines = std::mem::take(&mut memory.lines);
        let synced = std::mem::take(&mut memory.synced);
        let long = disk.bytes + lines.len() as u64;
        let snapshot = (long > self.compact_bytes && long > 2 * disk.bytes_least)
            .then(|| memory.state.snapshot(self.clock.now()));
        // What compaction leaves out of the file is forgotten, or the next one would not be shorter.
        if let Some(records) = &snapshot {
            let mut kept = State::default();
            if records.iter().try_for_each(|record| kept.apply(record.clone())).is_ok() {
                memory.state = kept;
            }
        }
        Job { lines, synced, upto: memory.appended, snapshot }
    }

    fn impossible(&self, why: &str) -> Error {
        Error::Journal { path: self.path.clone(), line: 0, why: why.to_owned() }
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The phase that was the last to succeed, unless it is written down already.
    pub last: Option<Span>,
    /// The phase that did not succeed.
    pub failed: Option<Span>,
    /// What the control plane is told.
    pub outcome: TaskOutcome,
}

/// What one turn of the writer does.
struct Job {
    lines: String,
    synced: bool,
    upto: u64,
    snapshot: Option<Vec<Record>>,
}

impl Job {
    fn run(self, mut disk: OwnedMutexGuard<Disk>, path: &Path) -> io::Result<()> {
        // Until it has worked it has failed: half a line may be in the file.
        disk.broken = true;
        match self.snapshot {
            None => {
                disk.file.write_all(self.lines.as_bytes())?;
                if self.synced {
                    disk.file.sync_data()?;
                }
                disk.bytes += self.lines.len() as u64;
            }
            Some(records) => {
                let bytes = rewrite(path, &records)?;
                disk.file = open_at_end(path)?;
                (disk.bytes, disk.bytes_least) = (bytes, bytes);
            }
        }
        disk.written = self.upto;
        disk.broken = false;
        Ok(())
    }
}

fn rewrite(path: &Path, records: &[Record]) -> io::Result<u64> {
    let lines: serde_json::Result<String> = records.iter().map(Record::line).collect();
    let lines = lines.map_err(io::Error::other)?;
    durable::replace(path, lines.as_bytes(), durable::Outlives::Power)?;
    Ok(lines.len() as u64)
}

fn open_at_end(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

async fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join(LOCK);
    let file = durable::create(&path).map_err(Error::file(&path))?;
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(error)) => return Err(Error::file(path)(error)),
        }
        let Paused::Whole = pause(LOCK_PAUSE, &CancellationToken::new()).await else { break };
    }
    Err(Error::Busy { directory: directory.to_owned() })
}

/// The fold over the file, and its length. A torn last line is cut off.
fn recover(path: &Path) -> Result<(State, u64), Error> {
    let bytes = durable::find(path).map_err(Error::file(path))?.unwrap_or_default();
    let mut state = State::default();
    let mut good = 0;
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_last = good + line.len() == bytes.len();
        let record = match line.strip_suffix(b"\n") {
            Some(text) => Record::read(text),
            None => Err(Flaw::Torn("it has no end")),
        };
        let why = match record {
            Ok(record) => state.apply(record).err(),
            Err(Flaw::Torn(why)) if is_last => {
                tracing::warn!(why, "the last line of the journal was torn, and is dropped");
                break;
            }
            Err(Flaw::Torn(why)) => Some(why.to_owned()),
            Err(Flaw::Foreign(why)) => Some(why),
        };
        if let Some(why) = why {
            return Err(Error::Journal { path: path.to_owned(), line: at + 1, why });
        }
        good += line.len();
    }
    if good < bytes.len() {
        cut(path, good as u64).map_err(Error::file(path))?;
    }
    Ok((state, good as u64))
}

fn cut(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(bytes)?;
    file.sync_all()
}
