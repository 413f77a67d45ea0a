//! The allocation: a tenant's hold on GPUs, from the request to the proof that nothing was left behind.
//! One machine for both capacity shapes.

use Event::*;
use Status::*;
use lifecycle::Source::{Operator, Timer, User, Worker};
use lifecycle::{
    Column, Guard, Kind, Machine, Rule, Stamp, StatusSpec, codes, lawful, on, parked, restful,
    terminal, transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where an allocation stands.
    pub enum Status {
        Requested = "requested",
        Provisioning = "provisioning",
        Active = "active",
        Restarting = "restarting",
        RestartFailed = "restart_failed",
        Releasing = "releasing",
        ReleaseFailed = "release_failed",
        Released = "released",
        Failed = "failed",
    }
}

codes! {
    /// What can happen to an allocation.
    pub enum Event {
        ProvisionStarted = "provision.started",
        ProvisionSucceeded = "provision.succeeded",
        ProvisionFailed = "provision.failed",
        RestartRequested = "restart.requested",
        RestartCompleted = "restart.completed",
        RestartFailedToReturn = "restart.failed",
        ReleaseRequested = "release.requested",
        ReleaseCompleted = "release.completed",
        ReleaseExhausted = "release.exhausted",
        ReleaseAbandoned = "release.abandoned",
    }
}

/// When it first became usable.
pub const ACTIVE_AT: Column = Column::new("active_at", Kind::Time);
/// When it left the tenant's hands. Nobody pays for anything after this, so a retried release leaves it alone.
pub const RELEASE_REQUESTED_AT: Column = Column::new("release_requested_at", Kind::Time);
/// Nothing on a node is still working for it.
pub const NO_LIVE_TASKS: Guard = Guard("no_live_tasks");

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Allocation;

impl Machine for Allocation {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "allocation";
    const INITIAL: Status = Requested;
    const BORN: &'static [&'static str] = &["provisioning.requested"];

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Requested, Worker, 30, ProvisionFailed, "capacity is reserved, work has not begun"),
        transient(Provisioning, Worker, 600, ProvisionFailed, "the node's agent prepares it"),
        restful(Active, "usable by the tenant, and billed"),
        transient(Restarting, Worker, 900, RestartFailedToReturn, "the machine reboots; still the tenant's, still billed"),
        parked(RestartFailed, User, 86_400, "still the tenant's, needs attention, not billed"),
        transient(Releasing, Worker, 600, ReleaseExhausted, "clean-up runs; not billed"),
        parked(ReleaseFailed, Operator, 3_600, "clean-up gave up; not billed; the capacity stays assigned"),
        terminal(Released, "clean-up is proven, or an operator answers for it").entering(Stamp::now(ENDED_AT)),
        terminal(Failed, "provisioning gave up; the capacity is freed after clean-up").entering(Stamp::now(ENDED_AT)),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(ProvisionStarted).by(&[Worker])
            .moves(&[Requested], Provisioning)
            .duplicate_in(&[Provisioning])
            .late_in(&[Active, Restarting, RestartFailed, Releasing, ReleaseFailed, Released, Failed]),
        // A success that comes after a release was asked for never revives: the release cleans up what it built.
        on(ProvisionSucceeded).by(&[Worker]).same_operation()
            .moves(&[Provisioning], Active)
            .stamps(Stamp::now(ACTIVE_AT))
            .publishes("provisioning.active")
            .duplicate_in(&[Active])
            .late_in(&[Restarting, RestartFailed, Releasing, ReleaseFailed, Released, Failed])
            .bug_in(&[Requested]),
        on(ProvisionFailed).by(&[Worker, Timer]).same_operation()
            .moves(&[Requested, Provisioning], Failed)
            .takes(REASON)
            .publishes("provisioning.failed")
            .duplicate_in(&[Failed])
            .late_in(&[Active, Restarting, RestartFailed, Releasing, ReleaseFailed, Released]),
        on(RestartRequested).by(&[User, Operator]).opens_operation()
            .moves(&[Active, RestartFailed], Restarting)
            .stamps(Stamp::clear(REASON))
            .publishes("provisioning.restart.requested")
            .duplicate_in(&[Restarting])
            .late_in(&[Releasing, ReleaseFailed, Released, Failed])
            .bug_in(&[Requested, Provisioning]),
        on(RestartCompleted).by(&[Worker]).same_operation()
            .moves(&[Restarting], Active)
            .publishes("provisioning.restart.completed")
            .duplicate_in(&[Active])
            .late_in(&[RestartFailed, Releasing, ReleaseFailed, Released, Failed])
            .bug_in(&[Requested, Provisioning]),
        on(RestartFailedToReturn).by(&[Worker, Timer]).same_operation()
            .moves(&[Restarting], RestartFailed)
            .takes(REASON)
            .publishes("provisioning.restart.failed")
            .duplicate_in(&[RestartFailed])
            .late_in(&[Active, Releasing, ReleaseFailed, Released, Failed])
            .bug_in(&[Requested, Provisioning]),
        // From `requested`, `provisioning` and `restarting` this is a cancel: the release cleans up what was begun.
        on(ReleaseRequested).by(&[User, Operator, Worker]).opens_operation()
            .moves(&[Requested, Provisioning, Active, Restarting, RestartFailed, ReleaseFailed], Releasing)
            .takes(REASON)
            .stamps(Stamp::now(RELEASE_REQUESTED_AT)
                .coming_from(&[Requested, Provisioning, Active, Restarting, RestartFailed]))
            .publishes("provisioning.releasing.requested")
            .duplicate_in(&[Releasing])
            .late_in(&[Released, Failed]),
        // A proof that arrives after giving up still counts.
        on(ReleaseCompleted).by(&[Worker]).same_operation()
            .moves(&[Releasing, ReleaseFailed], Released)
            .guarded(NO_LIVE_TASKS)
            .publishes("provisioning.releasing.completed")
            .duplicate_in(&[Released])
            .bug_in(&[Requested, Provisioning, Active, Restarting, RestartFailed, Failed]),
        on(ReleaseExhausted).by(&[Worker, Timer, Operator]).same_operation()
            .moves(&[Releasing], ReleaseFailed)
            .takes(REASON)
            .publishes("provisioning.release_failed")
            .duplicate_in(&[ReleaseFailed])
            .late_in(&[Released])
            .bug_in(&[Requested, Provisioning, Active, Restarting, RestartFailed, Failed]),
        on(ReleaseAbandoned).by(&[Operator])
            .moves(&[ReleaseFailed], Released)
            .takes(REASON)
            .guarded(NO_LIVE_TASKS)
            .publishes("provisioning.releasing.completed")
            .duplicate_in(&[Released])
            .late_in(&[Releasing])
            .bug_in(&[Requested, Provisioning, Active, Restarting, RestartFailed, Failed]),
    ];
}

lawful!(Allocation);
