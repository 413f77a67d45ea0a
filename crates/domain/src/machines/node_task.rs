//! The node task: one piece of work for one node's agent. Its operation is the dispatch: a result counts only from
//! the agent that holds it, for the dispatch it was given.

use Event::*;
use Status::*;
use lifecycle::Source::{Agent, Operator, Timer, Worker};
use lifecycle::{
    Check, Column, Kind, Machine, Rule, Stamp, StatusSpec, Test, codes, lawful, on, terminal,
    transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where a task stands.
    pub enum Status {
        Queued = "queued",
        Dispatched = "dispatched",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
        Expired = "expired",
    }
}

codes! {
    /// What can happen to a task.
    pub enum Event {
        Dispatching = "task.dispatched",
        LeaseExpired = "task.lease_expired",
        Success = "task.succeeded",
        Failure = "task.failed",
        Cancelling = "task.cancelled",
        Expiring = "task.expired",
    }
}

/// The node the work is for.
pub const NODE_ID: Column = Column::new("node_id", Kind::Id);
/// The identity of the agent that holds it.
pub const AGENT_ID: Column = Column::new("agent_id", Kind::Id);
/// How often it has been handed out; the number of the present dispatch.
pub const DISPATCH: Column = Column::new("dispatch", Kind::Int);
/// How often it may be handed out.
pub const DISPATCHES_MAX: Column = Column::new("dispatches_max", Kind::Int);
/// When it was last handed out.
pub const DISPATCHED_AT: Column = Column::new("dispatched_at", Kind::Time);
/// Whether the result proves that nothing was left behind.
pub const CLEANUP_COMPLETE: Column = Column::new("cleanup_complete", Kind::Bool);

/// The agent works for the node the task is for.
pub const SAME_NODE: Check = Check::new("same_node", Test::Same(NODE_ID, NODE_ID));
/// The result comes from the agent that holds the task.
pub const SAME_AGENT: Check = Check::new("same_agent", Test::Same(AGENT_ID, AGENT_ID));
/// The report is about the present dispatch.
pub const SAME_DISPATCH: Check = Check::new("same_dispatch", Test::Same(DISPATCH, DISPATCH));
/// It may be handed out once more.
pub const ATTEMPTS_REMAIN: Check =
    Check::new("attempts_remain", Test::Below(DISPATCH, DISPATCHES_MAX));

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeTask;

impl Machine for NodeTask {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "node_task";
    const INITIAL: Status = Queued;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Queued, Agent, 900, Expiring, "waits for the node's agent"),
        transient(Dispatched, Agent, 900, Expiring, "an agent holds it"),
        terminal(Succeeded, "done").entering(Stamp::now(ENDED_AT)),
        terminal(Failed, "the agent could not").entering(Stamp::now(ENDED_AT)),
        terminal(Cancelled, "called off").entering(Stamp::now(ENDED_AT)),
        terminal(Expired, "nobody did it in time").entering(Stamp::now(ENDED_AT)),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        // The claim is the transition: who is told `late` does not hold the task, and "already so" would be a lie.
        on(Dispatching).by(&[Agent]).carries(NODE_ID).needs(SAME_NODE)
            .moves(&[Queued], Dispatched)
            .takes(AGENT_ID)
            .stamps(Stamp::raise(DISPATCH))
            .stamps(Stamp::now(DISPATCHED_AT))
            .late_in(&[Dispatched, Succeeded, Failed, Cancelled, Expired]),
        on(LeaseExpired).by(&[Timer]).carries(DISPATCH).settles_by(SAME_DISPATCH).needs(ATTEMPTS_REMAIN)
            .moves(&[Dispatched], Queued)
            .stamps(Stamp::clear(AGENT_ID))
            .duplicate_in(&[Queued])
            .late_in(&[Succeeded, Failed, Cancelled, Expired]),
        on(Success).by(&[Agent]).carries(AGENT_ID).needs(SAME_AGENT).carries(DISPATCH).settles_by(SAME_DISPATCH)
            .moves(&[Dispatched], Succeeded)
            .takes(CLEANUP_COMPLETE)
            .publishes("node.task.finished")
            .duplicate_in(&[Succeeded])
            .late_in(&[Queued, Failed, Cancelled, Expired]),
        on(Failure).by(&[Agent]).carries(AGENT_ID).needs(SAME_AGENT).carries(DISPATCH).settles_by(SAME_DISPATCH)
            .moves(&[Dispatched], Failed)
            .takes(REASON)
            .publishes("node.task.finished")
            .duplicate_in(&[Failed])
            .late_in(&[Queued, Succeeded, Cancelled, Expired]),
        on(Cancelling).by(&[Worker, Operator])
            .moves(&[Queued, Dispatched], Cancelled)
            .takes(REASON)
            .duplicate_in(&[Cancelled])
            .late_in(&[Succeeded, Failed, Expired]),
        on(Expiring).by(&[Timer, Worker])
            .moves(&[Queued, Dispatched], Expired)
            .publishes("node.task.finished")
            .duplicate_in(&[Expired])
            .late_in(&[Succeeded, Failed, Cancelled]),
    ];
}

lawful!(NodeTask);
