//! The environment as it first was: five statuses, nine events, the wish to clean up kept in a
//! column, and a `destroyed` that two late provision events can leave. Only a failed destroy says
//! which attempt it answers.

use lifecycle::{
    Check, Guard, Machine, Outcome, Rule, Stamp, StatusSpec, Test, codes, lawful, on, restful,
    terminal,
};

use crate::columns::{
    CLEANUP_MODE, CLEANUP_REQUESTED_AT, DESTROY_ATTEMPT_ID, IS_MANAGED, UPDATED_AT,
    WORKSPACE_PATH_ABSENT, WORKSPACE_PATH_PRESENT,
};
use Event as E;
use Status as S;

codes! {
    /// Where an environment stands.
    pub enum Status {
        Provisioning = "provisioning",
        Ready = "ready",
        Error = "error",
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
        DestroyDispatched = "destroy.dispatched",
        DestroySucceeded = "destroy.succeeded",
        DestroyFailed = "destroy.failed",
        DestroyLost = "destroy.lost",
        CleanupCompleted = "cleanup.completed",
    }
}

/// Somebody has asked for the clean-up.
pub const CLEANUP_REQUESTED: Check =
    Check::new("cleanupRequested", Test::Present(CLEANUP_REQUESTED_AT));
/// The report answers the destroy that the row is busy with.
pub const MATCHING_DESTROY_ATTEMPT: Check =
    Check::new("matchingDestroyAttempt", Test::Same(DESTROY_ATTEMPT_ID, DESTROY_ATTEMPT_ID));

/// No thread of the environment is in use: each is archived or deleted.
pub const NO_LIVE_THREAD: Guard = Guard("noLiveThread");
/// No thread of the environment waits for a stop, not even a deleted one.
pub const NO_PENDING_STOP: Guard = Guard("noPendingStop");

/// The topic on which every move of an environment is made known.
pub const STATUS_CHANGED: &str = "environment.status-changed";
/// The topic on which a change of the clean-up columns is made known.
pub const METADATA_CHANGED: &str = "environment.metadata-changed";

/// The environment machine.
#[derive(Clone, Copy, Debug)]
pub struct Environment;

const fn told(event: Event) -> Rule<Status, Event> {
    on(event).publishes(STATUS_CHANGED)
}

#[rustfmt::skip]
impl Machine for Environment {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "environment_v1";
    const INITIAL: Status = S::Provisioning;

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(S::Provisioning, "its workspace is being made")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Ready, "threads can run in it")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Error, "it has no usable workspace")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Destroying, "its workspace is being taken down")
            .entering(Stamp::now(UPDATED_AT)),
        terminal(S::Destroyed, "its workspace is gone")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::clear(DESTROY_ATTEMPT_ID))
            .entering(Stamp::clear(CLEANUP_REQUESTED_AT))
            .entering(Stamp::clear(CLEANUP_MODE)),
    ];

    // Checks stand in the order in which they are tried: managed, clean-up intent, path there, path
    // gone, attempt.
    const RULES: &'static [Rule<Status, Event>] = &[
        told(E::ProvisionRequested)
            .moves(&[S::Ready, S::Error, S::Destroying, S::Destroyed], S::Provisioning)
            .duplicate_in(&[S::Provisioning])
            .observed(&[S::Destroying], "a destroy under way was never excluded, and its attempt id stays behind")
            .observed(&[S::Destroyed], "a destroyed record was never excluded"),
        told(E::ProvisionSucceeded)
            .moves(&[S::Provisioning, S::Error, S::Destroying, S::Destroyed], S::Ready)
            .duplicate_in(&[S::Ready])
            .observed(&[S::Error], "a late success revives what had failed")
            .observed(&[S::Destroying], "a late success revives what is being taken down")
            .observed(&[S::Destroyed], "a late success revives what is gone"),
        told(E::ProvisionFailed)
            .moves(&[S::Provisioning, S::Ready, S::Destroying], S::Error)
            .duplicate_in(&[S::Error])
            .late_in(&[S::Destroyed])
            .observed(&[S::Ready, S::Destroying], "a late failure errors what had settled, or is being taken down"),
        told(E::ProvisionCancelled)
            .moves_by(&[S::Provisioning], WORKSPACE_PATH_PRESENT, S::Ready, S::Error)
            .bug_in(&[S::Ready, S::Error, S::Destroying, S::Destroyed]),
        told(E::DestroyDispatched)
            .takes(DESTROY_ATTEMPT_ID)
            .needs(IS_MANAGED).needs(CLEANUP_REQUESTED).needs(WORKSPACE_PATH_PRESENT)
            .guarded(NO_LIVE_THREAD).guarded(NO_PENDING_STOP)
            .moves(&[S::Ready], S::Destroying)
            .duplicate_in(&[S::Destroying])
            .late_in(&[S::Provisioning, S::Error, S::Destroyed]),
        told(E::DestroySucceeded)
            .publishes(METADATA_CHANGED)
            .moves(&[S::Destroying], S::Destroyed)
            .duplicate_in(&[S::Destroyed])
            .late_in(&[S::Provisioning, S::Ready, S::Error]),
        told(E::DestroyFailed)
            .carries(DESTROY_ATTEMPT_ID)
            .settles_by(MATCHING_DESTROY_ATTEMPT)
            .stamps(Stamp::clear(DESTROY_ATTEMPT_ID))
            .moves_by(&[S::Destroying], WORKSPACE_PATH_PRESENT, S::Ready, S::Error)
            .late_in(&[S::Provisioning, S::Ready, S::Error, S::Destroyed]),
        // It clears the clean-up columns only when it ends in `destroyed`; a reader who is told and
        // finds nothing new has lost less than one who is never told.
        told(E::DestroyLost)
            .publishes(METADATA_CHANGED)
            .needs(CLEANUP_REQUESTED)
            .stamps(Stamp::clear(DESTROY_ATTEMPT_ID))
            .moves_by(&[S::Destroying], WORKSPACE_PATH_PRESENT, S::Ready, S::Destroyed)
            .late_in(&[S::Provisioning, S::Ready, S::Error, S::Destroyed]),
        told(E::CleanupCompleted)
            .publishes(METADATA_CHANGED)
            .needs(IS_MANAGED).needs(CLEANUP_REQUESTED).needs(WORKSPACE_PATH_ABSENT)
            .moves(&[S::Ready, S::Error, S::Destroying], S::Destroyed)
            .duplicate_in(&[S::Destroyed])
            .late_in(&[S::Provisioning])
            .observed(&[S::Destroying], "without a workspace there is nothing to wait for"),
    ];
}

lawful!(Environment);

/// What an outcome changed, in the words of the topics: the status, and the clean-up columns where
/// it cleared them.
pub fn change_kinds(outcome: &Outcome<Status>) -> &'static [&'static str] {
    if outcome.landed_on(Status::Destroyed) {
        &[STATUS_CHANGED, METADATA_CHANGED]
    } else if outcome.is_applied() {
        &[STATUS_CHANGED]
    } else {
        &[]
    }
}
