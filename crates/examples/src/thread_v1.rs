//! The agent thread as it first was: five statuses, fourteen events, and the wish to stop kept in a
//! column that every event has to remember to look at. Cells marked observed look wrong and are
//! kept as they were found.

use lifecycle::{Check, Machine, Rule, Stamp, StatusSpec, Test, codes, lawful, on, restful};

use crate::columns::{
    ATTENTION_AT, NOT_ARCHIVED, NOT_DELETED, ROOT_THREAD, STOP_REQUESTED_AT, UPDATED_AT,
};
use Event as E;
use Status as S;

codes! {
    /// Where a thread stands.
    pub enum Status {
        Created = "created",
        Provisioning = "provisioning",
        Idle = "idle",
        Active = "active",
        Error = "error",
    }
}

codes! {
    /// What can be reported of a thread.
    pub enum Event {
        TurnStarted = "turn.started",
        TurnCompleted = "turn.completed",
        TurnFailed = "turn.failed",
        TurnInterrupted = "turn.interrupted",
        RuntimeExited = "runtime.exited",
        TurnDispatched = "turn.dispatched",
        ReprovisionStarted = "reprovision.started",
        StartSucceeded = "start.succeeded",
        CommandFailed = "command.failed",
        ProvisionFailed = "provision.failed",
        WorkspaceLost = "workspace.lost",
        StopCompleted = "stop.completed",
        SessionLost = "session.lost",
        RuntimeObservedActive = "runtime.observed-active",
    }
}

/// Nobody has asked for the thread to stop.
pub const NOT_STOP_REQUESTED: Check = Check::new("notStopRequested", Test::Null(STOP_REQUESTED_AT));

/// The topic on which every move of a thread is made known.
pub const STATUS_CHANGED: &str = "thread.status-changed";

/// The thread machine.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

const fn told(event: Event) -> Rule<Status, Event> {
    on(event).publishes(STATUS_CHANGED)
}

#[rustfmt::skip]
impl Machine for Thread {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "thread_v1";
    const INITIAL: Status = S::Created;

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(S::Created, "recorded, never started"),
        restful(S::Provisioning, "its workspace is being made or restored")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Idle, "nothing runs; it waits for the next turn")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::now(ATTENTION_AT).coming_from(&[S::Active]).when(ROOT_THREAD)),
        restful(S::Active, "a turn runs")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Error, "the last thing that was tried failed")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::now(ATTENTION_AT).coming_from(&[S::Active, S::Provisioning])),
    ];

    // Checks stand in the order in which they are tried: deleted, archived, stop requested.
    const RULES: &'static [Rule<Status, Event>] = &[
        told(E::TurnStarted)
            .needs(NOT_STOP_REQUESTED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Error], S::Active)
            .duplicate_in(&[S::Active])
            .observed(&[S::Created], "the daemon's turn events may overtake the answer to the start"),
        told(E::TurnCompleted)
            .moves(&[S::Created, S::Provisioning, S::Active, S::Error], S::Idle)
            .duplicate_in(&[S::Idle])
            .observed(&[S::Created], "the daemon's turn events may overtake the answer to the start")
            .observed(&[S::Provisioning], "a turn that ends while its workspace is restored skips activation"),
        told(E::TurnFailed)
            .needs(NOT_STOP_REQUESTED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Active], S::Error)
            .duplicate_in(&[S::Error])
            .observed(&[S::Idle], "a failure that arrives while nothing runs still flips the thread"),
        told(E::TurnInterrupted)
            .moves(&[S::Created, S::Provisioning, S::Active, S::Error], S::Idle)
            .duplicate_in(&[S::Idle]),
        told(E::RuntimeExited)
            .needs(NOT_STOP_REQUESTED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Active], S::Error)
            .duplicate_in(&[S::Error])
            .observed(&[S::Idle], "a failure that arrives while nothing runs still flips the thread"),
        told(E::TurnDispatched)
            .moves(&[S::Idle, S::Error], S::Active)
            .duplicate_in(&[S::Active])
            .late_in(&[S::Created, S::Provisioning])
            .observed(&[S::Error], "an errored thread counts as active when a turn is sent, before anybody answers"),
        told(E::ReprovisionStarted)
            .moves(&[S::Idle, S::Error], S::Provisioning)
            .duplicate_in(&[S::Provisioning])
            .late_in(&[S::Created, S::Active])
            .observed(&[S::Error], "also needs a thread that never had a provider session, which only the caller knows"),
        told(E::StartSucceeded)
            .needs(NOT_DELETED).needs(NOT_ARCHIVED).needs(NOT_STOP_REQUESTED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Error], S::Active)
            .duplicate_in(&[S::Active]),
        told(E::CommandFailed)
            .needs(NOT_DELETED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Active], S::Error)
            .duplicate_in(&[S::Error]),
        told(E::ProvisionFailed)
            .needs(NOT_DELETED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Active], S::Error)
            .duplicate_in(&[S::Error])
            .observed(&[S::Created, S::Idle, S::Active], "the failure of an environment errors every live thread in it"),
        told(E::WorkspaceLost)
            .needs(NOT_DELETED).needs(NOT_ARCHIVED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Active], S::Error)
            .duplicate_in(&[S::Error]),
        told(E::StopCompleted)
            .moves(&[S::Created, S::Provisioning, S::Active], S::Idle)
            .duplicate_in(&[S::Idle])
            .late_in(&[S::Error])
            .observed(&[S::Created], "a stopped thread that never started becomes idle, not created again"),
        told(E::SessionLost)
            .moves(&[S::Created, S::Provisioning, S::Active], S::Error)
            .duplicate_in(&[S::Error])
            .late_in(&[S::Idle]),
        told(E::RuntimeObservedActive)
            .needs(NOT_DELETED).needs(NOT_STOP_REQUESTED)
            .moves(&[S::Created, S::Provisioning, S::Idle, S::Error], S::Active)
            .duplicate_in(&[S::Active]),
    ];
}

lawful!(Thread);
