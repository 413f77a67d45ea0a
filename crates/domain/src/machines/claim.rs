//! The claim: a whole node or one slot that an allocation holds. A slot is free exactly when it has no claim
//! outside `freed`; no pointer on the slot is ever the truth.

use Event::*;
use Status::*;
use lifecycle::Source::{Operator, Timer, Worker};
use lifecycle::{
    Guard, Machine, Rule, Stamp, StatusSpec, codes, lawful, on, parked, restful, terminal,
    transient,
};

use super::{ENDED_AT, REASON};

codes! {
    /// Where a claim stands.
    pub enum Status {
        Reserved = "reserved",
        Held = "held",
        Cleaning = "cleaning",
        Stuck = "stuck",
        Quarantined = "quarantined",
        Freed = "freed",
    }
}

codes! {
    /// What can happen to a claim.
    pub enum Event {
        Activated = "claim.activated",
        CleaningBegan = "claim.cleaning",
        Freeing = "claim.freed",
        GotStuck = "claim.stuck",
        Quarantining = "claim.quarantined",
        Cleared = "claim.cleared",
    }
}

/// The node has proven the clean-up of this claim's operation, or was never given anything to clean.
pub const CLEANUP_PROVEN: Guard = Guard("cleanup_proven");

/// The allocation has begun to leave, and never comes back from that. A deadline of the claim alone must not take a
/// slot from under a tenant.
pub const ALLOCATION_LEAVING: Guard = Guard("allocation_leaving");

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Claim;

impl Machine for Claim {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "claim";
    const INITIAL: Status = Reserved;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        transient(Reserved, Worker, 660, CleaningBegan, "promised to an allocation that is being prepared"),
        restful(Held, "in the tenant's hands"),
        transient(Cleaning, Worker, 600, GotStuck, "the node cleans up"),
        parked(Stuck, Operator, 3_600, "clean-up gave up; offered to nobody"),
        parked(Quarantined, Operator, 604_800, "set aside by an operator until it is cleared"),
        terminal(Freed, "clean, and anybody's").entering(Stamp::now(ENDED_AT)),
    ];

    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Activated).by(&[Worker])
            .moves(&[Reserved], Held)
            .duplicate_in(&[Held])
            .late_in(&[Cleaning, Stuck, Quarantined, Freed]),
        on(CleaningBegan).by(&[Worker, Timer, Operator]).opens_operation()
            .moves(&[Reserved, Held, Stuck], Cleaning)
            .guarded(ALLOCATION_LEAVING)
            .duplicate_in(&[Cleaning])
            .late_in(&[Quarantined, Freed]),
        // Freed only on proof: what was not cleaned may still hold the last tenant's memory.
        on(Freeing).by(&[Worker]).same_operation()
            .moves(&[Cleaning], Freed)
            .guarded(CLEANUP_PROVEN)
            .duplicate_in(&[Freed])
            .late_in(&[Stuck, Quarantined])
            .bug_in(&[Reserved, Held]),
        on(GotStuck).by(&[Worker, Timer, Operator]).same_operation()
            .moves(&[Cleaning], Stuck)
            .takes(REASON)
            .duplicate_in(&[Stuck])
            .late_in(&[Quarantined, Freed])
            .bug_in(&[Reserved, Held]),
        on(Quarantining).by(&[Operator])
            .moves(&[Stuck], Quarantined)
            .takes(REASON)
            .duplicate_in(&[Quarantined])
            .late_in(&[Cleaning, Freed])
            .bug_in(&[Reserved, Held]),
        on(Cleared).by(&[Operator])
            .moves(&[Quarantined], Freed)
            .takes(REASON)
            .duplicate_in(&[Freed])
            .bug_in(&[Reserved, Held, Cleaning, Stuck]),
    ];
}

lawful!(Claim);
