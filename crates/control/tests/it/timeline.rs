//! What people see of an allocation: honest sentences, what they may do, and a timeline in which nothing is found that was
//! not written for them.

use std::time::Duration;

use control::Caller;
use control::allocation::{timeline, view};
use control::operations;
use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use testkit::{Act, House, new_id};
use wire::http::allocations::Action;
use wire::http::timeline::{Basis, ItemKind, ItemStatus, Timeline, TimelineItem};
use wire::node::{FailureReason, PhaseStatus, TaskOutcome};

async fn seen(house: &House, id: uuid::Uuid) -> Timeline {
    timeline::for_tenant(&house.ctx, &house.tenant, AllocationId(id)).await.expect("theirs")
}

/// Every invariant holds.
async fn is_sound(house: &House) {
    let checked = operations::invariants(&house.ctx, &house.operator).await.expect("an answer");
    assert!(checked.clean, "{checked:?}");
}

fn names(timeline: &Timeline) -> Vec<&str> {
    timeline.items.iter().map(|item| item.name.as_str()).collect()
}

fn task<'t>(timeline: &'t Timeline, kind: &str) -> &'t TimelineItem {
    let found = timeline.items.iter().find(|item| item.name == kind);
    found.unwrap_or_else(|| panic!("there is no {kind}: {:?}", names(timeline)))
}

#[tokio::test]
async fn a_life_is_told_from_the_request_to_the_proof() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let id = house.active("h100.slice", 2).await.id;
    let told = seen(&house, id).await;
    assert_eq!(told.status.0, Status::Active);
    assert_eq!(
        names(&told),
        ["requested", "placement_reserved", "provisioning_started", "slice.vm_provision", "active"]
    );
    let provision = task(&told, "slice.vm_provision");
    assert_eq!(provision.kind.0, ItemKind::NodeTask);
    assert_eq!(provision.status.0, ItemStatus::Succeeded);
    assert_eq!(provision.summary, "Creating GPU slice VM");
    assert!(provision.task_id.is_some() && provision.completed_at.is_some());
    assert!(!provision.phases.is_empty());
    for phase in &provision.phases {
        assert_eq!(phase.status.0, PhaseStatus::Succeeded, "{phase:?}");
    }
    assert_eq!(task(&told, "placement_reserved").summary, "2 GPUs on one machine were reserved.");

    house.release(id).await.expect("it is theirs");
    house.settle().await;
    let told = seen(&house, id).await;
    assert_eq!(names(&told)[5..], ["releasing", "slice.vm_release", "released"]);
    adds_up(&told);
    assert!(told.ended_at.is_some());
    is_sound(&house).await;
    house.close().await;
}

/// The steps tile the time from the request to the end; everything else lies in one of them.
fn adds_up(told: &Timeline) {
    let of_state = |item: &&TimelineItem| item.kind.0 == ItemKind::AllocationState;
    let states: Vec<&TimelineItem> = told.items.iter().filter(of_state).collect();
    assert_eq!(states[0].started_at, told.started_at);
    for (state, next) in states.iter().zip(&states[1..]) {
        assert_eq!(state.completed_at, Some(next.started_at), "{told:?}");
    }
    assert_eq!(states[states.len() - 1].completed_at, told.ended_at);
    let sum: i64 = states.iter().map(|state| state.duration_seconds).sum();
    assert_eq!(sum, told.total_seconds, "{told:?}");
    if let Some(ended) = told.ended_at {
        assert_eq!(told.total_seconds, ended.duration_since(told.started_at).as_secs());
    }
    let mut ids: Vec<&str> = told.items.iter().map(|item| item.id.as_str()).collect();
    for item in told.items.iter().filter(|item| !of_state(item)) {
        let within = item.within.as_deref().expect("it began in a step");
        assert!(states.iter().any(|state| state.id == within), "{item:?}");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), told.items.len(), "each has an identity of its own");
}

