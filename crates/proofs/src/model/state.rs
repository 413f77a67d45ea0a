//! The rows of the control plane and the world of the agent, as small as they can be said. What was
//! ever sent stays deliverable, so lateness, loss, repetition and disorder need no state of their
//! own.

use domain::derived::allocation_group as group;
use domain::machines::{allocation, claim, node_task};

use super::config::{ALLOCATIONS, OPERATIONS, SLOTS};

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Prepare the slots.
    Provision,
    /// Reboot.
    Restart,
    /// Clean up for a release.
    Release,
    /// Clean up after a provision that failed.
    CleanUp,
}

impl Kind {
    /// Whether it cleans, rather than puts something on the slots.
    pub fn cleans(self) -> bool {
        matches!(self, Kind::Release | Kind::CleanUp)
    }
}

/// What an agent says of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Said {
    /// Done, and of a clean-up: completely.
    Done,
    /// A clean-up that ended without a complete proof.
    Incomplete,
    /// Could not.
    Failed,
}

impl Said {
    /// All of them.
    pub const ALL: [Said; 3] = [Said::Done, Said::Incomplete, Said::Failed];

    /// The bit under which a result of dispatch number `dispatch` is kept.
    pub fn bit(self, dispatch: u8) -> u8 {
        1 << ((dispatch - 1) * 3 + self as u8)
    }
}

/// A node task. Its number among its allocation's tasks is its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// What for.
    pub kind: Kind,
    /// The slots it is about: those that the operation had when it was queued, and no others ever
    /// after.
    pub slots: [bool; SLOTS],
    /// Where it stands.
    pub status: node_task::Status,
    /// The number of its last dispatch.
    pub dispatch: u8,
    /// Whether an agent holds it.
    pub held: bool,
    /// Whether its result proves the clean-up.
    pub proof: bool,
    /// The results that were sent, see [`Said::bit`]; forgotten when the task has ended and none
    /// can count any more.
    pub results: u8,
}

impl Task {
    /// A new one.
    pub fn queued(kind: Kind, slots: [bool; SLOTS]) -> Self {
        let status = node_task::Status::Queued;
        Self { kind, slots, status, dispatch: 0, held: false, proof: false, results: 0 }
    }

    /// Forgets what no rule can read any more, so that what behaves alike is one state: an ended
    /// task takes no result, and the worker treats one that expired as one that failed.
    pub fn end(&mut self) {
        self.results = 0;
        self.held = false;
        self.proof &= self.kind.cleans();
        if self.status == node_task::Status::Expired {
            self.status = node_task::Status::Failed;
        }
    }

    /// Whether somebody may still work on it, as far as the control plane knows.
    pub fn is_live(&self) -> bool {
        matches!(self.status, node_task::Status::Queued | node_task::Status::Dispatched)
    }
}

/// A claim on one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Where it stands.
    pub status: claim::Status,
    /// The operation that cleans it up.
    pub operation: Option<u8>,
}

/// An allocation with everything that hangs on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// Where it stands.
    pub status: allocation::Status,
    /// The operation it is busy with.
    pub operation: u8,
    /// How many operation numbers were given out.
    pub issued: u8,
    /// Whether a usage record is open.
    pub billed: bool,
    /// Its claims, by slot.
    pub claims: [Option<Claim>; SLOTS],
    /// Its tasks, by operation.
    pub tasks: [Option<Task>; OPERATIONS],
}

impl Allocation {
    /// A new one with a claim on each of `slots`.
    pub fn on(slots: [bool; SLOTS]) -> Self {
        let claim = Claim { status: claim::Status::Reserved, operation: None };
        Self {
            status: allocation::Status::Requested,
            operation: 0,
            issued: 1,
            billed: false,
            claims: slots.map(|taken| taken.then_some(claim)),
            tasks: [None; OPERATIONS],
        }
    }

    /// Whether a task of it is live.
    pub fn has_live_task(&self) -> bool {
        self.tasks.iter().flatten().any(Task::is_live)
    }

    /// Whether a task of it was ever handed to an agent.
    pub fn was_dispatched(&self) -> bool {
        self.tasks.iter().flatten().any(|task| task.dispatch > 0)
    }

    /// Whether it has ended for good.
    pub fn has_ended(&self) -> bool {
        matches!(self.status, allocation::Status::Released | allocation::Status::Failed)
    }

    /// Whether it has a claim on `slot` that is not freed.
    pub fn holds(&self, slot: usize) -> bool {
        self.claims[slot].is_some_and(|claim| claim.status != claim::Status::Freed)
    }

    /// Whether every claim satisfies `holds`.
    pub fn every_claim(&self, holds: impl Fn(claim::Status) -> bool) -> bool {
        self.claims.iter().flatten().all(|claim| holds(claim.status))
    }
}

/// The group's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Where it stands.
    pub status: group::Status,
    /// Whether its release was asked for.
    pub release_requested: bool,
}

/// What the agent knows and does of one allocation. It survives a crash, all but the work at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// The newest work it has begun: one more than the operation, and the dispatch.
    pub fence: (u8, u8),
    /// The work at hand, see [`Agent::bit`]. An agent with a fence has one piece at the most.
    pub working: u8,
}

impl Agent {
    /// The fence behind which nothing is new.
    pub const CLOSED: (u8, u8) = (u8::MAX, u8::MAX);

    /// The bit under which the work for `dispatch` of operation `operation` is kept.
    pub fn bit(operation: usize, dispatch: u8) -> u8 {
        1 << (operation * 2 + usize::from(dispatch) - 1)
    }

    /// Whether it works for `dispatch` of `operation`.
    pub fn works_on(&self, operation: usize, dispatch: u8) -> bool {
        self.working & Self::bit(operation, dispatch) != 0
    }
}

/// What a step did that no row shows afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Breaches {
    /// A claim was freed by `claim.freed` with something of its allocation, or somebody working for
    /// it, on the slot.
    pub freed_unclean: bool,
    /// A terminal status was left.
    pub left_terminal: bool,
    /// Something was reported that nobody should have said.
    pub bug_reported: bool,
}

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The group.
    pub group: Group,
    /// The allocations, where they exist.
    pub allocations: [Option<Allocation>; ALLOCATIONS],
    /// The agent's side of each allocation.
    pub agents: [Agent; ALLOCATIONS],
    /// Whose things are on each slot.
    pub residue: [Option<u8>; SLOTS],
    /// What went wrong on the way here.
    pub breaches: Breaches,
}

impl State {
    /// Nothing at all.
    pub fn empty() -> Self {
        Self {
            group: Group { status: group::Status::Requested, release_requested: false },
            allocations: [None; ALLOCATIONS],
            agents: [Agent { fence: (0, 0), working: 0 }; ALLOCATIONS],
            residue: [None; SLOTS],
            breaches: Breaches::default(),
        }
    }

    /// Whether nobody has a claim on `slot` outside `freed`.
    pub fn is_free(&self, slot: usize) -> bool {
        self.allocations.iter().flatten().all(|allocation| !allocation.holds(slot))
    }

    /// Whether the agent is at work for allocation `i` on `slot`.
    pub fn touches(&self, i: usize, slot: usize) -> bool {
        let tasks = self.allocations[i].map_or([None; OPERATIONS], |row| row.tasks);
        (0..OPERATIONS).any(|t| {
            tasks[t].is_some_and(|task| {
                let works = |dispatch| self.agents[i].works_on(t, dispatch);
                task.slots[slot] && (1..=task.dispatch).any(works)
            })
        })
    }
}
