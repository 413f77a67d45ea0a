//! What goes wrong in one phase of the simulated machine, and how long it takes when nothing does.

use wire::node::{FailureReason, Phase, TaskKind};

use crate::faults::{Fault, FaultKind};

const SLOW_FACTOR: f64 = 10.0;

/// How a machine comes back from a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// In a new boot.
    Anew,
    /// In the boot it was in: it only looked as if it went down.
    AsItWas,
    /// Not at all, until somebody switches it on.
    Never,
}

/// What the faults of one phase come to.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) factor: f64,
    pub(super) reason: Option<FailureReason>,
    pub(super) residue: bool,
    pub(super) hard_stop: bool,
    pub(super) crash_after: bool,
    /// How the machine comes back from a reboot.
    pub(super) back: Back,
}

impl Default for Trouble {
    fn default() -> Trouble {
        Trouble {
            factor: 1.0,
            reason: None,
            residue: false,
            hard_stop: false,
            crash_after: false,
            back: Back::Anew,
        }
    }
}

impl Trouble {
    pub(super) fn add(&mut self, fault: &Fault, phase: Phase) {
        match fault.fault.0 {
            FaultKind::Fail => self.reason = Some(fault.reason_in(phase)),
            FaultKind::Slow => self.factor *= SLOW_FACTOR,
            FaultKind::Residue => self.residue = true,
            FaultKind::HardStop => self.hard_stop = true,
            FaultKind::Crash => self.crash_after |= fault.after,
            FaultKind::NoReturn => self.back = Back::Never,
            FaultKind::SameBoot => self.back = Back::AsItWas,
            FaultKind::Hang | FaultKind::NetworkLoss => {}
        }
    }
}

/// Whether a kind of task cleans up.
pub(super) const fn cleans(kind: TaskKind) -> bool {
    match kind {
        TaskKind::SliceProvision
        | TaskKind::UserProvision
        | TaskKind::SliceRestart
        | TaskKind::NodeReboot => false,
        TaskKind::SliceRelease | TaskKind::UserDeprovision => true,
    }
}

/// How long a phase takes at speed 1.
pub(super) const fn usual_seconds(kind: TaskKind, phase: Phase) -> u64 {
    match phase {
        Phase::ImagePrepared => 90,
        Phase::SeedGenerated | Phase::KeysInstalled | Phase::Undefined | Phase::LeasesReleased => 1,
        Phase::DomainDefined | Phase::UserCreated | Phase::AccessRevoked | Phase::Destroyed => 2,
        Phase::VmStarted => 12,
        Phase::SshReachable => match kind {
            // A machine that runs already answers at once.
            TaskKind::UserProvision => 2,
            TaskKind::SliceProvision
            | TaskKind::SliceRestart
            | TaskKind::SliceRelease
            | TaskKind::UserDeprovision
            | TaskKind::NodeReboot => 60,
        },
        Phase::DriverProbe => 15,
        Phase::ShutDown => 10,
        Phase::Wiped => 30,
        Phase::Acknowledged | Phase::MountsReconciled | Phase::RuntimesReconciled => 1,
        Phase::Rebooted => 180,
    }
}
