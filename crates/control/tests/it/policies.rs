//! Policies: turned within their bounds, true at once here and soon elsewhere, and never forgotten who did it.

use std::time::Duration;

use control::policies::{Policies, TABLE, turn};
use control::{Error, assemble};
use spine::Clock;
use store::audit_log::list::{self, Filter};
use testkit::House;
use wire::http::policies::NewPolicy;

fn to(value: i64) -> NewPolicy {
    NewPolicy { value, reason: "as the test says".to_owned() }
}

#[tokio::test]
async fn a_policy_that_is_turned_holds_at_once_and_after_a_restart_until_it_is_turned_back() {
    let house = House::open().await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    assert_eq!(ctx.policies().restart_timeout_seconds, 900);
    let set = turn::set(ctx, operator, "restart.timeout_seconds", &to(1_200), None).await;
    let set = set.expect("it is turned").body;
    assert_eq!((set.value, set.default, set.changed_by), (1_200, 900, Some(operator.user_id)));
    assert_eq!(ctx.policies().restart_timeout_seconds, 1_200);

    // Another process that starts now, and one that has been there, with another default of its own.
    let given = Policies { restart_timeout_seconds: 60, retry_seconds: 9, ..Policies::default() };
    let store = house.database.store.clone();
    let other = assemble(store, Clock::system(), given).await.expect("it stands").ctx;
    assert_eq!(
        (other.policies().restart_timeout_seconds, other.policies().retry_seconds),
        (1_200, 9)
    );
    let reset = turn::reset(ctx, operator, "restart.timeout_seconds", None).await;
    assert_eq!(reset.expect("it is turned back").body.value, 900);
    assert_eq!(ctx.policies().restart_timeout_seconds, 900);
    assert_eq!(other.policies().restart_timeout_seconds, 1_200, "nobody has told it");
    assert_eq!(turn::refresh(&other).await.expect("it looks"), 1);
    assert_eq!(other.policies().restart_timeout_seconds, 60);
    assert_eq!(turn::refresh(&other).await.expect("it looks"), 0);

    let filter = Filter { target: Some("restart.timeout_seconds".to_owned()), ..Filter::default() };
    let entries = list::list(&ctx.store, &filter, None, 9).await.expect("entries");
    let told: Vec<_> = entries.iter().map(|entry| (entry.action.as_str(), &entry.detail)).collect();
    let (back, forth) = (
        serde_json::json!({"from": 1200, "to": 900}),
        serde_json::json!({"from": 900, "to": 1200}),
    );
    assert_eq!(told, [("policy.reset", &back), ("policy.set", &forth)]);
    assert_eq!(entries[1].reason.as_deref(), Some("as the test says"));
    house.close().await;
}

#[tokio::test]
async fn a_sweep_finds_what_was_turned_elsewhere() {
    let house = House::open().await;
    let store = house.database.store.clone();
    let other = assemble(store, Clock::system(), Policies::default()).await.expect("it stands").ctx;
    turn::set(&other, &house.operator, "retry.seconds", &to(7), None).await.expect("turned");
    assert_eq!(house.ctx.policies().retry_seconds, 2);
    house.pass(Duration::from_secs(5)).await;
    assert_eq!(house.ctx.policies().retry_seconds, 7);
    house.close().await;
}

#[tokio::test]
async fn what_is_unknown_out_of_range_or_makes_no_sense_is_refused_and_says_what_would_do() {
    let house = House::open().await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    let refused = async |key: &str, value: i64| {
        let answer = turn::set(ctx, operator, key, &to(value), None).await;
        let error = answer.expect_err("it is refused");
        if let Error::Invalid(faults) = &error {
            return faults[0].detail.clone();
        }
        error.to_string()
    };
    let unknown = refused("node.offline_seconds", 60).await;
    assert!(unknown.contains("node.offline_after_seconds"), "{unknown}");
    for policy in TABLE {
        for value in [i64::from(policy.min) - 1, i64::from(policy.max) + 1, -1, i64::MAX] {
            let why = refused(policy.key, value).await;
            let range = format!("between {} and {} {}", policy.min, policy.max, policy.unit);
            assert!(why.contains(&range), "{}: {why}", policy.key);
        }
    }
    let nonsense = refused("node.offline_after_seconds", 20).await;
    assert!(nonsense.contains("twice node.heartbeat_seconds (10)"), "{nonsense}");
    let nonsense = refused("node.heartbeat_seconds", 30).await;
    assert!(nonsense.contains("node.offline_after_seconds (60)"), "{nonsense}");
    assert_eq!(ctx.policies(), Policies::default(), "nothing was turned");

    // A default can make no sense with what the others were turned to.
    for (key, value) in [
        ("node.offline_after_seconds", 600),
        ("task.lease_seconds", 600),
        ("node.heartbeat_seconds", 100),
    ] {
        turn::set(ctx, operator, key, &to(value), None).await.expect("it makes sense");
    }
    let reset = turn::reset(ctx, operator, "node.offline_after_seconds", None).await;
    assert!(matches!(reset, Err(Error::Invalid(_))), "{reset:?}");
    assert_eq!(ctx.policies().node_offline_after_seconds, 600);
    let none = turn::set(ctx, &house.tenant, "retry.seconds", &to(3), None).await;
    assert!(matches!(none, Err(Error::Forbidden(_))));
    house.close().await;
}

#[tokio::test]
async fn two_who_turn_what_makes_no_sense_together_do_not_both_win() {
    let house = House::open().await;
    let (ctx, operator) = (&house.ctx, &house.operator);
    for _ in 0..10 {
        for key in ["node.heartbeat_seconds", "node.offline_after_seconds", "task.lease_seconds"] {
            turn::reset(ctx, operator, key, None).await.expect("back");
        }
        turn::set(ctx, operator, "task.lease_seconds", &to(600), None)
            .await
            .expect("it makes sense");
        let (slow, short) = (to(25), to(40));
        let (one, two) = tokio::join!(
            turn::set(ctx, operator, "node.heartbeat_seconds", &slow, None),
            turn::set(ctx, operator, "node.offline_after_seconds", &short, None),
        );
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
        turn::refresh(ctx).await.expect("it looks");
        assert_eq!(ctx.policies().nonsense(), None);
    }
    house.close().await;
}