#[tokio::test]
async fn however_it_went_the_items_add_up_to_the_wall_time() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    // Slow: two hours, of which most passed while the machine worked.
    house.first_node().will(&[Act::FallSilent]);
    let slow = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.ctx.clock.advance(Duration::from_secs(7_200));
    let told = seen(&house, slow).await;
    adds_up(&told);
    assert!((7_200..7_260).contains(&told.total_seconds), "{}", told.total_seconds);
    assert!(told.ended_at.is_none());
    let open = told.items.iter().rfind(|item| item.id.starts_with("state:")).expect("one");
    assert!(open.completed_at.is_none() && open.duration_seconds >= 7_199, "{open:?}");
    // Called off before it was ready.
    house.release(slow).await.expect("theirs");
    house.settle().await;
    let told = seen(&house, slow).await;
    adds_up(&told);
    let releasing = task(&told, "releasing");
    assert!(releasing.summary.contains("called off before it was ready"), "{releasing:?}");
    // Restarted: in vain at first, then well.
    let restarted = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::Fail(FailureReason::GuestMissing)]);
    house.restart(restarted).await.expect("theirs");
    house.settle().await;
    house.restart(restarted).await.expect("theirs");
    house.settle().await;
    let told = seen(&house, restarted).await;
    adds_up(&told);
    let states: Vec<(&str, &str)> = told
        .items
        .iter()
        .filter(|item| item.kind.0 == ItemKind::AllocationState)
        .map(|item| (item.name.as_str(), item.summary.as_str()))
        .collect();
    assert_eq!(
        states[2..],
        [
            ("active", "It is ready to use, and billed from here on."),
            ("restarting", "A restart was asked for; SSH and terminals disconnect."),
            ("restart_failed", "The restart did not succeed. It is not billed meanwhile."),
            ("restarting", "The restart is tried again."),
            ("active", "It is back, and ready to use."),
        ]
    );
    assert!(task(&told, "restart_failed").reason.is_some(), "it keeps its reason: {told:?}");
    // One whose clean-up failed for a while.
    let failed = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::Fail(FailureReason::DriverFailed), Act::LeaveResidue]);
    house.release(failed).await.expect("theirs");
    house.pass(Duration::from_secs(1)).await;
    adds_up(&seen(&house, failed).await);
    house.pass(Duration::from_secs(120)).await;
    house.pass(Duration::from_secs(120)).await;
    let told = seen(&house, failed).await;
    assert_eq!(told.status.0, Status::Released);
    adds_up(&told);
    let attempts = told.items.iter().filter(|item| item.name == "slice.vm_release");
    assert_eq!(
        attempts.map(|item| item.status.0).collect::<Vec<_>>(),
        [ItemStatus::Failed, ItemStatus::Failed, ItemStatus::Succeeded]
    );
    house.close().await;
}

/// Every item says what it is in a sentence or a few words for people; what failed says why, and what is done about it.
fn is_understandable(told: &Timeline) {
    for item in &told.items {
        let summary = item.summary.as_str();
        assert!(
            summary.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit()),
            "{item:?}"
        );
        assert!(summary.split_whitespace().count() >= 3, "{item:?}");
        assert!(!summary.contains('_') && !summary.contains("::"), "a word of ours: {item:?}");
        if item.status.0 == ItemStatus::Failed {
            let advice = item.advice.as_deref().unwrap_or_default();
            assert!(item.reason.is_some() && advice.ends_with('.'), "{item:?}");
        }
    }
}

/// How each step of the allocation is told, in order.
fn states(told: &Timeline) -> Vec<&str> {
    let of_state = |item: &&TimelineItem| item.kind.0 == ItemKind::AllocationState;
    told.items.iter().filter(of_state).map(|item| item.name.as_str()).collect()
}

