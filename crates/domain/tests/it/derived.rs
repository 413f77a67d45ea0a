//! The derived statuses: total, order-free, and never by a way that is not declared.

use std::collections::BTreeSet;

use domain::derived::allocation_group::{MemberView, Status, derive};
use domain::derived::{balance, crossing};
use domain::machines::allocation::Status as Member;
use domain::machines::{Allocation, AllocationGroup, Balance};
use lifecycle::{Code, Lawful};

/// Every multiset of `size` members, as sorted lists.
fn multisets(size: usize) -> Vec<Vec<MemberView>> {
    let views: Vec<MemberView> = Member::ALL
        .iter()
        .flat_map(|status| [true, false].map(|required| MemberView { status: *status, required }))
        .collect();
    let mut lists: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..size {
        let longer = |list: &Vec<usize>| {
            let first = list.last().copied().unwrap_or(0);
            (first..views.len()).map(|next| [list.clone(), vec![next]].concat()).collect::<Vec<_>>()
        };
        lists = lists.iter().flat_map(longer).collect();
    }
    lists.iter().map(|list| list.iter().map(|view| views[*view]).collect()).collect()
}

fn all_groups() -> Vec<Vec<MemberView>> {
    (0..=4).flat_map(multisets).collect()
}

/// Every group that one legal transition of one member leads to.
fn neighbours(members: &[MemberView]) -> Vec<Vec<MemberView>> {
    let mut next = Vec::new();
    for (index, member) in members.iter().enumerate() {
        for (from, to) in Allocation::table().pairs() {
            if member.status.index() == from {
                let mut changed = members.to_vec();
                changed[index].status = Member::ALL[to];
                next.push(changed);
            }
        }
    }
    next
}

fn permutations(members: &[MemberView]) -> Vec<Vec<MemberView>> {
    if members.len() < 2 {
        return vec![members.to_vec()];
    }
    let mut all = Vec::new();
    for first in 0..members.len() {
        let mut rest = members.to_vec();
        let head = rest.remove(first);
        all.extend(permutations(&rest).into_iter().map(|tail| [vec![head], tail].concat()));
    }
    all
}

#[test]
fn the_order_of_members_does_not_matter() {
    let mut compared = 0;
    for members in all_groups() {
        for release_requested in [false, true] {
            let status = derive(release_requested, &members);
            for permuted in permutations(&members) {
                assert_eq!(derive(release_requested, &permuted), status, "{members:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 200_000, "only {compared} orders were compared");
}

/// Exhaustive for up to four members. A group that has ended is not asked to release again.
#[test]
fn every_member_transition_gives_no_change_or_a_declared_edge() {
    let mut exercised = BTreeSet::new();
    let mut tried = 0;
    let mut step = |from: Status, to: Status, why: &dyn Fn() -> String| {
        tried += 1;
        if from != to {
            assert!(crossing::<AllocationGroup>(from, to).is_some(), "{from} -> {to}: {}", why());
            exercised.insert((from.index(), to.index()));
        }
    };
    for members in all_groups().iter().filter(|members| !members.is_empty()) {
        for release_requested in [false, true] {
            let from = derive(release_requested, members);
            for next in neighbours(members) {
                let why = || format!("{members:?} -> {next:?}, release {release_requested}");
                step(from, derive(release_requested, &next), &why);
            }
        }
        let unasked = derive(false, members);
        if !AllocationGroup::table().is_terminal(unasked.index()) {
            step(unasked, derive(true, members), &|| format!("release of {members:?}"));
        }
    }
    let declared: BTreeSet<_> = AllocationGroup::table().pairs().into_iter().collect();
    assert_eq!(exercised, declared, "an edge is declared that nothing takes");
    assert!(tried > 20_000, "only {tried} transitions were tried");
}

#[test]
fn a_group_has_ended_only_when_no_member_can_still_change_its_status() {
    for members in all_groups() {
        for release_requested in [false, true] {
            let status = derive(release_requested, &members);
            if status == Status::Released && !members.is_empty() {
                let ended = |m: &MemberView| Allocation::table().is_terminal(m.status.index());
                assert!(members.iter().all(ended), "{members:?} says released");
            }
        }
    }
}

fn group(members: &[(Member, bool)]) -> Vec<MemberView> {
    members
        .iter()
        .map(|(status, required)| MemberView { status: *status, required: *required })
        .collect()
}

#[test]
fn the_sentences_of_the_contract_hold() {
    use Member::*;
    let status = |members: &[(Member, bool)]| derive(false, &group(members));
    assert_eq!(status(&[(Active, true), (Failed, true)]), Status::Degraded);
    assert_eq!(
        status(&[(Active, true), (Failed, false)]),
        Status::Active,
        "an optional loss is no loss"
    );
    assert_eq!(status(&[(Active, true), (RestartFailed, true)]), Status::Degraded);
    assert_eq!(
        status(&[(Active, true), (Restarting, true)]),
        Status::Active,
        "a reboot keeps the status"
    );
    assert_eq!(status(&[(Failed, true), (Active, false)]), Status::Failed);
    assert_eq!(status(&[(Failed, true), (Provisioning, true)]), Status::Provisioning);
    assert_eq!(status(&[(Releasing, true), (Active, true)]), Status::Degraded);
    let leaving = |members: &[(Member, bool)]| derive(true, &group(members));
    assert_eq!(leaving(&[(Released, true), (ReleaseFailed, true)]), Status::ReleaseFailed);
    assert_eq!(leaving(&[(Releasing, true), (ReleaseFailed, true)]), Status::Releasing);
    assert_eq!(leaving(&[(Released, true), (Failed, true)]), Status::Released);
    assert_eq!(leaving(&[(Active, true), (Released, true)]), Status::Releasing);
}

#[test]
fn a_balance_crosses_each_line_by_a_declared_event() {
    let amounts = [-1, 0, 1, 999, 1_000, 1_001, i64::MAX, i64::MIN];
    for before in amounts {
        for after in amounts {
            let (from, to) = (balance::derive(before, 1_000), balance::derive(after, 1_000));
            assert_eq!(crossing::<Balance>(from, to).is_some(), from != to, "{before} -> {after}");
        }
    }
    assert_eq!(balance::derive(0, 1_000), balance::Status::Depleted);
    assert_eq!(balance::derive(1_000, 1_000), balance::Status::LowBalance);
    assert_eq!(balance::derive(1_001, 1_000), balance::Status::Healthy);
}
