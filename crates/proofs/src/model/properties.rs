//! What must always hold, and what must be possible, each in a sentence.

use domain::machines::allocation::Status;
use domain::machines::claim::Status as ClaimStatus;
use domain::machines::node_task::Status as TaskStatus;
use stateright::Property;

use super::config::{ALLOCATIONS, OPERATIONS, SLOTS};
use super::protocol::Protocol;
use super::state::{Allocation, State};
use super::tx::folded;

/// When a claim is freed, nothing and nobody of its allocation is on the slot.
pub const FREED_CLEAN: &str = "no claim is freed before its slot is clean and left alone";
/// No tenant finds another's things.
pub const OWN_SLOT: &str = "what is on a slot belongs to whoever claims it";
/// No tenant is disturbed by work for another.
pub const OWN_WORK: &str = "an agent works only where its allocation has the claim";
/// What an allocation's status says of its capacity is so.
pub const CLAIMS_FIT: &str = "an allocation's claims are as its status says";
/// The group is never out of step.
pub const FOLDED: &str = "the group's status is the fold of its members";
/// What is released has no work under way.
pub const ALL_DONE: &str = "released implies no live task";

fn each(state: &State, holds: impl Fn(usize, &Allocation) -> bool) -> bool {
    (0..ALLOCATIONS).all(|i| state.allocations[i].as_ref().is_none_or(|row| holds(i, row)))
}

fn any(state: &State, holds: impl Fn(usize, &Allocation) -> bool) -> bool {
    !each(state, |i, row| !holds(i, row))
}

fn always(name: &'static str, holds: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::always(name, holds)
}

fn sometimes(name: &'static str, holds: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::sometimes(name, holds)
}

/// All that a scenario is held to.
pub fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = of_the_slots();
    all.extend(of_the_rows());
    all.extend(possible());
    if protocol.config.members.iter().any(|member| !member.sketched) {
        all.extend(possible_at_the_agent());
    }
    all
}

fn of_the_slots() -> Vec<Property<Protocol>> {
    vec![
        always("a slot is never claimed by two allocations", |_, state| {
            (0..SLOTS).all(|slot| {
                state.allocations.iter().flatten().filter(|row| row.holds(slot)).count() <= 1
            })
        }),
        always(FREED_CLEAN, |_, state| !state.breaches.freed_unclean),
        always(OWN_SLOT, |_, state| {
            (0..SLOTS).all(|slot| {
                let owner = state.residue[slot].and_then(|i| state.allocations[usize::from(i)]);
                owner.is_none_or(|row| row.holds(slot))
            })
        }),
        always(OWN_WORK, |_, state| {
            each(state, |i, row| (0..SLOTS).all(|slot| row.holds(slot) || !state.touches(i, slot)))
        }),
        always(CLAIMS_FIT, |_, state| {
            each(state, |_, row| match row.status {
                Status::Active | Status::Restarting | Status::RestartFailed => {
                    row.every_claim(|status| status == ClaimStatus::Held)
                }
                Status::Requested | Status::Provisioning => {
                    row.every_claim(|status| status == ClaimStatus::Reserved)
                }
                Status::Releasing | Status::ReleaseFailed => {
                    row.every_claim(|status| status != ClaimStatus::Freed)
                }
                Status::Released => row.every_claim(|status| {
                    matches!(status, ClaimStatus::Freed | ClaimStatus::Quarantined)
                }),
                Status::Failed => true,
            })
        }),
    ]
}

fn of_the_rows() -> Vec<Property<Protocol>> {
    vec![
        always(FOLDED, |model, state| state.group.status == folded(&model.config, state)),
        always(ALL_DONE, |_, state| {
            each(state, |_, row| row.status != Status::Released || !row.has_live_task())
        }),
        always("active implies no live task", |_, state| {
            each(state, |_, row| row.status != Status::Active || !row.has_live_task())
        }),
        always("usage is open exactly while billable", |_, state| {
            each(state, |_, row| {
                row.billed == matches!(row.status, Status::Active | Status::Restarting)
            })
        }),
        always("a terminal status is never left", |_, state| !state.breaches.left_terminal),
        always("nobody reports what the tables call a bug", |_, state| {
            !state.breaches.bug_reported
        }),
    ]
}

fn possible() -> Vec<Property<Protocol>> {
    vec![
        sometimes("a worker's notice of an earlier operation is still to come", |_, state| {
            any(state, |_, row| {
                (0..OPERATIONS).any(|t| {
                    t < usize::from(row.operation)
                        && row.tasks[t].is_some_and(|task| task.status == TaskStatus::Succeeded)
                })
            })
        }),
        sometimes("a failed provision's slots come free", |_, state| {
            any(state, |_, row| {
                row.status == Status::Failed
                    && row.every_claim(|status| status == ClaimStatus::Freed)
            })
        }),
        sometimes("everything is released", |_, state| {
            each(state, |_, row| row.status == Status::Released)
        }),
    ]
}

/// What must be possible as well where the agent's world is looked at.
fn possible_at_the_agent() -> Vec<Property<Protocol>> {
    vec![
        sometimes("an agent works on what was called off", |_, state| {
            any(state, |i, row| {
                (0..OPERATIONS).any(|t| {
                    row.tasks[t].is_some_and(|task| {
                        task.status == TaskStatus::Cancelled
                            && (1..=task.dispatch)
                                .any(|dispatch| state.agents[i].works_on(t, dispatch))
                    })
                })
            })
        }),
        sometimes("a clean slot is still to be given up by its tenant", |_, state| {
            any(state, |_, row| {
                row.claims[0].is_some_and(|claim| claim.status == ClaimStatus::Cleaning)
            }) && state.residue == [None; SLOTS]
        }),
    ]
}