#[tokio::test]
async fn whatever_became_of_it_its_steps_add_up_and_can_be_understood() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0]).await;
    let told = async |id| {
        let told = seen(&house, id).await;
        adds_up(&told);
        is_understandable(&told);
        told
    };
    // Failed, and slow before it did.
    house.first_node().will(&[Act::FallSilent]);
    let failed = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.ctx.clock.advance(Duration::from_secs(240));
    let slow = told(failed).await;
    assert!((240..300).contains(&slow.total_seconds), "{slow:?}");
    let given = house.first_node().take_held().pop().expect("it was handed out");
    let outcome = TaskOutcome::Failed {
        reason: FailureReason::SshNotReady.into(),
        phase: None,
        message: String::new(),
    };
    house.first_node().answer(&house.ctx, &given, outcome).await;
    house.settle().await;
    let of_failed = told(failed).await;
    assert_eq!(states(&of_failed), ["requested", "provisioning_started", "failed"]);
    // Cancelled while the machine was at it.
    house.first_node().will(&[Act::FallSilent]);
    let cancelled = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    house.ctx.clock.advance(Duration::from_secs(30));
    house.release(cancelled).await.expect("theirs");
    house.settle().await;
    let of_cancelled = told(cancelled).await;
    assert_eq!(states(&of_cancelled)[1..], ["provisioning_started", "releasing", "released"]);
    // A clean-up that was given up, stood for an hour, and was then tried again.
    let left = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.release(left).await.expect("theirs");
    house.settle().await;
    for _ in 0..10 {
        house.pass(Duration::from_secs(600)).await;
    }
    let of_left = told(left).await;
    assert_eq!(of_left.status.0, Status::ReleaseFailed, "{of_left:?}");
    house.pass(Duration::from_secs(3_600)).await;
    let of_left = told(left).await;
    let stood = task(&of_left, "release_failed").duration_seconds;
    assert!(stood >= 3_600, "the time in which it stands is in it: {of_left:?}");
    house.release(left).await.expect("once more");
    house.settle().await;
    let of_left = told(left).await;
    assert_eq!(
        states(&of_left)[2..],
        ["active", "releasing", "release_failed", "releasing", "released"]
    );
    house.close().await;
}

#[tokio::test]
async fn a_failure_is_told_with_what_is_done_about_it() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await.will(&[Act::Fail(FailureReason::GuestNotReady)]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let told = seen(&house, id).await;
    for name in ["slice.vm_provision", "failed"] {
        let item = task(&told, name);
        assert_eq!(item.status.0, ItemStatus::Failed);
        assert_eq!(item.reason.as_deref(), Some("guest_not_ready"), "{name}");
        let advice = item.advice.as_deref().unwrap_or_default();
        assert!(advice.contains("an image that has the drivers installed"), "{advice}");
    }
    let shown = house.show(id).await;
    assert_eq!(shown.status_reason.as_deref(), Some("guest_not_ready"));
    assert!(shown.status_text.contains("You were not charged"), "{}", shown.status_text);
    assert!(shown.allowed_actions.is_empty());
    is_sound(&house).await;
    house.close().await;
}

#[tokio::test]
async fn tenants_and_operators_are_told_what_is_for_them() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await.will(&[Act::Fail(FailureReason::SshNotReady)]);
    let id = AllocationId(house.create("h100.slice", 1).await.expect("it fits").id);
    house.settle().await;
    let told = seen(&house, id.uuid()).await;
    let hidden = |item: &TimelineItem| {
        item.actor.is_none() && item.node.is_none() && item.dispatches.is_none()
    };
    assert!(told.items.iter().all(hidden), "{told:?}");
    let advice = task(&told, "slice.vm_provision").advice.clone().expect("it failed");
    assert!(!advice.contains("The agent says"), "{advice}");

    let operators = timeline::for_operator(&house.ctx, &house.operator, id).await.expect("theirs");
    assert_eq!(names(&operators), names(&told));
    let failed = task(&operators, "slice.vm_provision");
    assert_eq!((failed.node.as_deref(), failed.dispatches), (Some("node-0"), Some(1)));
    let advice = failed.advice.as_deref().expect("it failed");
    assert!(advice.contains("The agent says"), "{advice}");
    assert!(!advice.chars().any(char::is_control));
    let requested = task(&operators, "requested");
    assert_eq!(requested.actor, Some(format!("user {}", house.tenant.user_id)));
    let refused = timeline::for_operator(&house.ctx, &house.tenant, id).await;
    assert!(refused.is_err(), "a tenant is no operator");
    is_sound(&house).await;
    house.close().await;
}

