//! A driver for a machine that does not exist: realistic phases and durations, checks that are really made, and the
//! faults it is told to have. What it builds lies on disk, and outlives the process.

mod hand;
mod restart;
mod trouble;
mod world;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use lifecycle::Code as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::Coded;
use wire::node::{Access, FailureReason, Gpu, Guest, Phase, Provision, Work};

use super::{Done, Driver, Failure, Job, Machine};
use crate::Error;
use crate::clock::{Clock, Paused, foretold, new_id, pause};
use crate::crash::Crash;
use crate::faults::{FaultKind, Faults};
use crate::journal::Place;
use crate::line::Line;
pub use hand::{Wiped, power_on, wipe};
pub(crate) use restart::booted;
use trouble::{Trouble, cleans, usual_seconds};
use world::{GuestFile, World};

const NETWORK_LOSS_SECONDS: u32 = 30;

/// What the simulated machine is like.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedConfig {
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Its images: name and SHA-256.
    pub images: Vec<(String, String)>,
    /// What durations are multiplied by; 0 is at once.
    pub speed: f64,
    /// What durations and chance follow from.
    pub seed: u64,
    /// The host that tenants are sent to.
    pub host: String,
}

impl SimulatedConfig {
    /// A machine with `count` GPUs of a model, spread over `numa` NUMA nodes.
    pub fn with_gpus(count: i16, numa: i16, model: &str) -> SimulatedConfig {
        let per_node = (count + numa.max(1) - 1) / numa.max(1);
        let gpu = |index| Gpu { index, model: model.to_owned(), numa: index / per_node.max(1) };
        SimulatedConfig {
            gpus: (0..count).map(gpu).collect(),
            images: Vec::new(),
            speed: 1.0,
            seed: 0,
            host: "localhost".to_owned(),
        }
    }
}

/// Every effect the simulated machine in `directory` has seen, in order; a phase that was asked for again has none.
///
/// # Errors
/// When there is no such machine.
pub fn effects(directory: &Path) -> Result<Vec<(Uuid, Phase)>, Error> {
    let world = World::open(directory).map_err(Error::file(directory))?;
    world.diary().map_err(Error::file(directory))
}

/// The simulated machine.
#[derive(Debug)]
pub(crate) struct Simulated {
    config: SimulatedConfig,
    boot_id: Uuid,
    world: World,
    clock: Clock,
    faults: Faults,
    crash: Crash,
    line: Arc<Line>,
}

impl Simulated {
    /// The machine in `directory`; a new one, if there is none.
    pub(crate) fn open(
        directory: &Path,
        config: SimulatedConfig,
        clock: Clock,
        (crash, line): (Crash, Arc<Line>),
    ) -> Result<Simulated, Error> {
        let world = World::open(directory).map_err(Error::file(directory))?;
        let boot_id = world.boot_id().map_err(Error::file(directory))?;
        let faults = Faults::new(directory, config.seed);
        Ok(Simulated { config, boot_id, world, clock, faults, crash, line })
    }

    async fn phase(
        &self,
        job: &Job,
        phase: Phase,
        stop: &CancellationToken,
    ) -> Result<Done, Failure> {
        let kind = job.work.kind();
        let faults = self.faults.take(kind, phase).unwrap_or_else(|error| {
            tracing::warn!(error = crate::client::chain(&error), "the faults can't be read");
            Vec::new()
        });
        let mut trouble = Trouble::default();
        for fault in &faults {
            trouble.add(fault, phase);
            match fault.fault.0 {
                FaultKind::Crash if !fault.after => self.crash.strike().await,
                FaultKind::NetworkLoss => {
                    let seconds = fault.seconds.unwrap_or(NETWORK_LOSS_SECONDS);
                    let direction = fault.direction.map(|direction| direction.0);
                    self.line.cut(Duration::from_secs(seconds.into()), direction);
                }
                FaultKind::Hang => {
                    stop.cancelled().await;
                    return Err(Failure::Stopped);
                }
                FaultKind::Crash
                | FaultKind::Fail
                | FaultKind::Slow
                | FaultKind::Residue
                | FaultKind::HardStop
                | FaultKind::NoReturn
                | FaultKind::SameBoot => {}
            }
        }
        let duration = self.duration(job, phase)?.mul_f64(trouble.factor);
        // A machine goes down at once: what takes time is to come back.
        if phase != Phase::Rebooted && pause(duration, stop).await == Paused::Stopped {
            return Err(Failure::Stopped);
        }
        if let Some(reason) = trouble.reason {
            return Err(Failure::because(reason, format!("a fault made {phase} fail")));
        }
        if phase == Phase::Rebooted {
            self.go_down(job, duration, &trouble).await?;
        }
        let done = self.effect(job, phase, &trouble)?;
        if trouble.crash_after {
            self.crash.strike().await;
        }
        Ok(done)
    }

