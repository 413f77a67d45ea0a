//! R27: whatever is frozen appears on the stuck list when its time is up, with why and what to do, and goes when it moves on.

// tidy: statements behind the store's back, on purpose

use std::time::Duration;

use control::Error;
use control::claim::aside;
use control::node::{admin, heartbeat};
use control::policies::{Policies, turn};
use control::stuck;
use domain::ids::ClaimId;
use domain::machines::allocation::Status;
use lifecycle::Rest;
use store::views::stuck::{Waiting, waiting};
use testkit::{Act, House};
use wire::http::admin::{Because, NewNode};
use wire::http::policies::NewPolicy;
use wire::http::stuck::StuckItem;
use wire::node::FailureReason;

const MINUTE: Duration = Duration::from_secs(60);

async fn listed(house: &House) -> Vec<StuckItem> {
    stuck::list(&house.ctx, &house.operator).await.expect("a list").items
}

/// What is on the list: machine and status.
async fn names(house: &House) -> Vec<(String, String)> {
    let mut names: Vec<_> =
        listed(house).await.into_iter().map(|item| (item.machine, item.status)).collect();
    names.sort();
    names.dedup();
    names
}

fn words(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(machine, status)| ((*machine).to_owned(), (*status).to_owned())).collect()
}

/// Puts a row where nothing moves it, for so many seconds.
async fn freeze(house: &House, waiting: &Waiting, id: &str, seconds: u32) {
    let statement = format!(
        // tidy: a forbidden write, on purpose
        "UPDATE {} SET status = '{}', status_at = clock_timestamp() - interval '{seconds} seconds' WHERE id = '{id}'",
        waiting.rows, waiting.status
    );
    house.database.tamper(&[statement]).await;
}

#[tokio::test]
async fn r27_every_status_that_may_not_last_is_told_when_its_time_is_up_and_not_before() {
    let house = House::open().await;
    for waiting in waiting() {
        let (machine, status) = (waiting.machine, waiting.status);
        let id = house.database.newborn(machine).await.to_string();
        let allowed = stuck::seconds(&Policies::default(), &waiting);
        let found = async || listed(&house).await.into_iter().find(|item| item.id == id);
        freeze(&house, &waiting, &id, allowed.saturating_sub(3)).await;
        assert_eq!(found().await, None, "{machine} {status} has time left");
        freeze(&house, &waiting, &id, allowed + 3).await;
        let item = found().await.unwrap_or_else(|| panic!("{machine} {status} is not told"));
        assert_eq!((item.machine.as_str(), item.status.as_str()), (machine, status));
        assert_eq!(item.owner, waiting.owner.to_string());
        assert!(!item.reason.is_empty() && !item.action.is_empty(), "{item:?}");
        assert!(item.command.starts_with("berth "), "{item:?}");
        assert!((3..60).contains(&item.overdue_seconds) && !item.stuck, "{item:?}");
        assert!(item.factor.is_some_and(|factor| factor >= 1.0), "{item:?}");
        freeze(&house, &waiting, &id, allowed * 2 + 3).await;
        assert!(found().await.expect("it is told").stuck, "{machine} {status} at twice its time");
        let counted = stuck::measure(&house.ctx).await.expect("it is counted");
        assert!(counted >= 1, "{machine} {status} is not counted");

        let tables = domain::machines::tables();
        let table = tables.iter().find(|table| table.name == machine).expect("a machine");
        let end =
            table.statuses.iter().find(|each| matches!(each.rest, Rest::Terminal | Rest::Restful));
        let mut moved_on = waiting;
        moved_on.status = end.expect("it can end").code;
        freeze(&house, &moved_on, &id, allowed * 9).await;
        assert_eq!(found().await, None, "{machine} has moved on from {status}");
    }
    // Rows were moved by hand, so the invariants do not hold.
    house.database.remove().await;
}

#[tokio::test]
async fn r27_an_allocation_that_no_worker_takes_up_is_told_and_goes_when_one_does() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let made = house.create("h100.slice", 1).await.expect("it fits");
    assert_eq!(listed(&house).await, []);
    house.ctx.clock.advance(Duration::from_secs(31));
    let items = listed(&house).await;
    assert_eq!(items.len(), 1, "{items:?}");
    let item = &items[0];
    assert_eq!((item.id.as_str(), item.owner.as_str()), (made.id.to_string().as_str(), "worker"));
    assert_eq!(item.reason, "no worker has begun with it");
    assert_eq!(item.command, format!("berth admin timeline {}", made.id));
    house.settle().await;
    assert_eq!(house.status(made.id).await, Status::Active);
    assert_eq!(listed(&house).await, []);
    house.close().await;
}

