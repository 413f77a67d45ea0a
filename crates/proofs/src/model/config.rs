//! What is put to the model: who takes which slots, how far everything may go, and the one thing
//! that may be wrong.

/// How many allocations there are at the most.
pub const ALLOCATIONS: usize = 2;
/// How many slots the node has.
pub const SLOTS: usize = 2;
/// How many operations one allocation can have at the most.
pub const OPERATIONS: usize = 4;

/// One allocation of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// How many slots it asks for.
    pub slots: usize,
    /// Whether it is there from the start, all members together or none; else it comes when slots
    /// are free.
    pub from_start: bool,
    /// Whether it belongs to the group.
    pub grouped: bool,
    /// Whether the group is nothing without it.
    pub required: bool,
    /// How many operations it may have: its provision, its restarts, its releases and clean-ups.
    /// Two let it come and go; with none it is placed and then stays as it is.
    pub operations: u8,
    /// Whether only its rows are looked at: the agent's results come out of nowhere, at once, and
    /// its claims have no deadline of their own. For scenarios that are about something else.
    pub sketched: bool,
}

/// A scenario, its bounds and its flaw.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The allocations.
    pub members: [Member; ALLOCATIONS],
    /// How often a task may be handed out.
    pub dispatches: u8,
    /// What is wrong, if anything is.
    pub flaw: Option<Flaw>,
}

impl Config {
    /// The same scenario with something wrong.
    #[must_use]
    pub fn with(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

/// One thing that is wrong. Each must give a counterexample, or the model proves nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// No event checks which operation it answers.
    AnyOperation,
    /// A result counts from whichever dispatch it comes.
    AnyDispatch,
    /// `claim.freed` does not ask for the proof.
    FreedUnproven,
    /// A handler frees the claims whatever became of its `release.completed`.
    FreedUngated,
    /// `release.completed` and `release.abandoned` do not ask for the end of all tasks.
    TasksLeftAlive,
    /// A member's transaction does not fold the group anew.
    GroupNotFolded,
    /// The release of a group that has ended is taken down all the same.
    GroupReleasedLate,
    /// The agent runs whatever reaches it, in whatever order, side by side.
    AgentUnfenced,
    /// The agent does not remember, after a crash, what it has begun.
    AgentForgets,
    /// An operator clears a slot without telling the agent that the allocation is over.
    ClearedUnfenced,
    /// A clean-up is about every slot that the allocation ever had.
    CleansEverything,
    /// Giving up on a release leaves its claims `cleaning`.
    GaveUpCleaning,
    /// A proof that comes after the claim got stuck does not take the claim up again.
    StuckDespiteProof,
    /// The deadline of a `reserved` claim is acted on without a look at its allocation.
    ClaimTimedAlone,
    /// The deadline of a `reserved` claim is acted on after the claim was activated.
    ClaimTimedLate,
}

impl Flaw {
    /// All of them.
    pub const ALL: &'static [Flaw] = &[
        Flaw::AnyOperation,
        Flaw::AnyDispatch,
        Flaw::FreedUnproven,
        Flaw::FreedUngated,
        Flaw::TasksLeftAlive,
        Flaw::GroupNotFolded,
        Flaw::GroupReleasedLate,
        Flaw::AgentUnfenced,
        Flaw::AgentForgets,
        Flaw::ClearedUnfenced,
        Flaw::CleansEverything,
        Flaw::GaveUpCleaning,
        Flaw::StuckDespiteProof,
        Flaw::ClaimTimedAlone,
        Flaw::ClaimTimedLate,
    ];

    /// What it is called in a proof.
    pub fn name(self) -> &'static str {
        match self {
            Flaw::AnyOperation => "without same_operation",
            Flaw::AnyDispatch => "without same_dispatch",
            Flaw::FreedUnproven => "without cleanup_proven",
            Flaw::FreedUngated => "with freeing not gated on the outcome",
            Flaw::TasksLeftAlive => "without no_live_tasks",
            Flaw::GroupNotFolded => "without folding the group",
            Flaw::GroupReleasedLate => "with the release of a group that has ended",
            Flaw::AgentUnfenced => "with an agent that takes old work",
            Flaw::AgentForgets => "with an agent that forgets in a crash",
            Flaw::ClearedUnfenced => "with clearing that the agent does not hear of",
            Flaw::CleansEverything => "with a clean-up of slots given back before",
            Flaw::GaveUpCleaning => "with claims left cleaning when a release gives up",
            Flaw::StuckDespiteProof => "with a proof that leaves stuck claims alone",
            Flaw::ClaimTimedAlone => "with a claim's deadline that ignores the allocation",
            Flaw::ClaimTimedLate => "with a claim's deadline that comes after activation",
        }
    }
}
