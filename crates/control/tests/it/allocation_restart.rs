//! Restarting: active again only in another boot and in working order; whatever else happens has a reason and a way out, and
//! nothing that the tenant has is touched.

use std::time::Duration;

use control::allocation::reason::OurReason;
use control::allocation::restart;
use control::node::{admin, task};
use control::{Caller, Error};
use domain::ids::{AllocationId, NodeTaskId, OperationId};
use domain::machines::allocation::Status;
use domain::policy::{ProjectRole, Scope};
use lifecycle::Code as _;
use testkit::{Act, House, envelope_of, new_id};
use uuid::Uuid;
use wire::http::account::NewMember;
use wire::http::admin::Because;
use wire::http::allocations::{Action, Allocation};
use wire::node::{FailureReason, SignedTask, TaskOutcome, TaskResult};

const SLICE: (&str, i16) = ("h100.slice", 2);
const WHOLE: (&str, i16) = ("h100.metal", 8);

/// Longer than a restart may take.
const TOO_LONG: Duration = Duration::from_secs(901);

async fn house(sku: &str) -> House {
    let mut house = House::open().await;
    house.node(sku, &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house.beat(house.first_node()).await;
    house
}

fn reason(allocation: &Allocation) -> Option<&str> {
    allocation.status_reason.as_deref()
}

fn offers(allocation: &Allocation) -> Vec<Action> {
    allocation.allowed_actions.iter().map(|action| action.0).collect()
}

/// Kind, status and fence of its restarts, in order.
async fn restart_tasks(house: &House, id: Uuid) -> Vec<(String, String, i64)> {
    let kinds = ["slice.vm_restart", "node.reboot"];
    let tasks = house.tasks(id).await.into_iter();
    let restarts = tasks.filter(|task| kinds.contains(&task.kind.as_str()));
    restarts.map(|task| (task.kind, task.status, task.fence)).collect()
}

#[tokio::test]
async fn a_restart_of_either_shape_ends_active_and_leaves_alone_what_the_tenant_has() {
    for ((sku, gpus), kind) in [(SLICE, "slice.vm_restart"), (WHOLE, "node.reboot")] {
        let house = house(sku).await;
        let before = house.active(sku, gpus).await;
        house.furnish(before.id).await;
        let rows = house.kept(before.id).await;
        assert!(rows.len() >= 4, "{rows:?}");
        let asked = house.restart(before.id).await.expect("asked");
        assert_eq!((asked.status, asked.body.status.0), (202, Status::Restarting));
        assert_eq!(asked.body.access, before.access, "it is reached as before");
        house.settle().await;
        let after = house.show(before.id).await;
        assert_eq!((after.status.0, after.seq), (Status::Active, before.seq + 2));
        assert_eq!(house.kept(before.id).await, rows, "{sku}");
        let tasks = restart_tasks(&house, before.id).await;
        assert_eq!(tasks, [(kind.to_owned(), "succeeded".to_owned(), before.seq + 1)]);
        assert_eq!(
            house.published(before.id).await[2..],
            ["provisioning.restart.requested", "provisioning.restart.completed"]
        );
        house.close().await;
    }
}

#[tokio::test]
async fn a_node_that_is_in_the_same_boot_has_not_restarted() {
    for (sku, gpus) in [SLICE, WHOLE] {
        let house = house(sku).await;
        let id = house.active(sku, gpus).await.id;
        house.first_node().will(&[Act::KeepBoot]);
        house.restart(id).await.expect("asked");
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!(shown.status.0, Status::RestartFailed, "{sku}");
        assert_eq!(reason(&shown), Some("node_did_not_return"));
        assert_eq!(offers(&shown), [Action::Restart, Action::Release]);
        house.close().await;
    }
}

/// An agent that makes up a boot that ended, to pass off the one the node was in as a new one.
#[tokio::test]
async fn a_machine_in_the_boot_it_was_known_by_has_not_rebooted_whatever_it_says() {
    let house = house(WHOLE.0).await;
    let id = house.active(WHOLE.0, WHOLE.1).await.id;
    house.first_node().will(&[Act::FallSilent]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    let given = house.first_node().held().pop().expect("it was handed out");
    let boot_id = house.first_node().boot_id();
    let outcome = TaskOutcome::Restarted { boot_id_before: new_id(), boot_id };
    house.first_node().answer(&house.ctx, &given, outcome).await;
    house.settle().await;
    assert_eq!(reason(&house.show(id).await), Some("node_did_not_return"));
    house.close().await;
}

/// How a restart ends when the node does this.
async fn ends_with(house: &House, id: Uuid, act: Act) -> String {
    let rows = house.kept(id).await;
    house.first_node().will(&[act]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    // A machine that came up says so, whether it is well or not.
    house.beat(house.first_node()).await;
    if house.status(id).await == Status::Restarting {
        house.ctx.clock.advance(TOO_LONG);
        house.settle().await;
    }
    house.first_node().forget_script();
    let shown = house.show(id).await;
    assert_eq!(shown.status.0, Status::RestartFailed, "{act:?}");
    assert_eq!(house.kept(id).await, rows, "{act:?}");
    let tasks = restart_tasks(house, id).await;
    assert!(tasks.iter().all(|(_, status, _)| status != "queued" && status != "dispatched"));
    reason(&shown).expect("a reason").to_owned()
}

/// How each reason comes about; the last one has a test of its own.
const fn ways(reason: OurReason) -> &'static [Act] {
    match reason {
        OurReason::DispatchFailed => &[
            Act::StayAway,
            Act::Fail(FailureReason::BadSignature),
            Act::Fail(FailureReason::StaleFence),
        ],
        OurReason::NodeDidNotReturn => &[
            Act::FallSilent,
            Act::KeepBoot,
            Act::Fail(FailureReason::RebootFailed),
            Act::Fail(FailureReason::GuestMissing),
            Act::Fail(FailureReason::DriverFailed),
        ],
        OurReason::HealthNotRecovered => &[
            Act::ComeUpAndFallSilent,
            Act::ComeUpAndFail(FailureReason::DriverFailed),
            Act::ComeUpAndFail(FailureReason::SshNotReady),
            Act::ComeUpAndFail(FailureReason::MountsNotReady),
            Act::ComeUpAndFail(FailureReason::RuntimesNotReady),
        ],
        OurReason::AgentRevoked => &[Act::FallSilent],
        OurReason::Timeout
        | OurReason::NodeLost
        | OurReason::NoWorker
        | OurReason::ForceReleased
        | OurReason::Abandoned
        | OurReason::BalanceDepleted
        | OurReason::SpendingCap
        | OurReason::ReleaseExhausted => &[],
    }
}

#[tokio::test]
async fn every_reason_of_failure_can_be_provoked() {
    for (sku, gpus) in [SLICE, WHOLE] {
        let house = house(sku).await;
        let id = house.active(sku, gpus).await.id;
        for expected in restart::REASONS {
            assert!(!ways(expected).is_empty(), "nobody knows how {expected} comes about");
            for act in ways(expected).iter().filter(|_| expected != OurReason::AgentRevoked) {
                assert_eq!(ends_with(&house, id, *act).await, expected.code(), "{sku} {act:?}");
            }
        }
        house.restart(id).await.expect("asked");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Active, "after all that");
        house.close().await;
    }
}

#[tokio::test]
async fn a_machine_that_is_cut_off_in_the_middle_of_a_restart_has_failed_it() {
    for (sku, gpus) in [SLICE, WHOLE] {
        let house = house(sku).await;
        let id = house.active(sku, gpus).await.id;
        let rows = house.kept(id).await;
        house.first_node().will(ways(OurReason::AgentRevoked));
        house.restart(id).await.expect("asked");
        house.settle().await;
        let given = house.first_node().held().pop().expect("it was handed out");
        let node = house.first_node().identity.node_id.uuid();
        let because = Because { reason: "it was stolen".to_owned() };
        admin::revoke(&house.ctx, &house.operator, node, &because, None).await.expect("cut off");
        house.settle().await;
        let shown = house.show(id).await;
        assert_eq!(
            (shown.status.0, reason(&shown)),
            (Status::RestartFailed, Some(OurReason::AgentRevoked.code())),
            "{sku}"
        );
        assert_eq!(offers(&shown), [Action::Restart, Action::Release]);
        assert_eq!(house.kept(id).await, rows, "{sku}");
        let late = TaskResult { dispatch: given.dispatch, outcome: back(&given), phases: vec![] };
        let task = NodeTaskId(given.task_id);
        let late = task::finish(&house.ctx, &house.first_node().identity, task, &late).await;
        assert!(late.is_err() || late.is_ok_and(|told| !told.applied), "{sku}");
        assert_eq!(house.status(id).await, Status::RestartFailed);
        house.close().await;
    }
}

/// Whatever word a machine has for it, the tenant is told one of the reasons of a restart.
#[tokio::test]
async fn whatever_a_machine_says_a_restart_fails_for_a_reason_of_its_own() {
    let house = house(SLICE.0).await;
    let id = house.active(SLICE.0, SLICE.1).await.id;
    for said in FailureReason::ALL {
        let told = ends_with(&house, id, Act::Fail(*said)).await;
        let known = restart::REASONS.iter().any(|reason| reason.code() == told);
        assert!(known, "{said} was told as {told}");
    }
    house.close().await;
}

/// Nobody hears from the agent, but the machine is heard of in another boot: it is up, and not well.
#[tokio::test]
async fn a_machine_that_is_heard_of_in_another_boot_has_returned_though_its_agent_tells_nothing() {
    let house = house(WHOLE.0).await;
    let id = house.active(WHOLE.0, WHOLE.1).await.id;
    house.first_node().will(&[Act::FallSilent, Act::StayAway]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    house.first_node().reboot();
    house.beat(house.first_node()).await;
    house.ctx.clock.advance(TOO_LONG);
    house.settle().await;
    assert_eq!(reason(&house.show(id).await), Some("health_not_recovered"));
    house.close().await;
}

fn back(given: &SignedTask) -> TaskOutcome {
    assert!(
        envelope_of(given).kind == "node.reboot" || envelope_of(given).kind == "slice.vm_restart"
    );
    TaskOutcome::Restarted { boot_id_before: new_id(), boot_id: new_id() }
}

/// It comes back after we have given it up: the tenant decides what happens next, and not a late answer.
#[tokio::test]
async fn a_machine_that_comes_back_late_is_superseded_and_can_be_restarted_again() {
    for (sku, gpus) in [SLICE, WHOLE] {
        let house = house(sku).await;
        let id = house.active(sku, gpus).await.id;
        house.first_node().will(&[Act::FallSilent]);
        house.restart(id).await.expect("asked");
        house.settle().await;
        let first = house.first_node().held().pop().expect("it was handed out");
        house.ctx.clock.advance(TOO_LONG);
        house.settle().await;
        assert_eq!(reason(&house.show(id).await), Some("node_did_not_return"), "{sku}");
        let late = house.first_node().answer(&house.ctx, &first, back(&first)).await;
        assert!(!late.applied, "{late:?}");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::RestartFailed);

        // A new restart, and the old answer again while it is under way.
        house.first_node().will(&[Act::FallSilent]);
        house.restart(id).await.expect("asked again");
        house.settle().await;
        let second = house.first_node().held().pop().expect("it was handed out");
        assert_ne!(first.task_id, second.task_id);
        assert!(envelope_of(&second).fence > envelope_of(&first).fence);
        assert_ne!(envelope_of(&second).operation_id, envelope_of(&first).operation_id);
        let late = house.first_node().answer(&house.ctx, &first, back(&first)).await;
        assert!(!late.applied, "{late:?}");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Restarting);
        let now = house.first_node().answer(&house.ctx, &second, back(&second)).await;
        assert!(now.applied, "{now:?}");
        house.settle().await;
        assert_eq!(house.status(id).await, Status::Active);
        assert_eq!(reason(&house.show(id).await), None);
        house.close().await;
    }
}

