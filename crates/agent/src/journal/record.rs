//! What the journal says, a line each: a checksum, a space, and the record as JSON.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use wire::Coded;
use wire::node::{PhaseWord, TaskKind, TaskOutcome};
use wire::seal::sha256_hex;

/// Something of the machine that one allocation has at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// All of it.
    Machine,
    /// One slot, by its number.
    Slot(i16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Machine => f.write_str("the machine"),
            Place::Slot(index) => write!(f, "slot {index}"),
        }
    }
}

/// A phase from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Which.
    pub phase: PhaseWord,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Whether something had to be ended by force in it.
    pub hard_stopped: bool,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// A task begins, with these leases.
    Began {
        /// The task.
        task: Uuid,
        /// Its dispatch.
        dispatch: i64,
        /// For which allocation.
        allocation: Uuid,
        /// For which operation.
        operation: Uuid,
        /// How new it is.
        fence: i64,
        /// What it is.
        kind: Coded<TaskKind>,
        /// What it takes; nothing when somebody else has it.
        leases: Vec<Place>,
        /// All of it, as it was signed.
        envelope: String,
        /// For a restart: the boot that it is to end, of the guest or of the machine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot: Option<Uuid>,
    },
    /// The agent of a later run goes on with a task.
    Resumed {
        /// The task.
        task: Uuid,
        /// So many agents have died in the phase it is in.
        deaths: u32,
    },
    /// The agent was stopped by an operator while the task was under way: that is no death.
    Rested {
        /// The task.
        task: Uuid,
    },
    /// The machine is told to reboot.
    RebootAsked {
        /// The task.
        task: Uuid,
        /// How often, with this one.
        times: u32,
        /// When it was told first.
        since: Timestamp,
    },
    /// The control plane said that an allocation is over, and nothing of it was there: its leases are returned, and
    /// nothing begins for it any more.
    Closed {
        /// The allocation.
        allocation: Uuid,
    },
    /// A phase is done, and is not done again.
    PhaseDone {
        /// The task.
        task: Uuid,
        /// The phase.
        span: Span,
    },
    /// The control plane handed the same task out again.
    Redispatched {
        /// The task.
        task: Uuid,
        /// The new number.
        dispatch: i64,
    },
    /// A task has ended.
    Finished {
        /// The task.
        task: Uuid,
        /// How.
        outcome: TaskOutcome,
        /// The phase it ended in, when that one did not succeed.
        failed: Option<Span>,
    },
    /// A task was stopped for newer work.
    Superseded {
        /// The task.
        task: Uuid,
        /// What the control plane is told.
        outcome: TaskOutcome,
        /// The phase it was in.
        failed: Option<Span>,
    },
    /// The control plane knows how a task ended.
    Acknowledged {
        /// The task.
        task: Uuid,
    },
    /// The newest work ever begun for an allocation; what compaction keeps of it for ever.
    Mark {
        /// The allocation.
        allocation: Uuid,
        /// Its newest work.
        mark: Mark,
    },
    /// Who has a place; what compaction keeps of it.
    Lease {
        /// The place.
        place: Place,
        /// Who has it.
        lease: Lease,
    },
}

/// The newest work ever begun for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// How new.
    pub fence: i64,
    /// Its highest dispatch.
    pub dispatch: i64,
    /// Which task it was.
    pub task: Uuid,
}

/// Who has a place, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The allocation.
    pub allocation: Uuid,
    /// Its operation.
    pub operation: Uuid,
}

const SUM: usize = 16;

impl Record {
    /// The line, with its end.
    pub(crate) fn line(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        Ok(format!("{} {json}\n", sum(&json)))
    }

    /// The record in a line without its end.
    pub(crate) fn read(line: &[u8]) -> Result<Record, Flaw> {
        let torn = || Flaw::Torn("its checksum does not hold");
        let line = std::str::from_utf8(line).map_err(|_| torn())?;
        let (stated, json) = line.split_once(' ').ok_or_else(torn)?;
        if stated != sum(json) {
            return Err(torn());
        }
        // Without serde's words: they might quote what is not for a log.
        serde_json::from_str(json).map_err(|_| Flaw::Foreign("it is no record".to_owned()))
    }
}

/// What is wrong with a line.
pub(crate) enum Flaw {
    /// It was not written to its end.
    Torn(&'static str),
    /// It was, but says nothing that can be understood.
    Foreign(String),
}

fn sum(json: &str) -> String {
    let mut sum = sha256_hex(json.as_bytes());
    sum.truncate(SUM);
    sum
}
