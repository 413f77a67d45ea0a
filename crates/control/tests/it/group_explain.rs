//! Why a group is as it is: by its members, and as far as it is for whoever asks.

use std::time::Duration;

use control::allocation_group::{explain as of_group, release};
use control::{Caller, Error};
use domain::derived::allocation_group::Status;
use domain::ids::AllocationGroupId;
use testkit::{Act, House, new_id};
use wire::http::allocations::Action;
use wire::http::explain::{GroupExplanation, Owner};
use wire::node::{Access, TaskOutcome};

async fn house() -> House {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 1, 1]).await;
    house
}

fn holding(told: &GroupExplanation) -> Vec<bool> {
    told.members.iter().map(|member| member.holds_up).collect()
}

/// Who takes the next step, and what is said of it.
fn next(told: &GroupExplanation) -> (Owner, &str) {
    let next = told.next_step.as_ref().expect("there is one");
    (next.owner.0, &next.then)
}

#[tokio::test]
async fn a_group_is_explained_by_the_members_it_waits_for() {
    let house = house().await;
    let group = house.group("h100.slice", &[1, 2]).await.expect("it fits");
    let id = AllocationGroupId(group.id);
    let tell = async || of_group::for_tenant(&house.ctx, &house.tenant, id).await.expect("theirs");
    let told = tell().await;
    assert_eq!(holding(&told), [true, true]);
    assert_eq!(next(&told).0, Owner::Berth);
    assert!(told.next_step.as_ref().is_some_and(|next| next.by.is_some() && !next.overdue));

    house.first_node().will(&[Act::Succeed, Act::FallSilent]);
    house.settle().await;
    let told = tell().await;
    // Whichever comes second is the one that is waited for.
    let late = usize::from(told.members[1].holds_up);
    let [one, two] = [&group.members[1 - late], &group.members[late]];
    let only = |place: usize| vec![place == 0, place == 1];
    assert_eq!(holding(&told), only(late), "{told:#?}");
    let (owner, then) = next(&told);
    assert!(
        owner == Owner::Berth && then.contains(&two.name) && !then.contains(&one.name),
        "{then}"
    );
    assert!(told.members[late].waits_for[0].what.contains("is at its task"), "{told:#?}");
    assert!(told.members[1 - late].waits_for.is_empty());
    let given = house.first_node().take_held().pop().expect("it was handed out");
    let access = Access { host: "192.0.2.7".to_owned(), port: 22, user: "tenant".to_owned() };
    house.first_node().answer(&house.ctx, &given, TaskOutcome::Provisioned { access }).await;
    house.settle().await;
    let told = tell().await;
    assert_eq!((holding(&told), next(&told).0), (vec![false, false], Owner::Nobody));
    assert_eq!(told.may_do.len(), 1);

    house.first_node().will(&[Act::KeepBoot]);
    house.restart(one.id).await.expect("asked");
    house.settle().await;
    let told = tell().await;
    assert_eq!((told.status.0, holding(&told)), (Status::Degraded, only(1 - late)));
    let (owner, then) = next(&told);
    assert!(owner == Owner::You && then.contains(&one.name), "{owner} {then}");
    assert_eq!(told.members[1 - late].reason.as_deref(), Some("node_did_not_return"));
    let may: Vec<Action> = told.members[1 - late].may_do.iter().map(|may| may.action.0).collect();
    assert_eq!(may, [Action::Restart, Action::Release]);
    assert_eq!(told.steps[0].name, "degraded");
    house.close().await;
}

#[tokio::test]
async fn a_group_that_is_not_clean_names_what_is_left_and_operators_see_who_is_at_it() {
    let house = house().await;
    let group = house.group("h100.slice", &[1, 2]).await.expect("it fits");
    house.settle().await;
    let (ctx, id) = (&house.ctx, AllocationGroupId(group.id));
    let key = house.key("release_allocation_group");
    release::request(ctx, &house.tenant, id, Some(&key)).await.expect("asked");
    let told = of_group::for_operator(ctx, &house.operator, id).await.expect("any");
    assert_eq!(told.runs[0].workflow, "group_release", "{told:#?}");
    assert!(told.steps.iter().all(|step| step.actor.is_some()));
    assert!(next(&told).1.contains("asked to go"), "{told:#?}");
    let told = of_group::for_tenant(ctx, &house.tenant, id).await.expect("theirs");
    assert!(told.runs.is_empty() && told.steps.iter().all(|step| step.actor.is_none()));

    // The first of the two to be cleaned up never is.
    house.first_node().will(&[Act::LeaveResidue, Act::Succeed]);
    house.first_node().will(&[Act::LeaveResidue; 4]);
    house.settle().await;
    for _ in 0..20 {
        house.pass(Duration::from_secs(600)).await;
    }
    let told = of_group::for_tenant(ctx, &house.tenant, id).await.expect("theirs");
    assert_eq!(told.status.0, Status::ReleaseFailed, "{told:#?}");
    assert_eq!(holding(&told).iter().filter(|holds| **holds).count(), 1);
    let left = told.members.iter().find(|member| member.holds_up).expect("one");
    assert!(next(&told).1.contains(&left.name) && left.next_step.is_some(), "{told:#?}");
    assert_eq!(told.may_do.len(), 1, "it can be tried again");
    let stranger = Caller { user_id: new_id(), ..house.tenant.clone() };
    let hidden = of_group::for_tenant(ctx, &stranger, id).await;
    assert!(matches!(hidden, Err(Error::NotFound(_))), "{hidden:?}");
    let mere = of_group::for_operator(ctx, &house.tenant, id).await;
    assert!(matches!(mere, Err(Error::Forbidden(_))), "{mere:?}");
    house.close().await;
}
