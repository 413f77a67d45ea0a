//! What touches the machine. The engine knows phases, leases and the journal; a driver does one phase of one piece of
//! work, may be asked for it again after a crash, and says what is there.

pub mod simulated;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{Access, FailureReason, Gpu, Guest, Phase, Work};

use crate::journal::Place;

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// For which allocation.
    pub allocation: Uuid,
    /// What to do.
    pub work: Work,
    /// What it may touch: the leases it holds. A clean-up may hold fewer than it names.
    pub places: Vec<Place>,
    /// For a restart: the boot that it is to end. What has another one by now was restarted already.
    pub boot: Option<Uuid>,
}

/// What is worth knowing of a phase that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Something did not stop when asked, and was ended by force.
    pub hard_stopped: bool,
}

/// Why a phase did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was asked to stop, and nothing of it runs any more.
    Stopped,
    /// A clean-up left something of the tenant behind.
    Residue {
        /// What, in a sentence.
        message: String,
    },
    /// It could not be done.
    Failed {
        /// Why, in a word.
        reason: FailureReason,
        /// Why, in a sentence.
        message: String,
    },
}

impl Failure {
    /// A [`Failure::Failed`].
    pub fn because(reason: FailureReason, message: impl Into<String>) -> Failure {
        Failure::Failed { reason, message: message.into() }
    }
}

/// What the machine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// New with every boot.
    pub boot_id: Uuid,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The images at hand, by name.
    pub images: Vec<String>,
}

/// What touches the machine.
pub trait Driver: Send + Sync + 'static {
    /// Does one phase. It returns early when `stop` says so, and then only once nothing of it runs any more.
    /// A phase that was done before and is asked for again changes nothing. [`Phase::Rebooted`] ends the agent, and
    /// returns only if the machine did not go down.
    fn perform<'a>(
        &'a self,
        job: &'a Job,
        phase: Phase,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Done, Failure>>;

    /// What the machine is made of.
    fn machine(&self) -> Machine;

    /// The present boot of what the work is about: of the allocation's guest, or of the machine. `None` when it is not
    /// there.
    ///
    /// # Errors
    /// When the machine can't be asked.
    fn boot_id(&self, allocation: Uuid, work: &Work) -> Result<Option<Uuid>, Failure>;

    /// What is there for allocations, finished or not.
    ///
    /// # Errors
    /// When the machine can't be asked.
    fn guests(&self) -> Result<Vec<Guest>, Failure>;

    /// How a tenant reaches what was prepared.
    fn access(&self, job: &Job) -> Access;
}
