//! A small machine for the tests: a job that is begun, ends or fails, and can be told to stop by a flag beside it.

use lifecycle::{
    Check, Column, Guard, Kind, Machine, Rule, Source, Stamp, StatusSpec, Test, codes, lawful, on,
    parked, restful, terminal, transient,
};

codes! {
    pub(crate) enum Status { Idle = "idle", Working = "working", Done = "done", Kept = "kept", Dropped = "dropped" }
}
codes! {
    pub(crate) enum Event { Began = "work.began", Ended = "work.ended", Failed = "work.failed", Judged = "work.judged" }
}

pub(crate) const STOPPED: Column = Column::new("stopped", Kind::Bool);
pub(crate) const GOOD: Column = Column::new("good", Kind::Bool);
pub(crate) const TRIES: Column = Column::new("tries", Kind::Int);
pub(crate) const ENDED_AT: Column = Column::new("ended_at", Kind::Time);
pub(crate) const NOT_STOPPED: Check = Check::new("not_stopped", Test::NotTrue(STOPPED));
pub(crate) const IS_GOOD: Check = Check::new("is_good", Test::True(GOOD));

#[derive(Clone, Copy)]
pub(crate) struct Job;

impl Machine for Job {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "job";
    const INITIAL: Status = Status::Idle;
    const BORN: &'static [&'static str] = &["job.wanted"];

    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(Status::Idle, "nothing is going on"),
        transient(Status::Working, Source::Worker, 60, Event::Failed, "somebody is at it"),
        parked(Status::Done, Source::User, 60, "somebody has to look at it"),
        terminal(Status::Kept, "good").entering(Stamp::now(ENDED_AT)),
        terminal(Status::Dropped, "not good").entering(Stamp::now(ENDED_AT)),
    ];

    const RULES: &'static [Rule<Status, Event>] = &[
        on(Event::Began)
            .by(&[Source::User, Source::Worker])
            .opens_operation()
            .moves(&[Status::Idle], Status::Working)
            .stamps(Stamp::raise(TRIES))
            .duplicate_in(&[Status::Working])
            .late_in(&[Status::Done, Status::Kept, Status::Dropped]),
        on(Event::Ended)
            .by(&[Source::Worker])
            .same_operation()
            .needs(NOT_STOPPED)
            .moves(&[Status::Working], Status::Done)
            .publishes("job.done")
            .duplicate_in(&[Status::Done])
            .late_in(&[Status::Idle, Status::Kept, Status::Dropped]),
        on(Event::Failed)
            .by(&[Source::Worker, Source::Timer, Source::User])
            .same_operation()
            .moves(&[Status::Working], Status::Idle)
            .duplicate_in(&[Status::Idle])
            .late_in(&[Status::Done, Status::Kept, Status::Dropped]),
        on(Event::Judged)
            .by(&[Source::User])
            .moves_by(&[Status::Done], IS_GOOD, Status::Kept, Status::Dropped)
            .guarded(Guard("nobody_looks"))
            .stamps(Stamp::clear(TRIES).coming_from(&[Status::Done]).when(IS_GOOD))
            .duplicate_in(&[Status::Kept, Status::Dropped])
            .bug_in(&[Status::Idle, Status::Working]),
    ];
}

lawful!(Job);
