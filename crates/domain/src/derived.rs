//! Statuses that follow from other facts. Nobody chooses them: they are computed, and stored through the same writer.

use lifecycle::{Cell, Code, Lawful};

pub mod allocation_group;
pub mod balance;

/// The event that takes a derived machine from one status to another.
///
/// `None` when it stands already, and also for a way the machine does not declare: that would be a fault of the
/// derivation, which the proofs exclude.
pub fn crossing<M: Lawful>(from: M::Status, to: M::Status) -> Option<M::Event> {
    let leads =
        |event: &M::Event| M::table().cells[event.index()][from.index()] == Cell::To(to.index());
    M::Event::ALL.iter().copied().find(leads)
}
