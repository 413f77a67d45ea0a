//! Restarts on the simulated machine: a guest that gets another boot, or the machine itself, which takes its agent with
//! it and lets it begin again once it is up.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use wire::Coded;
use wire::node::{FailureReason, Phase};

use super::trouble::{Back, Trouble};
use super::world::{Boot, GuestFile, Round, World};
use super::{Simulated, broken};
use crate::Error;
use crate::clock::{Clock, Paused, new_id, pause};
use crate::drivers::{Failure, Job};

/// A machine that somebody switched on is noticed after this long at the latest.
const LOOK: Duration = Duration::from_secs(1);

impl Simulated {
    /// What a phase of a restart does to the guest. Nothing but its boot changes, and that once.
    pub(super) fn restart(
        &self,
        job: &Job,
        phase: Phase,
        guest: Option<GuestFile>,
    ) -> Result<(), Failure> {
        let (mut guest, mut round) = self.round(job, guest)?;
        if round.stage.contains(&Coded(phase)) {
            return Ok(());
        }
        if phase == Phase::VmStarted {
            guest.boot_id = new_id().map_err(broken)?;
        }
        round.stage.push(Coded(phase));
        guest.restart = Some(round);
        self.world.note(job.allocation, phase).map_err(broken)?;
        self.world.keep(&guest).map_err(broken)
    }

    /// The guest, and how far the restart that ends this boot has got.
    fn round(&self, job: &Job, guest: Option<GuestFile>) -> Result<(GuestFile, Round), Failure> {
        let guest = guest.filter(GuestFile::has_started);
        let (Some(mut guest), Some(boot_id)) = (guest, job.boot) else {
            let message = "nothing of the allocation runs on the machine";
            return Err(Failure::because(FailureReason::GuestMissing, message));
        };
        let round = guest.restart.take().filter(|round| round.boot_id == boot_id);
        Ok((guest, round.unwrap_or(Round { boot_id, stage: Vec::new() })))
    }

    /// The machine goes down, and its agent with it: this does not return.
    pub(super) async fn go_down(
        &self,
        job: &Job,
        boots_for: Duration,
        trouble: &Trouble,
    ) -> Result<(), Failure> {
        let guest = self.world.guest(job.allocation).map_err(broken)?;
        self.round(job, guest.clone())?;
        let up_at = self.clock.now().saturating_add(boots_for).unwrap_or(Timestamp::MAX);
        let boot = match trouble.back {
            Back::Never => Boot::WhenSwitchedOn,
            Back::Anew | Back::AsItWas => Boot::At(up_at),
        };
        self.world.go_down(boot).map_err(broken)?;
        if trouble.back == Back::Anew {
            self.restart(job, Phase::Rebooted, guest)?;
            self.world.boot().map_err(broken)?;
        }
        if trouble.crash_after {
            self.crash.strike().await;
        }
        self.crash.go_down().await;
        Ok(())
    }
}

/// Waits until the machine in `directory` is up.
pub(crate) async fn booted(
    directory: &Path,
    clock: &Clock,
    stop: &CancellationToken,
) -> Result<Paused, Error> {
    let world = World::open(directory).map_err(Error::file(directory))?;
    loop {
        let left = match world.booting().map_err(Error::file(directory))? {
            None => return Ok(Paused::Whole),
            Some(Boot::WhenSwitchedOn) => LOOK,
            Some(Boot::At(up_at)) => {
                let left = up_at.duration_since(clock.now());
                Duration::try_from(left).unwrap_or(Duration::ZERO)
            }
        };
        if left.is_zero() {
            world.is_up().map_err(Error::file(directory))?;
        } else if pause(left.min(LOOK), stop).await == Paused::Stopped {
            return Ok(Paused::Stopped);
        }
    }
}
