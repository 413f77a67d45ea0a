//! What grows is pruned, and what is left is whole: the books, the log, the audit log's chain, and whatever is under way.

// tidy: statements behind the store's back, on purpose

use control::audit_log::chain;
use control::growth;
use control::policies::Policies;
use domain::machines::allocation::Status;
use testkit::House;
use wire::http::audit::{AuditHead, AuditVerdict};

const DAY_MINUTES: u32 = 24 * 60;

/// A house in which something was done, given back, and is going on.
async fn lived_in() -> (House, uuid::Uuid) {
    let mut house = House::with(Policies { billing_enforced: 0, ..Policies::default() }).await;
    house.enforce_nothing().await;
    house.node("h100.slice", &[0, 0]).await;
    for _ in 0..3 {
        let id = house.active("h100.slice", 1).await.id;
        house.release(id).await.expect("it is released");
        house.settle().await;
    }
    let going_on = house.active("h100.slice", 1).await.id;
    chain::link(&house.ctx).await.expect("it links");
    (house, going_on)
}

async fn verified(house: &House, kept: Option<&AuditHead>) -> AuditVerdict {
    chain::verify(&house.ctx.store, kept).await.expect("it is walked")
}

async fn rows(house: &House, table: &str) -> i64 {
    house.database.number(&format!("SELECT count(*) FROM {table}")).await
}

#[tokio::test]
async fn what_is_left_after_everything_old_is_gone_is_whole_and_goes_on() {
    let (house, going_on) = lived_in().await;
    assert_eq!(growth::sweep(&house.ctx).await.expect("it prunes"), 0, "nothing is old");
    let log = rows(&house, "lifecycle_log").await;
    let runs = rows(&house, "workflow_runs").await;
    assert!(runs >= 7 && rows(&house, "node_task_events").await > 0);
    house.database.age(100 * DAY_MINUTES).await;
    for node in house.nodes() {
        house.beat(node).await;
    }
    assert!(growth::sweep(&house.ctx).await.expect("it prunes") > 0);
    assert_eq!(growth::sweep(&house.ctx).await.expect("it prunes"), 0);
    assert_eq!(rows(&house, "lifecycle_log").await, log, "the log is for ever");
    assert_eq!(rows(&house, "workflow_runs").await, 0);
    assert_eq!(rows(&house, "node_task_events").await, 0);
    assert_eq!(rows(&house, "notifications").await, 1, "the next is numbered after the last");
    assert!(verified(&house, None).await.beginning.is_none(), "a year and a month are not over");

    // What goes on goes on, and can be shown and given back.
    assert_eq!(house.status(going_on).await, Status::Active);
    house.restart(going_on).await.expect("it is restarted");
    house.settle().await;
    house.release(going_on).await.expect("it is released");
    house.settle().await;
    assert_eq!(house.status(going_on).await, Status::Released);
    assert!(!house.steps(going_on).await.is_empty());
    chain::link(&house.ctx).await.expect("it links");
    house.is_sound().await;
    house.close().await;
}

#[tokio::test]
async fn the_audit_log_is_cut_where_it_is_old_and_its_chain_is_whole_from_there() {
    let (house, _) = lived_in().await;
    let first = verified(&house, None).await.head.expect("there are links");
    house.database.age(402 * DAY_MINUTES).await;
    let id = house.create("h100.slice", 1).await.expect("there is room").id;
    chain::link(&house.ctx).await.expect("it links");
    // Ageing has changed what was linked: the chain is made anew, as if it had been linked then.
    house.relink().await;
    let second = verified(&house, None).await.head.expect("there are links");
    assert_eq!(second.position, first.position + 1);

    let (one, other) = tokio::join!(growth::sweep(&house.ctx), growth::sweep(&house.ctx));
    assert!(one.expect("it prunes") + other.expect("it prunes") > 0);
    growth::sweep(&house.ctx).await.expect("it prunes");
    let cut = verified(&house, Some(&second)).await;
    assert!(cut.sound, "{cut:?}");
    let beginning = cut.beginning.expect("it was cut");
    assert_eq!((beginning.position, cut.links), (first.position, 1));
    assert_eq!(house.entries("audit.cut").await.len(), 1, "and an entry tells of it");
    assert!(verified(&house, Some(&beginning)).await.sound, "as good as one that is there");
    let older = AuditHead { position: 1, ..beginning.clone() };
    assert!(!verified(&house, Some(&older)).await.sound, "nothing proves it any more");

    // It goes on behind what is left, and a step without an entry is still found.
    assert_eq!(chain::link(&house.ctx).await.expect("it links"), 1);
    house.release(id).await.expect("it is released");
    house.settle().await;
    chain::link(&house.ctx).await.expect("it links");
    assert!(verified(&house, Some(&second)).await.sound);
    house.is_sound().await;

    // Whoever cuts off more behind everybody's back is found.
    for more in [
        "WITH link AS (DELETE FROM audit_links WHERE position = (SELECT min(position) FROM audit_links) RETURNING entry_id, position, hash),
              entry AS (DELETE FROM audit_entries WHERE id IN (SELECT entry_id FROM link))
         UPDATE audit_beginning SET position = link.position, hash = link.hash FROM link",
    ] {
        house.database.tamper(&[more]).await;
    }
    let verdict = verified(&house, None).await;
    assert!(!verdict.sound, "{verdict:?}");
    house.close().await;
}

#[tokio::test]
async fn what_was_changed_by_hand_is_not_cut_off_before_somebody_has_looked() {
    let (house, _) = lived_in().await;
    house.database.age(402 * DAY_MINUTES).await;
    house.relink().await;
    let change = "UPDATE audit_entries SET outcome = 'denied' WHERE id = (SELECT entry_id FROM audit_links WHERE position = 3)";
    house.database.tamper(&[change]).await;
    growth::sweep(&house.ctx).await.expect("it prunes");
    let verdict = verified(&house, None).await;
    assert_eq!(verdict.beginning.map(|cut| cut.position), Some(2));
    assert_eq!(verdict.breaks[0].position, Some(3));
    house.close().await;
}

#[tokio::test]
async fn a_policy_says_how_long_things_are_kept() {
    let (house, _) = lived_in().await;
    house.database.age(10 * DAY_MINUTES).await;
    let runs = rows(&house, "workflow_runs").await;
    growth::sweep(&house.ctx).await.expect("it prunes");
    assert_eq!(rows(&house, "workflow_runs").await, runs);
    let short = Policies { workflow_kept_days: 7, ..house.ctx.policies() };
    house.ctx.current.set(short);
    growth::sweep(&house.ctx).await.expect("it prunes");
    assert_eq!(rows(&house, "workflow_runs").await, 0);
    growth::sweep_messages(&house.ctx).await.expect("it prunes");
    assert_eq!(rows(&house, "consumed_events").await, 0);
    house.close().await;
}