#[tokio::test]
async fn how_long_it_usually_takes_is_said_once_it_is_known() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0, 0, 0, 0, 0]).await;
    for _ in 0..4 {
        house.active("h100.slice", 1).await;
    }
    // Two that stay open: the first is asked for when four are known, the second when five are.
    house.first_node().will(&[Act::FallSilent]);
    let early = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let told = seen(&house, early).await;
    let open = task(&told, "slice.vm_provision");
    assert_eq!((open.status.0, open.completed_at), (ItemStatus::Running, None));
    let guess = open.expected_seconds.expect("a guess");
    assert_eq!((guess.basis.0, guess.p50), (Basis::Default, 240), "four are too few");
    let whole = told.expected_seconds.expect("a guess");
    assert_eq!((whole.basis.0, whole.p50), (Basis::Default, 242));
    house.active("h100.slice", 1).await;
    let told = seen(&house, early).await;
    for expected in [task(&told, "slice.vm_provision").expected_seconds, told.expected_seconds] {
        let expected = expected.expect("five are enough");
        assert_eq!(expected.basis.0, Basis::Image);
        assert!(expected.p50 <= expected.p90 && expected.p90 < 60, "{expected:?}");
    }
    is_sound(&house).await;
    house.close().await;
}

#[tokio::test]
async fn what_may_be_done_depends_on_who_asks_and_where_it_stands() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let id = house.active("h100.slice", 1).await.id;
    let actions = async |caller: &Caller| {
        let shown = view::show(&house.ctx, caller, AllocationId(id)).await.expect("theirs");
        shown.allowed_actions.iter().map(|action| action.0).collect::<Vec<Action>>()
    };
    assert_eq!(actions(&house.tenant).await, [Action::Restart, Action::Release]);
    let both = Caller { operator: true, ..house.tenant.clone() };
    assert_eq!(actions(&both).await, [Action::Restart, Action::Release, Action::ForceRelease]);
    let filter = view::Filter { status: Some(Status::Active), ..view::Filter::default() };
    let page = view::admin_list(&house.ctx, &house.operator, &filter, None, None).await;
    let page = page.expect("a list");
    let offered: Vec<Action> =
        page.items[0].allowed_actions.iter().map(|action| action.0).collect();
    assert_eq!(offered, [Action::Restart, Action::ForceRelease]);

    let shown = house.show(id).await;
    assert!(shown.access.is_some(), "there is something to reach");
    assert_eq!(shown.node.as_deref(), Some("node-0"));
    house.release(id).await.expect("theirs");
    let shown = house.show(id).await;
    assert!(shown.access.is_none() && shown.allowed_actions.is_empty());
    assert!(shown.status_text.contains("not being charged since"), "{}", shown.status_text);
    house.settle().await;
    let shown = house.show(id).await;
    assert_eq!((shown.node, shown.slots.len()), (None, 0));
    assert!(shown.status_text.contains("the receipt proves it"), "{}", shown.status_text);
    is_sound(&house).await;
    house.close().await;
}

#[tokio::test]
async fn operators_see_that_every_invariant_holds() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 1]).await;
    let id = house.active("h100.slice", 2).await.id;
    house.release(id).await.expect("theirs");
    house.settle().await;
    let checked = operations::invariants(&house.ctx, &house.operator).await.expect("an answer");
    assert!(checked.clean, "{checked:?}");
    assert_eq!(checked.invariants.len(), store::audit::INVARIANTS.len());
    assert!(operations::invariants(&house.ctx, &house.tenant).await.is_err());
    let letters = operations::dead_letters(&house.ctx, &house.operator, None, None).await;
    assert!(letters.expect("a list").items.is_empty());
    let none =
        operations::redrive(&house.ctx, &house.operator, "provisioner", new_id(), None).await;
    assert!(matches!(none, Err(control::Error::NotFound("dead letter"))));
    is_sound(&house).await;
    house.close().await;
}
