//! The terminal session: one browser terminal. Reconnecting is a new session; nothing is resumed.

use Event::*;
use Status::*;
use lifecycle::Source::{Agent, Operator, Timer, User, Worker};
use lifecycle::{
    Column, Kind, Machine, Rule, Stamp, StatusSpec, codes, lawful, on, restful, terminal, transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where a terminal session stands.
    pub enum Status {
        Opening = "opening",
        Active = "active",
        Closing = "closing",
        Closed = "closed",
        Error = "error",
    }
}

codes! {
    /// What can happen to a terminal session.
    pub enum Event {
        Opened = "terminal.opened",
        OpenFailed = "open.failed",
        TokenExpired = "token.expired",
        StreamDropped = "stream.dropped",
        UpstreamEnded = "upstream.ended",
        LifetimeExceeded = "lifetime.exceeded",
        CloseRequested = "close.requested",
        CloseAcknowledged = "close.acknowledged",
        CloseTimedOut = "close.timed_out",
    }
}

/// When both ends were joined.
pub const OPENED_AT: Column = Column::new("opened_at", Kind::Time);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct TerminalSession;

impl Machine for TerminalSession {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "terminal_session";
    const INITIAL: Status = Opening;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Opening, Agent, 30, TokenExpired, "the agent dials back"),
        restful(Active, "both ends are joined"),
        transient(Closing, Agent, 5, CloseTimedOut, "the agent was told to end it"),
        terminal(Closed, "ended in order").entering(Stamp::now(ENDED_AT)),
        terminal(Error, "ended out of order").entering(Stamp::now(ENDED_AT)),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Opened).by(&[Agent, Worker]).same_operation()
            .moves(&[Opening], Active)
            .stamps(Stamp::now(OPENED_AT))
            .duplicate_in(&[Active])
            .late_in(&[Closing, Closed, Error]),
        on(OpenFailed).by(&[Agent, Worker, User, Operator]).same_operation()
            .moves(&[Opening], Error)
            .takes(REASON)
            .publishes("terminal.closed")
            .duplicate_in(&[Error])
            .late_in(&[Active, Closing, Closed]),
        on(TokenExpired).by(&[Timer])
            .moves(&[Opening], Error)
            .takes(REASON)
            .publishes("terminal.closed")
            .duplicate_in(&[Error])
            .late_in(&[Active, Closing, Closed]),
        on(StreamDropped).by(&[Agent, Worker])
            .moves(&[Active], Error)
            .takes(REASON)
            .publishes("terminal.closed")
            .duplicate_in(&[Error])
            .late_in(&[Closing, Closed])
            .bug_in(&[Opening]),
        on(UpstreamEnded).by(&[Agent, Worker])
            .moves(&[Active], Error)
            .takes(REASON)
            .publishes("terminal.closed")
            .duplicate_in(&[Error])
            .late_in(&[Closing, Closed])
            .bug_in(&[Opening]),
        on(LifetimeExceeded).by(&[Timer])
            .moves(&[Active], Error)
            .takes(REASON)
            .publishes("terminal.closed")
            .duplicate_in(&[Error])
            .late_in(&[Closing, Closed])
            .bug_in(&[Opening]),
        // A session that is still opening is ended by `open.failed`: there is no stream to close yet.
        on(CloseRequested).by(&[User, Operator, Worker]).opens_operation()
            .moves(&[Active], Closing)
            .takes(REASON)
            .duplicate_in(&[Closing])
            .late_in(&[Closed, Error])
            .bug_in(&[Opening]),
        on(CloseAcknowledged).by(&[Agent, Worker]).same_operation()
            .moves(&[Closing], Closed)
            .publishes("terminal.closed")
            .duplicate_in(&[Closed])
            .late_in(&[Error])
            .bug_in(&[Opening, Active]),
        on(CloseTimedOut).by(&[Timer, Operator])
            .moves(&[Closing], Closed)
            .publishes("terminal.closed")
            .duplicate_in(&[Closed])
            .late_in(&[Error])
            .bug_in(&[Opening, Active]),
    ];
}

lawful!(TerminalSession);
