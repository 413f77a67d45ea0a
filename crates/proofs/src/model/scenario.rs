//! The scenarios of each size, and for each flaw the one in which it shows and the property it
//! breaks.

use super::Size;
use super::config::{Config, Flaw, Member, SLOTS};
use super::properties::{ALL_DONE, CLAIMS_FIT, FOLDED, FREED_CLEAN, OWN_SLOT, OWN_WORK};

const FIRST: Member = Member {
    slots: 1,
    from_start: true,
    grouped: true,
    required: true,
    operations: 2,
    sketched: false,
};

/// A scenario under its name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What it is about.
    pub name: &'static str,
    /// What it is.
    pub config: Config,
    /// Whether its graph is small enough to be searched backwards too.
    pub searched: bool,
}

/// A group of two, its members on a slot each.
const fn pair(operations: (u8, u8), sketched: bool, required: bool) -> Config {
    let one = Member { operations: operations.0, sketched, ..FIRST };
    let other = Member { operations: operations.1, required, ..one };
    Config { members: [one, other], dispatches: 1, flaw: None }
}

/// One allocation, and another that takes a slot of it when it comes free.
const fn succession(slots: usize, operations: (u8, u8), dispatches: u8) -> Config {
    let first = Member { slots, operations: operations.0, grouped: false, ..FIRST };
    let second =
        Member { slots: 1, from_start: false, operations: operations.1, sketched: true, ..first };
    Config { members: [first, second], dispatches, flaw: None }
}

/// A group of one, which has the operations for a restart after a restart that failed.
const fn alone() -> Config {
    let mut config = succession(1, (4, 0), 1);
    // The other wants more than there is, and so never comes.
    config.members[1].slots = SLOTS + 1;
    config.members[0].grouped = true;
    config.members[0].sketched = true;
    config
}

const fn scenario(name: &'static str, config: Config, searched: bool) -> Scenario {
    Scenario { name, config, searched }
}

/// The scenarios of a size.
pub fn scenarios(size: Size) -> Vec<Scenario> {
    match size {
        Size::Small => vec![
            scenario("two required members", pair((2, 2), true, true), true),
            scenario("a required and an optional member", pair((2, 2), true, false), false),
            scenario("a group of one that restarts", alone(), true),
            scenario("a slot and its next tenant", succession(1, (3, 0), 1), true),
            scenario("a slot handed out twice", succession(1, (2, 0), 2), true),
        ],
        Size::Full => vec![
            scenario("two required members, rows only", pair((3, 3), true, true), false),
            scenario(
                "a required and an optional member, rows only",
                pair((3, 3), true, false),
                false,
            ),
            scenario("two required members", pair((2, 2), false, true), false),
            scenario("a required and an optional member", pair((2, 2), false, false), false),
            scenario("a group of one that restarts", alone(), true),
            scenario(
                "a slot and its next tenant, four operations",
                succession(1, (4, 0), 2),
                false,
            ),
            scenario(
                "two slots and their next tenant, three operations",
                succession(2, (3, 0), 2),
                true,
            ),
            scenario(
                "two slots and the life of their next tenant",
                succession(2, (3, 2), 1),
                false,
            ),
        ],
    }
}

impl Flaw {
    /// Where it shows.
    pub fn shows_in(self) -> Config {
        let scenario = match self {
            Flaw::GroupNotFolded => pair((2, 2), true, true),
            Flaw::GroupReleasedLate => pair((2, 2), true, false),
            Flaw::AnyDispatch => succession(1, (2, 0), 2),
            Flaw::CleansEverything => succession(2, (3, 0), 1),
            Flaw::AnyOperation
            | Flaw::FreedUnproven
            | Flaw::FreedUngated
            | Flaw::TasksLeftAlive
            | Flaw::AgentUnfenced
            | Flaw::AgentForgets
            | Flaw::ClearedUnfenced
            | Flaw::GaveUpCleaning
            | Flaw::StuckDespiteProof
            | Flaw::ClaimTimedAlone
            | Flaw::ClaimTimedLate => succession(1, (3, 0), 1),
        };
        scenario.with(self)
    }

    /// What it breaks.
    pub fn breaks(self) -> &'static str {
        match self {
            Flaw::FreedUnproven | Flaw::AgentUnfenced => FREED_CLEAN,
            Flaw::AgentForgets | Flaw::ClearedUnfenced | Flaw::ClaimTimedAlone => OWN_SLOT,
            Flaw::AnyDispatch | Flaw::CleansEverything => OWN_WORK,
            Flaw::GroupNotFolded | Flaw::GroupReleasedLate => FOLDED,
            Flaw::TasksLeftAlive => ALL_DONE,
            Flaw::AnyOperation
            | Flaw::FreedUngated
            | Flaw::GaveUpCleaning
            | Flaw::StuckDespiteProof
            | Flaw::ClaimTimedLate => CLAIMS_FIT,
        }
    }
}
