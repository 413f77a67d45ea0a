//! The node: a machine of the fleet. Only `ready` nodes receive placements.

use Event::*;
use Status::*;
use lifecycle::Source::{Agent, Operator, Reconciler, Timer, Worker};
use lifecycle::{
    Check, Column, Guard, Kind, Machine, Rule, Stamp, StatusSpec, Test, codes, lawful, on, parked,
    restful, terminal,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where a node stands.
    pub enum Status {
        Enrolling = "enrolling",
        Ready = "ready",
        Offline = "offline",
        Draining = "draining",
        Maintenance = "maintenance",
        Retired = "retired",
    }
}

codes! {
    /// What can happen to a node.
    pub enum Event {
        Enrolled = "node.enrolled",
        HeartbeatLost = "heartbeat.lost",
        HeartbeatRegained = "heartbeat.regained",
        DrainRequested = "drain.requested",
        DrainCompleted = "drain.completed",
        MaintenanceEnded = "maintenance.ended",
        Retiring = "node.retired",
    }
}

/// When the node was last heard of.
pub const HEARTBEAT_AT: Column = Column::new("heartbeat_at", Kind::Time);
/// The node has not been heard of since the heartbeat that was missed after.
pub const STILL_SILENT: Check = Check::new("still_silent", Test::Same(HEARTBEAT_AT, HEARTBEAT_AT));
/// The node was heard of when the report says so, and that is the last that was heard.
pub const LATEST_HEARTBEAT: Check =
    Check::new("latest_heartbeat", Test::Same(HEARTBEAT_AT, HEARTBEAT_AT));
/// Nothing on the node is held, being cleaned, stuck or in quarantine.
pub const NO_LIVE_CLAIMS: Guard = Guard("no_live_claims");

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Node;

impl Machine for Node {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "node";
    const INITIAL: Status = Enrolling;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        parked(Enrolling, Operator, 900, "waits for its agent to join"),
        restful(Ready, "takes placements"),
        parked(Offline, Operator, 3_600, "not heard of; takes none"),
        parked(Draining, Operator, 86_400, "takes none, waits until nothing is left on it"),
        restful(Maintenance, "empty, in an operator's hands"),
        terminal(Retired, "gone for good").entering(Stamp::now(ENDED_AT)),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Enrolled).by(&[Agent])
            .moves(&[Enrolling], Ready)
            .publishes("node.online")
            .duplicate_in(&[Ready])
            .late_in(&[Offline, Draining, Maintenance, Retired]),
        // Whoever counts the silence names the heartbeat it counts from: a newer one supersedes the loss.
        on(HeartbeatLost).by(&[Timer]).carries(HEARTBEAT_AT).needs(STILL_SILENT)
            .moves(&[Ready], Offline)
            .publishes("node.offline")
            .duplicate_in(&[Offline])
            .late_in(&[Draining, Maintenance, Retired])
            .bug_in(&[Enrolling]),
        // Nor does an old sign of life make a node that has fallen silent again take placements.
        on(HeartbeatRegained).by(&[Agent]).carries(HEARTBEAT_AT).needs(LATEST_HEARTBEAT)
            .moves(&[Offline], Ready)
            .publishes("node.online")
            .duplicate_in(&[Ready])
            .late_in(&[Draining, Maintenance, Retired])
            .bug_in(&[Enrolling]),
        on(DrainRequested).by(&[Operator])
            .moves(&[Ready, Offline], Draining)
            .takes(REASON)
            .duplicate_in(&[Draining])
            .late_in(&[Maintenance, Retired])
            .bug_in(&[Enrolling]),
        on(DrainCompleted).by(&[Operator, Worker, Reconciler])
            .moves(&[Draining], Maintenance)
            .guarded(NO_LIVE_CLAIMS)
            .duplicate_in(&[Maintenance])
            .late_in(&[Ready, Offline, Retired])
            .bug_in(&[Enrolling]),
        on(MaintenanceEnded).by(&[Operator])
            .moves(&[Maintenance], Ready)
            .stamps(Stamp::clear(REASON))
            .duplicate_in(&[Ready])
            .late_in(&[Offline, Retired])
            .bug_in(&[Enrolling, Draining]),
        on(Retiring).by(&[Operator])
            .moves(&[Enrolling, Ready, Offline, Draining, Maintenance], Retired)
            .takes(REASON)
            .guarded(NO_LIVE_CLAIMS)
            .duplicate_in(&[Retired]),
    ];
}

lawful!(Node);
