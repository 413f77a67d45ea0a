//! The tables of the product, each with a record of the edges that were taken. A flaw changes a
//! copy of them and nothing else, so a flawed run is evaluated by the same code.

use std::sync::atomic::{AtomicBool, Ordering};

use domain::machines::allocation::NO_LIVE_TASKS;
use domain::machines::claim::{ALLOCATION_LEAVING, CLEANUP_PROVEN};
use domain::machines::node_task::SAME_DISPATCH;
use domain::machines::{Allocation, AllocationGroup, Claim, NodeTask};
use lifecycle::{Lawful, SAME_OPERATION, Table};

use super::config::Flaw;

/// One table and the edges taken so far.
#[derive(Debug)]
pub struct Walked {
    /// The table.
    pub table: Table,
    taken: Vec<AtomicBool>,
}

impl Walked {
    fn of<M: Lawful>(flaw: Option<Flaw>) -> Self {
        let mut table = M::table().clone();
        for event in &mut table.events {
            match flaw {
                Some(Flaw::AnyOperation) => event.checks.retain(|check| *check != SAME_OPERATION),
                Some(Flaw::AnyDispatch) => {
                    event.checks.retain(|check| *check != SAME_DISPATCH);
                }
                Some(Flaw::FreedUnproven) => {
                    event.guards.retain(|guard| *guard != CLEANUP_PROVEN);
                }
                Some(Flaw::TasksLeftAlive) => {
                    event.guards.retain(|guard| *guard != NO_LIVE_TASKS);
                }
                Some(Flaw::ClaimTimedAlone | Flaw::ClaimTimedLate) => {
                    event.guards.retain(|guard| *guard != ALLOCATION_LEAVING);
                }
                None
                | Some(
                    Flaw::FreedUngated
                    | Flaw::GroupNotFolded
                    | Flaw::GroupReleasedLate
                    | Flaw::AgentUnfenced
                    | Flaw::AgentForgets
                    | Flaw::ClearedUnfenced
                    | Flaw::CleansEverything
                    | Flaw::GaveUpCleaning
                    | Flaw::StuckDespiteProof,
                ) => {}
            }
        }
        let size = table.events.len() * table.statuses.len() * table.statuses.len();
        Self { table, taken: (0..size).map(|_| AtomicBool::new(false)).collect() }
    }

    fn place(&self, (event, from, to): (usize, usize, usize)) -> usize {
        (event * self.table.statuses.len() + from) * self.table.statuses.len() + to
    }

    /// Remembers that an edge was taken.
    pub fn take(&self, edge: (usize, usize, usize)) {
        self.taken[self.place(edge)].store(true, Ordering::Relaxed);
    }

    /// The edges, each with whether it was taken.
    pub fn edges(&self) -> Vec<(String, bool)> {
        let name = |(event, from, to): (usize, usize, usize)| {
            let Table { name, statuses, events, .. } = &self.table;
            let (event, from, to) = (events[event].code, statuses[from].code, statuses[to].code);
            format!("{name}: {from} -[{event}]-> {to}")
        };
        let taken = |edge| self.taken[self.place(edge)].load(Ordering::Relaxed);
        self.table.edges().into_iter().map(|edge| (name(edge), taken(edge))).collect()
    }
}

/// The four tables of the protocol.
#[derive(Debug)]
pub struct Tables {
    /// Of the allocation.
    pub allocation: Walked,
    /// Of the claim.
    pub claim: Walked,
    /// Of the node task.
    pub task: Walked,
    /// Of the group.
    pub group: Walked,
}

impl Tables {
    /// The product's, but for the flaw.
    pub fn new(flaw: Option<Flaw>) -> Self {
        Self {
            allocation: Walked::of::<Allocation>(flaw),
            claim: Walked::of::<Claim>(flaw),
            task: Walked::of::<NodeTask>(flaw),
            group: Walked::of::<AllocationGroup>(flaw),
        }
    }

    /// All edges, each with whether it was taken.
    pub fn edges(&self) -> Vec<(String, bool)> {
        let all = [&self.allocation, &self.claim, &self.task, &self.group];
        all.into_iter().flat_map(Walked::edges).collect()
    }
}