#[tokio::test]
async fn r27_a_node_that_stays_away_holds_up_everything_behind_it_and_each_says_so() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::StayAway]);
    let made = house.create("h100.slice", 1).await.expect("it fits");
    house.settle().await;
    assert_eq!(house.status(made.id).await, Status::Provisioning);
    house.ctx.clock.advance(Duration::from_secs(630));
    let expected = words(&[("allocation", "provisioning"), ("node_task", "queued")]);
    assert_eq!(names(&house).await, expected);
    let items = listed(&house).await;
    let of =
        |machine: &str| items.iter().find(|item| item.machine == machine).expect("it is there");
    assert!(of("allocation").reason.contains("waits for the node to finish"), "{items:?}");
    assert_eq!(of("node_task").owner, "agent");
    assert!(of("node_task").command.ends_with("nodes show node-0"), "{items:?}");
    house.ctx.clock.advance(MINUTE);
    assert!(names(&house).await.contains(&("claim".to_owned(), "reserved".to_owned())));
    // One sweep later it has failed, and cleaning up has begun.
    house.spine.step_timers().await.expect("the timers run");
    house.settle().await;
    let after = names(&house).await;
    assert!(!after.iter().any(|(_, status)| status == "provisioning"), "{after:?}");
    // Nothing was ever handed to the node, so nothing has to be cleaned up: only the node itself is left to look after.
    house.ctx.clock.advance(Duration::from_secs(3_600));
    assert_eq!(names(&house).await, words(&[("node", "offline")]));
    house.close().await;
}

#[tokio::test]
async fn r27_what_waits_for_a_node_that_is_offline_says_so() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::StayAway]);
    house.release(id).await.expect("it is released");
    house.settle().await;
    house.ctx.clock.advance(11 * MINUTE);
    heartbeat::sweep_offline(&house.ctx).await.expect("it looks");
    let items = listed(&house).await;
    assert!(items.iter().any(|item| item.status == "releasing"), "{items:?}");
    for item in items.iter().filter(|item| item.machine != "node") {
        assert!(item.reason.contains("the node node-0 is offline"), "{item:?}");
    }
    house.database.remove().await;
}

#[tokio::test]
async fn r27_a_release_that_hangs_or_has_given_up_is_told_until_it_is_done() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let id = house.active("h100.slice", 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.release(id).await.expect("it is released");
    for _ in 0..20 {
        house.settle().await;
        if house.status(id).await == Status::ReleaseFailed {
            break;
        }
        house.ctx.clock.advance(Duration::from_secs(30));
    }
    assert_eq!(house.status(id).await, Status::ReleaseFailed);
    assert!(!names(&house).await.iter().any(|(_, status)| status == "release_failed"));
    house.ctx.clock.advance(Duration::from_secs(3_600));
    let items = listed(&house).await;
    let item = items.iter().find(|item| item.status == "release_failed").expect("it is told");
    assert_eq!(item.owner, "operator");
    let force = format!("berth admin force-release {id} --reason WHY");
    let abandon = format!("berth admin abandon {id} --reason WHY");
    assert_eq!((&item.command, item.otherwise.as_ref()), (&force, Some(&abandon)));
    let claim = |item: &&StuckItem| item.machine == "claim" && item.status == "stuck";
    let claim = items.iter().find(claim).expect("its claim is told too");
    assert_eq!((&claim.command, claim.otherwise.as_ref()), (&force, Some(&abandon)));
    house.release(id).await.expect("once more");
    house.settle().await;
    assert_eq!(house.status(id).await, Status::Released);
    let left = names(&house).await;
    assert!(left.iter().all(|(machine, _)| machine == "node"), "{left:?}");
    house.close().await;
}

