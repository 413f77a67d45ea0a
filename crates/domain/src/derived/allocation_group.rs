//! The allocation group: a parent over ordinary allocations. Its status is a total, order-free function of its members'
//! statuses, of which of them are required, and of whether release was asked for.

use Event::*;
use Status::*;
use lifecycle::Source::Derived;
use lifecycle::{Machine, Rule, Stamp, StatusSpec, codes, derived, lawful, on, terminal};

use crate::machines::ENDED_AT;
use crate::machines::allocation::Status as Member;

codes! {
    /// Where a group stands.
    pub enum Status {
        Requested = "requested",
        Provisioning = "provisioning",
        Active = "active",
        Degraded = "degraded",
        Releasing = "releasing",
        ReleaseFailed = "release_failed",
        Released = "released",
        Failed = "failed",
    }
}

codes! {
    /// What can become of the members, taken together.
    pub enum Event {
        MembersProvisioning = "members.provisioning",
        MembersActive = "members.active",
        MembersDegraded = "members.degraded",
        MembersReleasing = "members.releasing",
        MembersReleaseFailed = "members.release_failed",
        MembersReleased = "members.released",
        MembersFailed = "members.failed",
    }
}

/// The topic on which every change of a group is made known.
const CHANGED: &str = "allocation_groups.changed";

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AllocationGroup;

impl Machine for AllocationGroup {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "allocation_group";
    const INITIAL: Status = Requested;

    #[rustfmt::skip]
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        derived(Requested, "no required member has begun"),
        derived(Provisioning, "some required member is still on its way up"),
        derived(Active, "every required member is usable"),
        derived(Degraded, "a required member is lost, another is not"),
        derived(Releasing, "on its way out"),
        derived(ReleaseFailed, "a member's clean-up gave up, and nothing else is on its way"),
        terminal(Released, "every member has ended").entering(Stamp::now(ENDED_AT)),
        terminal(Failed, "no required member could become usable").entering(Stamp::now(ENDED_AT)),
    ];

    // Every status not named leads nowhere: a derivation that asks for such a way is a fault, hence `bug`.
    #[rustfmt::skip]
    const RULES: &'static [Rule<Status, Event>] = &[
        on(MembersProvisioning).by(&[Derived]).publishes(CHANGED)
            .moves(&[Requested], Provisioning)
            .duplicate_in(&[Provisioning])
            .bug_in(&[Active, Degraded, Releasing, ReleaseFailed, Released, Failed]),
        on(MembersActive).by(&[Derived]).publishes(CHANGED)
            .moves(&[Provisioning, Degraded], Active)
            .duplicate_in(&[Active])
            .bug_in(&[Requested, Releasing, ReleaseFailed, Released, Failed]),
        on(MembersDegraded).by(&[Derived]).publishes(CHANGED)
            .moves(&[Provisioning, Active], Degraded)
            .duplicate_in(&[Degraded])
            .bug_in(&[Requested, Releasing, ReleaseFailed, Released, Failed]),
        on(MembersReleasing).by(&[Derived]).publishes(CHANGED)
            .moves(&[Requested, Provisioning, Active, Degraded, ReleaseFailed], Releasing)
            .duplicate_in(&[Releasing])
            .bug_in(&[Released, Failed]),
        on(MembersReleaseFailed).by(&[Derived]).publishes(CHANGED)
            .moves(&[Provisioning, Releasing], ReleaseFailed)
            .duplicate_in(&[ReleaseFailed])
            .bug_in(&[Requested, Active, Degraded, Released, Failed]),
        on(MembersReleased).by(&[Derived]).publishes(CHANGED)
            .moves(&[Provisioning, Releasing, ReleaseFailed], Released)
            .duplicate_in(&[Released])
            .bug_in(&[Requested, Active, Degraded, Failed]),
        on(MembersFailed).by(&[Derived]).publishes(CHANGED)
            .moves(&[Requested, Provisioning], Failed)
            .duplicate_in(&[Failed])
            .bug_in(&[Active, Degraded, Releasing, ReleaseFailed, Released]),
    ];
}

lawful!(AllocationGroup);

/// What the group needs to know of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberView {
    /// Where it stands.
    pub status: Member,
    /// Whether the group is nothing without it.
    pub required: bool,
}

/// What a member's status means for its group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Coming,
    Usable,
    Lost,
    Leaving,
    LeftBehind,
    Released,
    Failed,
}

fn part(status: Member) -> Part {
    match status {
        Member::Requested | Member::Provisioning => Part::Coming,
        // A reboot takes nothing from the group.
        Member::Active | Member::Restarting => Part::Usable,
        Member::RestartFailed => Part::Lost,
        Member::Releasing => Part::Leaving,
        Member::ReleaseFailed => Part::LeftBehind,
        Member::Released => Part::Released,
        Member::Failed => Part::Failed,
    }
}

/// The status of a group with these members. A group in which nothing is marked required needs all of them.
pub fn derive(release_requested: bool, members: &[MemberView]) -> Status {
    let any_required = members.iter().any(|member| member.required);
    let counts = |member: &&MemberView| member.required || !any_required;
    let every =
        |holds: fn(Part) -> bool| members.iter().filter(counts).all(|m| holds(part(m.status)));
    let some =
        |holds: fn(Part) -> bool| members.iter().filter(counts).any(|m| holds(part(m.status)));

    if members.is_empty() {
        return if release_requested { Released } else { Requested };
    }
    if release_requested {
        return on_the_way_out(members);
    }
    if every(|part| part == Part::Failed) {
        return Failed;
    }
    // None of them can be usable again, and at least one was given back: the group goes as they go.
    if every(|part| {
        matches!(part, Part::Leaving | Part::LeftBehind | Part::Released | Part::Failed)
    }) {
        return on_the_way_out(members);
    }
    if some(|part| part == Part::Coming) {
        let untouched = members.iter().filter(counts).all(|m| m.status == Member::Requested);
        return if untouched { Requested } else { Provisioning };
    }
    if every(|part| part == Part::Usable) { Active } else { Degraded }
}

/// The status of a group that is leaving: it has gone only when every member has, the optional ones too.
fn on_the_way_out(members: &[MemberView]) -> Status {
    let ended = |member: &MemberView| matches!(part(member.status), Part::Released | Part::Failed);
    let left_behind = |member: &MemberView| part(member.status) == Part::LeftBehind;
    if members.iter().all(ended) {
        Released
    } else if members.iter().all(|member| ended(member) || left_behind(member)) {
        ReleaseFailed
    } else {
        Releasing
    }
}
