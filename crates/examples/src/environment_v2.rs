//! The environment redesigned: the wish to clean up is the status `retiring`, `destroyed` is final,
//! and every answer names the operation it is about. A lost destroy stays correctable: its own late
//! proof still counts.

use lifecycle::{
    Guard, Machine, Rule, Source, Stamp, StatusSpec, codes, lawful, on, parked, restful, terminal,
    transient,
};

use crate::columns::{
    IS_MANAGED, PATH, RETIRING_SINCE, UPDATED_AT, WORKSPACE_PATH_ABSENT, WORKSPACE_PATH_PRESENT,
};
use Event as E;
use Status as S;

codes! {
    /// Where an environment stands.
    pub enum Status {
        Provisioning = "provisioning",
        Ready = "ready",
        Error = "error",
        Retiring = "retiring",
        Destroying = "destroying",
        Destroyed = "destroyed",
    }
}

codes! {
    /// What can be reported of an environment.
    pub enum Event {
        ProvisionRequested = "provision.requested",
        ProvisionSucceeded = "provision.succeeded",
        ProvisionFailed = "provision.failed",
        ProvisionCancelled = "provision.cancelled",
        RetireRequested = "retire.requested",
        DestroyDispatched = "destroy.dispatched",
        DestroySucceeded = "destroy.succeeded",
        DestroyFailed = "destroy.failed",
        DestroyLost = "destroy.lost",
        CleanupCompleted = "cleanup.completed",
    }
}

/// No thread of the environment is in use: each is archived or deleted.
pub const NO_LIVE_THREAD: Guard = Guard("noLiveThread");
/// No thread of the environment is stopping, not even a deleted one.
pub const NO_STOPPING_THREAD: Guard = Guard("noStoppingThread");

/// The topic on which every move of an environment is made known.
pub const STATUS_CHANGED: &str = "environment.status-changed";

/// How long a provision may take.
pub const PROVISIONING_SECONDS_MAX: u32 = 900;
/// How long threads may hold up a destroy before an operator has a look.
pub const RETIRING_SECONDS_MAX: u32 = 86_400;
/// How long a destroy may take.
pub const DESTROYING_SECONDS_MAX: u32 = 600;

/// The environment machine.
#[derive(Clone, Copy, Debug)]
pub struct Environment;

const fn told(event: Event, by: &'static [Source]) -> Rule<Status, Event> {
    on(event).by(by).publishes(STATUS_CHANGED)
}

#[rustfmt::skip]
impl Machine for Environment {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "environment_v2";
    const INITIAL: Status = S::Provisioning;

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(S::Provisioning, Source::Agent, PROVISIONING_SECONDS_MAX, E::ProvisionFailed, "its workspace is being made")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::clear(RETIRING_SINCE)),
        restful(S::Ready, "threads can run in it")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Error, "its workspace is missing, or in doubt")
            .entering(Stamp::now(UPDATED_AT)),
        // A failed destroy comes back here and must not start the clock again.
        parked(S::Retiring, Source::Operator, RETIRING_SECONDS_MAX, "it is to go as soon as no thread holds it up")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::now(RETIRING_SINCE).coming_from(&[S::Ready, S::Error])),
        transient(S::Destroying, Source::Agent, DESTROYING_SECONDS_MAX, E::DestroyLost, "its workspace is being taken down")
            .entering(Stamp::now(UPDATED_AT)),
        // The operation id stays, so that a proof delivered twice is recognised as such.
        terminal(S::Destroyed, "its workspace is gone, for good")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::clear(PATH))
            .entering(Stamp::clear(RETIRING_SINCE)),
    ];

    const RULES: &'static [Rule<Status, Event>] = &[
        told(E::ProvisionRequested, &[Source::User, Source::Worker])
            .opens_operation()
            .moves(&[S::Ready, S::Error], S::Provisioning)
            .duplicate_in(&[S::Provisioning])
            .late_in(&[S::Retiring, S::Destroying, S::Destroyed]),
        told(E::ProvisionSucceeded, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .takes(PATH)
            .moves(&[S::Provisioning], S::Ready)
            .duplicate_in(&[S::Ready])
            .late_in(&[S::Error, S::Retiring, S::Destroying, S::Destroyed]),
        told(E::ProvisionFailed, &[Source::Agent, Source::Worker, Source::Timer, Source::Reconciler])
            .same_operation()
            .moves(&[S::Provisioning], S::Error)
            .duplicate_in(&[S::Error])
            .late_in(&[S::Ready, S::Retiring, S::Destroying, S::Destroyed]),
        // It names the provision that is no longer wanted: a new one may have been asked for
        // meanwhile.
        told(E::ProvisionCancelled, &[Source::User, Source::Operator, Source::Worker])
            .same_operation()
            .moves_by(&[S::Provisioning], WORKSPACE_PATH_PRESENT, S::Ready, S::Error)
            .late_in(&[S::Ready, S::Error, S::Retiring, S::Destroying, S::Destroyed]),
        // Only what we made is ours to take down, so the intent itself is refused for the rest.
        told(E::RetireRequested, &[Source::User, Source::Operator, Source::Worker])
            .needs(IS_MANAGED)
            .moves(&[S::Ready, S::Error], S::Retiring)
            .duplicate_in(&[S::Retiring, S::Destroying, S::Destroyed])
            .late_in(&[S::Provisioning])
            .remark(&[S::Provisioning], "cancel the provision first, then retire what it left"),
        told(E::DestroyDispatched, &[Source::Worker, Source::Operator])
            .opens_operation()
            .needs(WORKSPACE_PATH_PRESENT)
            .guarded(NO_LIVE_THREAD).guarded(NO_STOPPING_THREAD)
            .moves(&[S::Retiring], S::Destroying)
            .late_in(&[S::Provisioning, S::Ready, S::Error, S::Destroying, S::Destroyed])
            .remark(&[S::Destroying], "the claim is taken by another attempt; who asks must not take that for its own"),
        told(E::DestroySucceeded, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .moves(&[S::Destroying, S::Error], S::Destroyed)
            .duplicate_in(&[S::Destroyed])
            .late_in(&[S::Provisioning, S::Ready, S::Retiring])
            .remark(&[S::Error], "the destroy that was given up for lost did happen; its own proof corrects the guess"),
        told(E::DestroyFailed, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .moves(&[S::Destroying], S::Retiring)
            .duplicate_in(&[S::Retiring])
            .late_in(&[S::Provisioning, S::Ready, S::Error, S::Destroyed]),
        // It keeps the operation id, so that the late proof is still recognised.
        told(E::DestroyLost, &[Source::Timer, Source::Operator, Source::Reconciler])
            .same_operation()
            .moves(&[S::Destroying], S::Error)
            .duplicate_in(&[S::Error])
            .late_in(&[S::Provisioning, S::Ready, S::Retiring, S::Destroyed]),
        told(E::CleanupCompleted, &[Source::Worker, Source::Operator])
            .needs(WORKSPACE_PATH_ABSENT)
            .moves(&[S::Retiring], S::Destroyed)
            .duplicate_in(&[S::Destroyed])
            .late_in(&[S::Provisioning, S::Ready, S::Error, S::Destroying]),
    ];
}

lawful!(Environment);
