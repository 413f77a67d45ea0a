//! The usage record: one stretch of billable time of one allocation.

use Event::*;
use Status::*;
use lifecycle::Source::{Operator, Worker};
use lifecycle::{Machine, Rule, StatusSpec, codes, lawful, on, restful, terminal};

use super::ENDED_AT;

codes! {
    /// Where a usage record stands.
    pub enum Status {
        Open = "open",
        Closed = "closed",
    }
}

codes! {
    /// What can happen to a usage record.
    pub enum Event {
        Closing = "usage.closed",
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct UsageRecord;

impl Machine for UsageRecord {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "usage_record";
    const INITIAL: Status = Open;

    const STATUSES: &'static [StatusSpec<Status, Event>] =
        &[restful(Open, "time is counted"), terminal(Closed, "nothing is counted after its end")];

    // The end is the moment of the allocation's own transition, never the moment at which billing heard of it.
    const RULES: &'static [Rule<Status, Event>] = &[on(Closing)
        .by(&[Worker, Operator])
        .moves(&[Open], Closed)
        .takes(ENDED_AT)
        .duplicate_in(&[Closed])];
}

lawful!(UsageRecord);