/// What a failed allocation left behind, and what was set aside: each with the command for it.
#[tokio::test]
async fn r27_claims_that_wait_for_an_operator_name_the_way_out() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::Fail(FailureReason::DeviceDirty)]);
    house.first_node().will(&[Act::LeaveResidue; 5]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    for _ in 0..6 {
        house.ctx.clock.advance(MINUTE + Duration::from_secs(1));
        house.beat_all().await;
        house.pass(Duration::ZERO).await;
    }
    house.ctx.clock.advance(Duration::from_secs(90_000));
    let listed = async || {
        let items = listed(&house).await;
        items.into_iter().find(|item| item.machine == "claim").expect("it is told")
    };
    let stuck = listed().await;
    assert_eq!(stuck.command, format!("berth admin clean {id} --reason WHY"));
    let quarantine = format!("berth admin quarantine {} --reason WHY", stuck.id);
    assert_eq!(stuck.otherwise, Some(quarantine));
    let claim = ClaimId(stuck.id.parse().expect("an id"));
    let why = Because { reason: "broken".to_owned() };
    aside::quarantine(&house.ctx, &house.operator, claim, &why, None).await.expect("set aside");
    house.ctx.clock.advance(Duration::from_secs(900_000));
    let aside = listed().await;
    assert_eq!(aside.command, format!("berth admin clear {claim} --reason WHY"));
    house.close().await;
}

#[tokio::test]
async fn r27_nodes_that_never_came_or_went_away_are_told() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let new = NewNode {
        name: "late".to_owned(),
        region: "eu-1".to_owned(),
        sku: "h100.slice".to_owned(),
        slots: vec![0],
    };
    admin::create(&house.ctx, &house.operator, &new, None).await.expect("a node");
    house.ctx.clock.advance(16 * MINUTE);
    heartbeat::sweep_offline(&house.ctx).await.expect("it looks");
    let items = listed(&house).await;
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!(items[0].command, "berth admin nodes join-token late");
    house.ctx.clock.advance(60 * MINUTE);
    assert_eq!(names(&house).await, words(&[("node", "enrolling"), ("node", "offline")]));
    house.close().await;
}

#[tokio::test]
async fn r27_dead_letters_and_workflows_that_fail_again_and_again_are_told() {
    let house = House::open().await;
    let statements = [
        "INSERT INTO bus_deliveries (consumer, event_id, entity_id, seq, message, attempts, due_at, dead_at, reason)
         VALUES ('provisioner', gen_random_uuid(), gen_random_uuid(), 1, '{\"subject\": \"provisioning.requested\"}', 9, clock_timestamp(), clock_timestamp(), 'no such workflow')",
        "INSERT INTO workflow_runs (id, workflow, entity_id, state, wake_at, attempts, reason)
         VALUES ('release-1', 'release', gen_random_uuid(), '{}', clock_timestamp() + interval '1 minute', 6, 'the store failed')",
        "INSERT INTO workflow_runs (id, workflow, entity_id, state, wake_at, attempts, reason)
         VALUES ('release-2', 'release', gen_random_uuid(), '{}', clock_timestamp() + interval '1 minute', 5, 'not often')",
        "INSERT INTO findings (id, kind, subject, detail) VALUES (gen_random_uuid(), 'k', 's', 'd')",
    ];
    house.database.tamper(&statements).await;
    let found = stuck::list(&house.ctx, &house.operator).await.expect("a list");
    assert_eq!((found.dead_letters, found.findings_open, found.total), (1, 1, 2));
    let [run, letter] = found.items.as_slice() else { panic!("{found:?}") };
    assert_eq!(
        (run.id.as_str(), run.reason.as_str()),
        ("release-1", "a step failed 6 times: the store failed")
    );
    assert!(
        letter.reason.contains("provisioner could not handle it: no such workflow"),
        "{letter:?}"
    );
    assert!(
        letter.command.starts_with("berth admin dead-letters redrive provisioner "),
        "{letter:?}"
    );
    let refused = stuck::list(&house.ctx, &house.tenant).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))));
    house.database.remove().await;
}

#[tokio::test]
async fn deadlines_that_are_policies_or_the_skus_count_instead_of_the_tables() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await.will(&[Act::StayAway]);
    house.database.tamper(&["UPDATE skus SET provision_timeout_seconds = 1800"]).await;
    house.create("h100.slice", 1).await.expect("it fits");
    house.settle().await;
    house.ctx.clock.advance(29 * MINUTE);
    assert_eq!(names(&house).await, [], "the SKU allows half an hour");
    house.ctx.clock.advance(2 * MINUTE);
    assert!(names(&house).await.contains(&("allocation".to_owned(), "provisioning".to_owned())));

    let restarting =
        waiting().into_iter().find(|each| each.status == "restarting").expect("it waits");
    let before = stuck::seconds(&house.ctx.policies(), &restarting);
    let new = NewPolicy { value: 60, reason: "fast machines".to_owned() };
    turn::set(&house.ctx, &house.operator, "restart.timeout_seconds", &new, None)
        .await
        .expect("turned");
    assert_eq!((before, stuck::seconds(&house.ctx.policies(), &restarting)), (900, 60));
    house.database.remove().await;
}
