//! Whatever the order and however often: what is told about one session comes to one end (R17).

use std::cell::Cell;

use control::payment::inbox;
use control::payment::provider::About;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::House;
use uuid::Uuid;

use crate::till::{AMOUNT, Till, books_are_right, facts, refund, session, stands, tell};

/// Everything that is ever told of a session that takes days to be paid, expires here and is given back in parts.
fn everything(id: Uuid) -> [(&'static str, About); 6] {
    [
        ("completed", About::Awaiting(facts(id))),
        ("succeeded", About::Paid(facts(id))),
        ("retrieved", About::Paid(facts(id))),
        ("expired", About::Ended(facts(id))),
        ("refunded", refund(id, 300)),
        ("refunded more", refund(id, 800)),
    ]
}

/// The end of a session about which these were told, in this order; and what was published of it.
async fn after(house: &House, told: &[usize]) -> ((String, Option<i64>, i64), Vec<String>) {
    let id = session(house).await;
    let events = everything(id);
    for which in told {
        let (name, about) = &events[*which];
        tell(house, &format!("{name} {id}"), about).await;
    }
    while inbox::sweep(&house.ctx).await.expect("it works") > 0 {}
    (stands(house, id).await, house.published(id).await)
}

#[test]
fn r17_any_order_and_any_repetition_of_what_is_told_comes_to_the_same_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let house = runtime.block_on(House::open());
    let _till = Till::open(&house.ctx);
    let credits = Cell::new(0);
    // Each of the six at least once, in an order of chance, with some of them again at places of chance.
    let each = Just((0..6).collect::<Vec<usize>>()).prop_shuffle();
    let again = prop::collection::vec((0..6_usize, 0..8_usize), 0..6);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let same = TestRunner::new(config).run(&(each, again), |(mut told, again)| {
        for (which, place) in again {
            told.insert(place.min(told.len()), which);
        }
        let (end, published) = runtime.block_on(after(&house, &told));
        prop_assert_eq!(end, ("credited".to_owned(), Some(AMOUNT), 800));
        prop_assert_eq!(published, ["payments.credited"]);
        credits.set(credits.get() + AMOUNT - 800);
        Ok(())
    });
    same.expect("the same end");
    runtime.block_on(async {
        books_are_right(&house, credits.get()).await;
        house.close().await;
    });
}
