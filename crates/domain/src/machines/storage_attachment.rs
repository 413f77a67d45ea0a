//! The storage attachment: a namespace bound to one allocation. Nothing in this machine ever deletes stored data.

use Event::*;
use Status::*;
use lifecycle::Source::{Operator, Timer, User, Worker};
use lifecycle::{
    Column, Kind, Machine, Rule, Stamp, StatusSpec, codes, lawful, on, parked, restful, terminal,
    transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where an attachment stands.
    pub enum Status {
        Requested = "requested",
        Prechecking = "prechecking",
        GrantApplying = "grant_applying",
        GrantApplied = "grant_applied",
        Mounting = "mounting",
        Mounted = "mounted",
        Detaching = "detaching",
        Detached = "detached",
        Failed = "failed",
        DetachFailed = "detach_failed",
    }
}

codes! {
    /// What can happen to an attachment.
    pub enum Event {
        PrecheckStarted = "precheck.started",
        PrecheckPassed = "precheck.passed",
        GrantGiven = "grant.applied",
        MountStarted = "mount.started",
        MountSucceeded = "mount.succeeded",
        AttachFailed = "attach.failed",
        DetachRequested = "detach.requested",
        DetachCompleted = "detach.completed",
        DetachGaveUp = "detach.failed",
    }
}

/// When the tenant could first use it.
pub const MOUNTED_AT: Column = Column::new("mounted_at", Kind::Time);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct StorageAttachment;

impl Machine for StorageAttachment {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "storage_attachment";
    const INITIAL: Status = Requested;
    const BORN: &'static [&'static str] = &["storage.attach.requested"];

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Requested, Worker, 120, AttachFailed, "waits for the workflow"),
        transient(Prechecking, Worker, 120, AttachFailed, "project, region, quota and writers are looked at"),
        transient(GrantApplying, Worker, 120, AttachFailed, "the provider is asked to let the node in"),
        transient(GrantApplied, Worker, 120, AttachFailed, "the provider lets the node in"),
        transient(Mounting, Worker, 120, AttachFailed, "the node mounts it"),
        restful(Mounted, "usable by the tenant"),
        transient(Detaching, Worker, 120, DetachGaveUp, "the node unmounts, then the grant is revoked"),
        terminal(Detached, "no longer bound; the data stays").entering(Stamp::now(ENDED_AT)),
        parked(Failed, User, 86_400, "could not be attached; what was done is undone by a detach"),
        parked(DetachFailed, Operator, 3_600, "could not be detached; may still be mounted"),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(PrecheckStarted).by(&[Worker])
            .moves(&[Requested], Prechecking)
            .duplicate_in(&[Prechecking])
            .late_in(&[GrantApplying, GrantApplied, Mounting, Mounted, Detaching, Detached, Failed, DetachFailed]),
        on(PrecheckPassed).by(&[Worker]).same_operation()
            .moves(&[Prechecking], GrantApplying)
            .duplicate_in(&[GrantApplying])
            .late_in(&[GrantApplied, Mounting, Mounted, Detaching, Detached, Failed, DetachFailed])
            .bug_in(&[Requested]),
        on(GrantGiven).by(&[Worker]).same_operation()
            .moves(&[GrantApplying], GrantApplied)
            .duplicate_in(&[GrantApplied])
            .late_in(&[Mounting, Mounted, Detaching, Detached, Failed, DetachFailed])
            .bug_in(&[Requested, Prechecking]),
        on(MountStarted).by(&[Worker])
            .moves(&[GrantApplied], Mounting)
            .duplicate_in(&[Mounting])
            .late_in(&[Mounted, Detaching, Detached, Failed, DetachFailed])
            .bug_in(&[Requested, Prechecking, GrantApplying]),
        on(MountSucceeded).by(&[Worker]).same_operation()
            .moves(&[Mounting], Mounted)
            .stamps(Stamp::now(MOUNTED_AT))
            .publishes("storage.changed")
            .duplicate_in(&[Mounted])
            .late_in(&[Detaching, Detached, Failed, DetachFailed])
            .bug_in(&[Requested, Prechecking, GrantApplying, GrantApplied]),
        // A user who no longer wants it reports this too; the detach that follows undoes what was done.
        on(AttachFailed).by(&[Worker, Timer, User, Operator]).same_operation()
            .moves(&[Requested, Prechecking, GrantApplying, GrantApplied, Mounting], Failed)
            .takes(REASON)
            .publishes("storage.changed")
            .duplicate_in(&[Failed])
            .late_in(&[Mounted, Detaching, Detached, DetachFailed]),
        on(DetachRequested).by(&[User, Operator, Worker]).opens_operation()
            .moves(&[Mounted, Failed, DetachFailed], Detaching)
            .takes(REASON)
            .publishes("storage.detach.requested")
            .duplicate_in(&[Detaching])
            .late_in(&[Detached])
            .bug_in(&[Requested, Prechecking, GrantApplying, GrantApplied, Mounting]),
        // An operator who has seen to the machine by hand may answer for it.
        on(DetachCompleted).by(&[Worker, Operator]).same_operation()
            .moves(&[Detaching], Detached)
            .publishes("storage.changed")
            .duplicate_in(&[Detached])
            .late_in(&[DetachFailed])
            .bug_in(&[Requested, Prechecking, GrantApplying, GrantApplied, Mounting, Mounted, Failed]),
        on(DetachGaveUp).by(&[Worker, Timer, Operator]).same_operation()
            .moves(&[Mounted, Detaching], DetachFailed)
            .takes(REASON)
            .publishes("storage.changed")
            .duplicate_in(&[DetachFailed])
            .late_in(&[Detached])
            .bug_in(&[Requested, Prechecking, GrantApplying, GrantApplied, Mounting, Failed]),
    ];
}

lawful!(StorageAttachment);
