//! The agent thread redesigned: the wish to stop is a status, events are facts of the product, and
//! every answer names the run it is about. The names and the number of cells are given; which cells
//! they are is our reading.

use lifecycle::{Machine, Rule, Source, Stamp, StatusSpec, codes, lawful, on, restful, transient};

use crate::columns::{ATTENTION_AT, NOT_ARCHIVED, NOT_DELETED, ROOT_THREAD, UPDATED_AT};
use Event as E;
use Status as S;

codes! {
    /// Where a thread stands.
    pub enum Status {
        Idle = "idle",
        Starting = "starting",
        Active = "active",
        Stopping = "stopping",
        Error = "error",
    }
}

codes! {
    /// What can be reported of a thread.
    pub enum Event {
        RunPreparing = "run.preparing",
        RunStarted = "run.started",
        RunSucceeded = "run.succeeded",
        RunFailed = "run.failed",
        StopRequested = "stop.requested",
        StopSettled = "stop.settled",
    }
}

/// The topic on which every move of a thread is made known.
pub const STATUS_CHANGED: &str = "thread.status-changed";

/// How long a run may take to begin.
pub const STARTING_SECONDS_MAX: u32 = 120;
/// How long a run may take to end.
pub const ACTIVE_SECONDS_MAX: u32 = 86_400;
/// How long a run may take to stop.
pub const STOPPING_SECONDS_MAX: u32 = 60;

/// The thread machine.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

const fn told(event: Event, by: &'static [Source]) -> Rule<Status, Event> {
    on(event).by(by).publishes(STATUS_CHANGED)
}

#[rustfmt::skip]
impl Machine for Thread {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "thread_v2";
    const INITIAL: Status = S::Idle;

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(S::Idle, "nothing runs; it waits for the next run")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::now(ATTENTION_AT).coming_from(&[S::Active]).when(ROOT_THREAD)),
        transient(S::Starting, Source::Agent, STARTING_SECONDS_MAX, E::RunFailed, "a run was handed out, nobody has answered yet")
            .entering(Stamp::now(UPDATED_AT)),
        transient(S::Active, Source::Agent, ACTIVE_SECONDS_MAX, E::RunFailed, "the agent says that the run goes on")
            .entering(Stamp::now(UPDATED_AT)),
        transient(S::Stopping, Source::Agent, STOPPING_SECONDS_MAX, E::RunFailed, "the run is to stop; no new work until it has")
            .entering(Stamp::now(UPDATED_AT)),
        restful(S::Error, "the last run failed, or was given up")
            .entering(Stamp::now(UPDATED_AT))
            .entering(Stamp::now(ATTENTION_AT).coming_from(&[S::Active, S::Starting])),
    ];

    const RULES: &'static [Rule<Status, Event>] = &[
        told(E::RunPreparing, &[Source::User, Source::Worker])
            .opens_operation()
            .needs(NOT_DELETED).needs(NOT_ARCHIVED)
            .moves(&[S::Idle, S::Error], S::Starting)
            .late_in(&[S::Starting, S::Active, S::Stopping])
            .remark(&[S::Starting], "the place is taken by another run; its sender must not take that for its own")
            .remark(&[S::Stopping], "no new work while stopping: the intent is the status, so no event can forget it"),
        // Never from idle or error: a run counts as active when the agent says so, not when it is
        // handed out.
        told(E::RunStarted, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .moves(&[S::Starting], S::Active)
            .duplicate_in(&[S::Active])
            .late_in(&[S::Idle, S::Stopping, S::Error]),
        told(E::RunSucceeded, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .moves(&[S::Starting, S::Active, S::Stopping, S::Error], S::Idle)
            .duplicate_in(&[S::Idle])
            .remark(&[S::Starting], "the end of a short run can overtake the word that it began")
            .remark(&[S::Stopping], "the run ended by itself, so there is nothing left to stop")
            .remark(&[S::Error], "a run that was given up for lost did end well; its own proof corrects the guess"),
        told(E::RunFailed, &[Source::Agent, Source::Worker, Source::Timer, Source::Operator, Source::Reconciler])
            .same_operation()
            .moves(&[S::Starting, S::Active, S::Stopping], S::Error)
            .duplicate_in(&[S::Error])
            .late_in(&[S::Idle])
            .remark(&[S::Stopping], "a stop that nobody confirms is not taken for done"),
        told(E::StopRequested, &[Source::User, Source::Operator])
            .moves(&[S::Starting, S::Active], S::Stopping)
            .duplicate_in(&[S::Idle, S::Stopping])
            .late_in(&[S::Error]),
        told(E::StopSettled, &[Source::Agent, Source::Reconciler])
            .same_operation()
            .moves(&[S::Stopping, S::Error], S::Idle)
            .duplicate_in(&[S::Idle])
            .bug_in(&[S::Starting, S::Active])
            .remark(&[S::Error], "a stop that was given up for lost did happen; its own proof corrects the guess"),
    ];
}

lawful!(Thread);