    fn duration(&self, job: &Job, phase: Phase) -> Result<Duration, Failure> {
        // Where there is nothing to clean up, looking takes no time.
        if cleans(job.work.kind()) && !self.anything_of(job).map_err(broken)? {
            return Ok(Duration::ZERO);
        }
        let (high, low) = job.allocation.as_u64_pair();
        let chance = foretold(&[self.config.seed, high, low, phase.index() as u64]);
        let factor = self.config.speed * (0.8 + 0.4 * chance);
        Ok(Duration::from_secs(usual_seconds(job.work.kind(), phase)).mul_f64(factor.max(0.0)))
    }

    fn anything_of(&self, job: &Job) -> io::Result<bool> {
        if self.world.guest(job.allocation)?.is_some() {
            return Ok(true);
        }
        for place in &job.places {
            if self.world.residue(*place)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What the phase does to the world.
    fn effect(&self, job: &Job, phase: Phase, trouble: &Trouble) -> Result<Done, Failure> {
        let guest = self.world.guest(job.allocation).map_err(broken)?;
        let done = match &job.work {
            Work::SliceProvision(provision) | Work::UserProvision(provision) => {
                self.build(job, provision, phase, guest)?;
                Done::default()
            }
            Work::SliceRestart(_) | Work::NodeReboot(_) => {
                self.restart(job, phase, guest)?;
                Done::default()
            }
            Work::SliceRelease(_) => self.clear(job, phase, guest, trouble)?,
            Work::UserDeprovision(_) => {
                let done = self.clear(job, phase, guest, trouble)?;
                // An account whose sessions were ended is gone with them.
                if phase == Phase::ShutDown {
                    self.world.remove(job.allocation).map_err(broken)?;
                }
                done
            }
        };
        Ok(done)
    }

    fn build(
        &self,
        job: &Job,
        provision: &Provision,
        phase: Phase,
        guest: Option<GuestFile>,
    ) -> Result<(), Failure> {
        let is_first = matches!(phase, Phase::ImagePrepared | Phase::UserCreated);
        if is_first {
            self.places_are_free(job)?;
        }
        if phase == Phase::ImagePrepared {
            self.image_is_right(provision)?;
        }
        let mut guest = match guest {
            Some(guest) => guest,
            None if is_first => GuestFile {
                allocation: job.allocation,
                slots: provision.slots.iter().map(|slot| slot.index).collect(),
                image: provision.image.clone(),
                stage: Vec::new(),
                ssh_keys: provision.ssh_keys.clone(),
                boot_id: Uuid::nil(),
                restart: None,
            },
            None => {
                let message = format!("what was built before {phase} is gone");
                return Err(Failure::because(FailureReason::DriverFailed, message));
            }
        };
        if guest.stage.contains(&Coded(phase)) {
            return Ok(());
        }
        // From here on the tenant's traces are on the slots, whatever happens.
        if matches!(phase, Phase::VmStarted | Phase::UserCreated) {
            for place in &job.places {
                self.world.soil(*place, job.allocation).map_err(broken)?;
            }
        }
        if phase == Phase::VmStarted {
            guest.boot_id = new_id().map_err(broken)?;
        }
        guest.stage.push(Coded(phase));
        self.world.note(job.allocation, phase).map_err(broken)?;
        self.world.keep(&guest).map_err(broken)
    }

    fn places_are_free(&self, job: &Job) -> Result<(), Failure> {
        let overlaps = |guest: &GuestFile, place: Place| match place {
            Place::Machine => true,
            Place::Slot(index) => guest.slots.is_empty() || guest.slots.contains(&index),
        };
        let guests = self.world.guests().map_err(broken)?;
        for place in &job.places {
            let others = guests.iter().filter(|guest| guest.allocation != job.allocation);
            if let Some(other) = others.clone().find(|guest| overlaps(guest, *place)) {
                let message = format!("{place} is occupied by allocation {}", other.allocation);
                return Err(Failure::because(FailureReason::LeaseConflict, message));
            }
        }
        for place in self.places_below(&job.places) {
            let residue = self.world.residue(place).map_err(broken)?;
            if let Some(other) = residue.filter(|owner| *owner != job.allocation) {
                let message = format!("{place} holds traces of allocation {other}");
                return Err(Failure::because(FailureReason::DeviceDirty, message));
            }
        }
        Ok(())
    }

    /// Where traces of somebody would be in the way: a whole machine is all of its slots, a slot part of a machine.
    fn places_below(&self, places: &[Place]) -> Vec<Place> {
        let mut below = vec![Place::Machine];
        if places.contains(&Place::Machine) {
            below.extend(self.config.gpus.iter().map(|gpu| Place::Slot(gpu.index)));
        }
        below.extend(places.iter().filter(|place| **place != Place::Machine));
        below
    }

    fn image_is_right(&self, provision: &Provision) -> Result<(), Failure> {
        let name = &provision.image;
        let Some((_, sha256)) = self.config.images.iter().find(|(known, _)| known == name) else {
            let message = format!("the image `{name}` is not at hand");
            return Err(Failure::because(FailureReason::ImageUnavailable, message));
        };
        if !sha256.eq_ignore_ascii_case(&provision.image_sha256) {
            let asked = &provision.image_sha256;
            let message = format!("the image `{name}` is {sha256}, asked for was {asked}");
            return Err(Failure::because(FailureReason::ImageChecksumMismatch, message));
        }
        Ok(())
    }

    fn clear(
        &self,
        job: &Job,
        phase: Phase,
        guest: Option<GuestFile>,
        trouble: &Trouble,
    ) -> Result<Done, Failure> {
        match phase {
            Phase::Wiped => self.wipe(job, trouble)?,
            Phase::Undefined => self.world.remove(job.allocation).map_err(broken)?,
            Phase::LeasesReleased if self.anything_of(job).map_err(broken)? => {
                let message = "something of the allocation is still there";
                return Err(Failure::because(FailureReason::CleanupIncomplete, message));
            }
            Phase::LeasesReleased
            | Phase::AccessRevoked
            | Phase::ShutDown
            | Phase::Destroyed
            | Phase::ImagePrepared
            | Phase::SeedGenerated
            | Phase::DomainDefined
            | Phase::VmStarted
            | Phase::UserCreated
            | Phase::KeysInstalled
            | Phase::SshReachable
            | Phase::DriverProbe
            | Phase::Acknowledged
            | Phase::Rebooted
            | Phase::MountsReconciled
            | Phase::RuntimesReconciled => {}
        }
        let hard_stopped = trouble.hard_stop && guest.is_some();
        if let Some(mut guest) = guest.filter(|guest| !guest.stage.contains(&Coded(phase))) {
            self.world.note(job.allocation, phase).map_err(broken)?;
            guest.stage.push(Coded(phase));
            if phase != Phase::Undefined {
                self.world.keep(&guest).map_err(broken)?;
            }
        }
        Ok(Done { hard_stopped })
    }

    fn wipe(&self, job: &Job, trouble: &Trouble) -> Result<(), Failure> {
        if trouble.residue && !job.places.is_empty() {
            for place in &job.places {
                self.world.soil(*place, job.allocation).map_err(broken)?;
            }
            let message = "wiping left traces of the tenant".to_owned();
            return Err(Failure::Residue { message });
        }
        let mut had_traces = false;
        for place in &job.places {
            had_traces |= self.world.residue(*place).map_err(broken)?.is_some();
            self.world.wipe(*place).map_err(broken)?;
        }
        if had_traces {
            self.world.note(job.allocation, Phase::Wiped).map_err(broken)?;
        }
        Ok(())
    }
}

impl Driver for Simulated {
    fn perform<'a>(
        &'a self,
        job: &'a Job,
        phase: Phase,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Done, Failure>> {
        Box::pin(self.phase(job, phase, stop))
    }

    fn machine(&self) -> Machine {
        Machine {
            boot_id: self.boot_id,
            gpus: self.config.gpus.clone(),
            images: self.config.images.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    fn boot_id(&self, allocation: Uuid, work: &Work) -> Result<Option<Uuid>, Failure> {
        let guest = self.world.guest(allocation).map_err(broken)?;
        let guest = guest.filter(GuestFile::has_started);
        Ok(guest.map(|guest| match work {
            Work::UserProvision(_) | Work::UserDeprovision(_) | Work::NodeReboot(_) => self.boot_id,
            Work::SliceProvision(_) | Work::SliceRestart(_) | Work::SliceRelease(_) => {
                guest.boot_id
            }
        }))
    }

    fn guests(&self) -> Result<Vec<Guest>, Failure> {
        let guest =
            |guest: GuestFile| Guest { allocation_id: guest.allocation, slots: guest.slots };
        Ok(self.world.guests().map_err(broken)?.into_iter().map(guest).collect())
    }

    fn access(&self, job: &Job) -> Access {
        let slot = job.places.iter().find_map(|place| match place {
            Place::Machine => None,
            Place::Slot(index) => u16::try_from(*index).ok(),
        });
        Access {
            host: self.config.host.clone(),
            port: slot.map_or(22, |index| 2200 + index % 1000),
            user: "berth".to_owned(),
        }
    }
}

fn broken(error: io::Error) -> Failure {
    Failure::because(FailureReason::DriverFailed, format!("the simulated machine: {error}"))
}
