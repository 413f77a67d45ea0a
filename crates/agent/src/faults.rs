//! Faults that the simulated world is told to have: a list in `faults.json`, read anew before each phase.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lifecycle::codes;
use serde::{Deserialize, Serialize};
use wire::Coded;
use wire::node::{FailureReason, FailureReasonWord, Phase, PhaseWord, TaskKind};

use crate::Error;
use crate::clock::Dice;
use crate::durable::{self, Outlives};

const FILE: &str = "faults.json";

codes! {
    /// What goes wrong.
    pub enum FaultKind {
        Fail = "fail",
        Hang = "hang",
        Crash = "crash",
        Slow = "slow",
        NetworkLoss = "network_loss",
        Residue = "residue",
        HardStop = "hard_stop",
        NoReturn = "no_return",
        SameBoot = "same_boot",
    }
}

codes! {
    /// Which half of a line is lost.
    pub enum Direction {
        Out = "out",
        In = "in",
    }
}

/// One thing that goes wrong, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub fault: Coded<FaultKind>,
    /// In which phase; in any, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PhaseWord>,
    /// With which reason a phase fails; each phase has its own, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FailureReasonWord>,
    /// For which kind of task; for any, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Coded<TaskKind>>,
    /// How often still; for ever, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// How likely each time, from 0 to 1; always, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// How long the network is lost; 30 when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// Which half of the line is lost: what the agent says (`out`; it still gets tasks), or what it is answered (`in`;
    /// everything it says arrives). Both, when it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Coded<Direction>>,
    /// A crash strikes after the phase had its effect and before anybody wrote that down, instead of before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after: bool,
}

impl Fault {
    /// A fault that strikes at every phase, always.
    pub fn new(fault: FaultKind) -> Fault {
        Fault {
            fault: Coded(fault),
            phase: None,
            reason: None,
            kind: None,
            times: None,
            probability: None,
            seconds: None,
            direction: None,
            after: false,
        }
    }

    /// The same, in one phase alone.
    pub fn at(self, phase: Phase) -> Fault {
        Fault { phase: Some(Coded(phase)), ..self }
    }

    /// The same, so many times.
    pub fn times(self, times: u32) -> Fault {
        Fault { times: Some(times), ..self }
    }

    /// The same, for one kind of task alone.
    pub fn of(self, kind: TaskKind) -> Fault {
        Fault { kind: Some(Coded(kind)), ..self }
    }

    fn concerns(&self, kind: TaskKind, phase: Phase) -> bool {
        let place = match self.fault.0 {
            FaultKind::Residue => phase == Phase::Wiped,
            FaultKind::HardStop => phase == Phase::ShutDown,
            FaultKind::NoReturn | FaultKind::SameBoot => phase == Phase::Rebooted,
            FaultKind::Fail
            | FaultKind::Hang
            | FaultKind::Crash
            | FaultKind::Slow
            | FaultKind::NetworkLoss => true,
        };
        place
            && self.times != Some(0)
            && self.phase.is_none_or(|only| only.0 == phase)
            && self.kind.is_none_or(|only| only.0 == kind)
    }

    /// The reason it fails with in `phase`.
    pub fn reason_in(&self, phase: Phase) -> FailureReason {
        self.reason.map_or_else(|| usual_reason(phase), |reason| reason.0)
    }
}

const fn usual_reason(phase: Phase) -> FailureReason {
    match phase {
        Phase::ImagePrepared => FailureReason::ImageUnavailable,
        Phase::DomainDefined => FailureReason::VfioUnavailable,
        Phase::SshReachable => FailureReason::SshNotReady,
        Phase::DriverProbe => FailureReason::GuestNotReady,
        Phase::Wiped => FailureReason::CleanupIncomplete,
        Phase::SeedGenerated
        | Phase::VmStarted
        | Phase::UserCreated
        | Phase::KeysInstalled
        | Phase::AccessRevoked
        | Phase::ShutDown
        | Phase::Destroyed
        | Phase::Undefined
        | Phase::Acknowledged
        | Phase::LeasesReleased => FailureReason::DriverFailed,
        Phase::Rebooted => FailureReason::RebootFailed,
        Phase::MountsReconciled => FailureReason::MountsNotReady,
        Phase::RuntimesReconciled => FailureReason::RuntimesNotReady,
    }
}

/// Tells the simulated world of the agent in `directory` what goes wrong from now on.
///
/// # Errors
/// When the file can't be written.
pub fn write(directory: &Path, faults: &[Fault]) -> Result<(), Error> {
    std::fs::create_dir_all(directory).map_err(Error::file(directory))?;
    keep(&path(directory), faults)
}

/// The faults that are left in `directory`.
///
/// # Errors
/// When the file can't be read, or is no list of faults.
pub fn read(directory: &Path) -> Result<Vec<Fault>, Error> {
    let path = path(directory);
    let Some(bytes) = durable::find(&path).map_err(Error::file(&path))? else {
        return Ok(Vec::new());
    };
    serde_json::from_slice(&bytes).map_err(|error| Error::file(path)(error.into()))
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

fn keep(path: &Path, faults: &[Fault]) -> Result<(), Error> {
    let bytes =
        serde_json::to_vec_pretty(faults).map_err(|error| Error::file(path)(error.into()))?;
    durable::replace(path, &bytes, Outlives::Process).map_err(Error::file(path))
}

/// The faults of one simulated machine.
#[derive(Debug)]
pub(crate) struct Faults {
    directory: PathBuf,
    dice: Dice,
    /// Two tasks must not both take the last of a number of times.
    counting: Mutex<()>,
}

impl Faults {
    /// The faults in `directory`, with chance by `seed`.
    pub(crate) fn new(directory: &Path, seed: u64) -> Faults {
        let directory = directory.to_owned();
        Faults { directory, dice: Dice::seeded(seed), counting: Mutex::new(()) }
    }

    /// What goes wrong in this phase, counted down on disk before it does.
    pub(crate) fn take(&self, kind: TaskKind, phase: Phase) -> Result<Vec<Fault>, Error> {
        let _counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = read(&self.directory)?;
        let mut taken = Vec::new();
        let mut counted = false;
        for fault in all.iter_mut().filter(|fault| fault.concerns(kind, phase)) {
            if fault.probability.is_some_and(|probability| self.dice.roll() >= probability) {
                continue;
            }
            if let Some(times) = &mut fault.times {
                *times -= 1;
                counted = true;
            }
            taken.push(fault.clone());
        }
        if counted {
            keep(&path(&self.directory), &all)?;
        }
        Ok(taken)
    }
}