/// A reboot takes longer than a lease: the task is handed out anew, and only the newest dispatch counts.
#[tokio::test]
async fn a_result_from_before_the_reboot_is_superseded() {
    let house = house(WHOLE.0).await;
    let id = house.active(WHOLE.0, WHOLE.1).await.id;
    house.first_node().will(&[Act::FallSilent, Act::FallSilent]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    house.pass(Duration::from_secs(61)).await;
    let held = house.first_node().held();
    assert_eq!(held.iter().map(|given| given.dispatch).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(held[0].task_id, held[1].task_id);
    let old = house.first_node().answer(&house.ctx, &held[0], back(&held[0])).await;
    assert!(!old.applied && old.answer.contains("superseded"), "{old:?}");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Restarting);
    house.first_node().answer(&house.ctx, &held[1], back(&held[1])).await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

/// The result is there before any heartbeat: nobody has noticed that the machine was away.
#[tokio::test]
async fn a_machine_that_is_back_before_we_noticed_that_it_left_is_active() {
    let house = house(WHOLE.0).await;
    let id = house.active(WHOLE.0, WHOLE.1).await.id;
    let before = house.first_node().boot_id();
    house.restart(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    assert_eq!(house.boots().await, [Some(before)], "no heartbeat has come yet");
    // The next restart is judged by the boot that the node has told meanwhile.
    house.beat(house.first_node()).await;
    house.restart(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    house.close().await;
}

#[tokio::test]
async fn two_restarts_at_once_are_one() {
    let house = house(SLICE.0).await;
    let id = house.active(SLICE.0, SLICE.1).await.id;
    let (one, other) = tokio::join!(house.restart(id), house.restart(id));
    let (one, other) = (one.expect("asked"), other.expect("it is the same"));
    assert_eq!((one.status, one.body), (other.status, other.body));
    let third = house.restart(id).await.expect("still the same");
    assert_eq!(third.body.status.0, Status::Restarting);
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Active);
    assert_eq!(restart_tasks(&house, id).await.len(), 1);
    house.close().await;
}

/// A request that is repeated with its key gets its first answer, though it is active again meanwhile.
#[tokio::test]
async fn a_restart_repeated_with_its_key_restarts_nothing_again() {
    let house = house(SLICE.0).await;
    let id = house.active(SLICE.0, SLICE.1).await.id;
    let key = house.key("restart_allocation");
    let (ctx, tenant, id_) = (&house.ctx, &house.tenant, AllocationId(id));
    let first = restart::request(ctx, tenant, id_, Some(&key)).await.expect("asked");
    house.settle().await;
    let again = restart::request(ctx, tenant, id_, Some(&key)).await.expect("answered");
    assert!(again.replayed && again.body == first.body);
    house.settle().await;
    assert_eq!(restart_tasks(&house, id).await.len(), 1);
    house.close().await;
}

#[tokio::test]
async fn what_can_not_be_restarted_says_its_status_and_what_may_be_done() {
    let house = house(SLICE.0).await;
    house.first_node().will(&[Act::FallSilent]);
    let id = house.create(SLICE.0, SLICE.1).await.expect("it fits").id;
    let told = |answer: Result<_, Error>| match answer {
        Err(Error::Conflict(told)) => told,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was restarted"),
    };
    let requested = told(house.restart(id).await);
    assert!(requested.starts_with("it is requested: ") && requested.contains("once it is active"));
    house.settle().await;
    assert!(told(house.restart(id).await).starts_with("it is provisioning: "));
    house.release(id).await.expect("asked");
    let releasing = told(house.restart(id).await);
    assert!(releasing.starts_with("it is releasing: ") && releasing.contains("another one"));
    house.settle().await;
    assert!(told(house.restart(id).await).starts_with("it is released: "));
    let nobodys = house.restart(new_id()).await;
    assert!(matches!(nobodys, Err(Error::NotFound(_))), "{nobodys:?}");
    house.close().await;
}

/// Somebody in the tenant's project.
async fn member(house: &House, email: &str, role: ProjectRole) -> Caller {
    let user_id = control::account::install::ensure_user(&house.ctx, email, email, false, None)
        .await
        .expect("an account");
    let new = NewMember { email: email.to_owned(), role: role.into() };
    control::account::members::put(&house.ctx, &house.tenant, house.project, &new, None)
        .await
        .expect("a member");
    let scopes = vec![Scope::Read, Scope::Write];
    Caller { user_id, email: email.to_owned(), scopes, token_id: new_id(), ..house.tenant.clone() }
}

#[tokio::test]
async fn owners_admins_and_operators_restart_and_nobody_else() {
    let house = house(SLICE.0).await;
    let admin = member(&house, "admin@example.test", ProjectRole::Admin).await;
    let other = member(&house, "other@example.test", ProjectRole::Member).await;
    let stranger = Caller { user_id: new_id(), ..other.clone() };
    let mut unscoped = house.operator.clone();
    unscoped.scopes.retain(|scope| *scope != Scope::Admin);
    let id = AllocationId(house.active(SLICE.0, SLICE.1).await.id);
    for caller in [&house.tenant, &admin, &house.operator] {
        restart::request(&house.ctx, caller, id, None).await.expect("they may");
        house.settle().await;
    }
    let refused = restart::request(&house.ctx, &other, id, None).await;
    assert!(
        matches!(&refused, Err(Error::Forbidden(told)) if told.contains("owner")),
        "{refused:?}"
    );
    for caller in [&stranger, &unscoped] {
        let hidden = restart::request(&house.ctx, caller, id, None).await;
        assert!(matches!(hidden, Err(Error::NotFound(_))), "{hidden:?}");
    }
    let steps = house.steps(id.uuid()).await.into_iter();
    let by: Vec<(String, String)> = steps
        .filter(|step| step.event == "restart.requested")
        .map(|step| (step.source, step.actor))
        .collect();
    let who =
        |caller: &Caller, source: &str| (source.to_owned(), format!("{source} {}", caller.user_id));
    let expected =
        [who(&house.tenant, "user"), who(&admin, "user"), who(&house.operator, "operator")];
    assert_eq!(by, expected);
    assert_eq!(house.deeds("allocation.restart").await, ["done"; 3]);
    house.close().await;
}

#[tokio::test]
async fn a_restart_that_failed_can_be_given_back() {
    let house = house(WHOLE.0).await;
    let id = house.active(WHOLE.0, WHOLE.1).await.id;
    house.first_node().will(&[Act::Fail(FailureReason::RebootFailed)]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::RestartFailed);
    house.release(id).await.expect("asked");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    assert_eq!(house.claims(id).await, ["freed"]);
    house.close().await;
}

/// Once the message is lost, once the run: each time a sweep takes it up.
#[tokio::test]
async fn a_restart_that_nobody_is_at_is_taken_up() {
    let house = house(SLICE.0).await;
    let id = house.active(SLICE.0, SLICE.1).await.id;
    house.restart(id).await.expect("asked");
    house.lose_messages().await;
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Restarting);
    house.pass(Duration::from_secs(31)).await;
    assert_eq!(house.status(id).await, Status::Active);

    house.first_node().will(&[Act::FallSilent]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    let lost = house.first_node().held().pop().expect("it was handed out");
    house.lose_runs().await;
    house.pass(Duration::from_secs(31)).await;
    let late = house.first_node().answer(&house.ctx, &lost, back(&lost)).await;
    assert!(!late.applied, "what was taken over counts no more: {late:?}");
    assert_eq!(house.status(id).await, Status::Active);
    // A log without its message is what this test has done to it.
    house.database.remove().await;
}

#[tokio::test]
async fn a_restart_that_no_worker_could_take_has_failed() {
    let house = house(SLICE.0).await;
    let id = house.active(SLICE.0, SLICE.1).await.id;
    house.restart(id).await.expect("asked");
    let operation = OperationId(house.operation(id).await);
    restart::exhausted(&house.ctx, AllocationId(id), operation).await.expect("settled");
    let shown = house.show(id).await;
    assert_eq!((shown.status.0, reason(&shown)), (Status::RestartFailed, Some("dispatch_failed")));
    house.settle().await;
    assert_eq!(house.status(id).await, Status::RestartFailed, "the late message starts nothing");
    house.close().await;
}
