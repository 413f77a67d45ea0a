//! What the planner makes of everything that an allocation costs, beside the history of thousands of others: nothing is ever read
//! from its beginning to its end, and what is asked again and again is asked by the indexes that are written down here.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use control::allocation::{timeline, view};
use control::billing::charge;
use domain::ids::AllocationId;
use testkit::{Act, Explained, House, Plans};

const SKU: &str = "h100.slice";
/// How often everything has happened before.
const TIMES: u32 = 1_000;
/// As it should be. `BERTH_PLANS=write` writes down what is.
const WRITTEN: &str = include_str!("plans.txt");

/// What there always is: what is used, what is being made and what is being given back, on a machine of its own.
async fn under_way(house: &mut House) {
    let busy = house.node(SKU, &[0, 0, 0, 0]).await;
    busy.will(&[Act::Succeed, Act::Succeed]);
    busy.will(&[Act::FallSilent; 3]);
    house.active(SKU, 1).await;
    let given_back = house.active(SKU, 1).await.id;
    house.release(given_back).await.expect("asked");
    house.create(SKU, 1).await.expect("it fits");
    house.group(SKU, &[1]).await.expect("it fits");
    house.settle().await;
}

/// Made, restarted and given back, with what people look at and what nodes say.
async fn story(house: &House) {
    let one = house.active(SKU, 2).await.id;
    let group = house.group(SKU, &[1, 1]).await.expect("it fits");
    house.settle().await;
    house.restart(one).await.expect("asked");
    house.settle().await;
    house.beat(house.first_node()).await;
    house.ctx.clock.advance(Duration::from_secs(61));
    house.release(one).await.expect("asked");
    for member in &group.members {
        house.release(member.id).await.expect("asked");
    }
    house.settle().await;
}

fn shown(plans: &BTreeSet<Explained>) -> String {
    let mut text = String::new();
    for Explained { statement, reads, .. } in plans.iter().filter(|plan| plan.hot) {
        let words: String = statement.chars().take(140).collect();
        let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
        let _ = writeln!(text, "{words}\n    {}", reads.join(", "));
    }
    text
}

#[tokio::test]
async fn what_an_allocation_costs_does_not_grow_with_those_before_it() {
    let mut house = House::open().await;
    house.node(SKU, &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    let anything = house.ctx.clone();
    story(&house).await;
    under_way(&mut house).await;
    // Only that there are minutes: a minute is charged to most of what is open, and may well read all of it.
    charge::sweep(&house.ctx).await.expect("it is charged");
    house.database.repeat_history(TIMES).await;
    house.database.explains().await;
    // As the gateway and what moves by itself do it.
    house.ctx = anything.hot();
    let plans = Plans::gather();
    story(&house).await;
    let hot = plans.take();
    house.ctx = anything.clone();
    story(&house).await;
    let id = house.active(SKU, 1).await.id;
    view::show(&house.ctx, &house.tenant, AllocationId(id)).await.expect("it is theirs");
    timeline::for_tenant(&house.ctx, &house.tenant, AllocationId(id)).await.expect("it is theirs");
    let all = plans.take();
    drop(plans);
    assert!(hot.iter().filter(|plan| plan.hot).count() > 40, "the plans were not told");
    let large = house.database.tables_of(TIMES).await;
    assert!(large.len() > 20, "{large:?}");
    let wholes: Vec<&Explained> =
        hot.union(&all).filter(|plan| !plan.read_whole.is_disjoint(&large)).collect();
    assert!(wholes.is_empty(), "read from the beginning to the end: {wholes:#?}");
    let is = shown(&hot);
    if std::env::var_os("BERTH_PLANS").is_some_and(|value| value == "write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/plans.txt");
        std::fs::write(path, &is).expect("it is written");
    } else {
        assert_eq!(is, WRITTEN, "if that is right: BERTH_PLANS=write");
    }
    // The books of those who were copied do not balance.
    house.database.remove().await;
}

/// What is walked from its beginning: whatever is first in it is next, or all that is open is looked at, to see who can't pay for it.
const WALKED: &[&str] = &[
    "accounts_depleted",
    "allocations_waiting",
    "outbox_events_unpublished",
    "usage_records_unsettled",
];
/// Keys that find as little as those that are taken when there is much.
const AS_GOOD: &[&str] =
    &["lifecycle_log_event", "project_members_project", "sku_images_sku_image_key"];

/// What is compared row by row where there are only a few: the members of the group that was asked for, the webhooks of one person.
const COMPARED: &[&str] = &[
    "(allocations.group_id = allocation_groups.id)",
    "((fresh_1.webhook_id IS NULL) OR (webhook.id = fresh_1.webhook_id))",
];

/// Whether a statement is asked by the keys that are written down for it; nothing is known of one that is not.
fn by_known_keys(plan: &Explained) -> bool {
    let words: String = plan.statement.chars().take(140).collect();
    let lines: Vec<&str> = WRITTEN.lines().collect();
    let mut written = lines.chunks(2).filter(|lines| lines[0] == words).peekable();
    let known = |index: &&str, lines: &[&str]| {
        AS_GOOD.contains(index) || lines[1].trim().split(", ").any(|read| read == *index)
    };
    written.peek().is_none()
        || written.any(|lines| plan.reads.iter().all(|read| known(&read.as_str(), lines)))
}

/// A plan is kept from the first time that something is asked, when there is hardly anything yet, and is still in use when there is much.
#[tokio::test]
async fn a_plan_that_was_made_while_there_was_nothing_is_one_by_keys() {
    let mut house = House::open().await;
    house.node(SKU, &[0, 0, 0, 0, 1, 1, 1, 1]).await;
    house.database.explains().await;
    // Whoever asks first finds that the connections were ended.
    for store in [house.ctx.store.clone(), house.ctx.store.hot()] {
        let _ = store::policies::list(&store).await;
    }
    house.ctx = house.ctx.hot();
    let plans = Plans::gather();
    story(&house).await;
    let all = plans.take();
    drop(plans);
    let hot: Vec<&Explained> = all.iter().filter(|plan| plan.hot).collect();
    assert!(hot.len() > 40, "the plans were not told");
    let wholes: Vec<_> = hot.iter().filter(|plan| !plan.read_whole.is_empty()).collect();
    assert!(wholes.is_empty(), "{wholes:#?}");
    let walks: Vec<_> = hot
        .iter()
        .filter(|plan| plan.walked.iter().any(|index| !WALKED.contains(&index.as_str())))
        .collect();
    assert!(walks.is_empty(), "{walks:#?}");
    let compared: Vec<_> = hot
        .iter()
        .filter(|plan| plan.compared.iter().any(|what| !COMPARED.contains(&what.as_str())))
        .collect();
    assert!(compared.is_empty(), "{compared:#?}");
    let astray: Vec<_> = hot.iter().filter(|plan| !by_known_keys(plan)).collect();
    assert!(astray.is_empty(), "{astray:#?}");
    house.close().await;
}
