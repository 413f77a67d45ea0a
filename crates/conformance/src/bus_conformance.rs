//! What every bus does: at least once, in order for every row, nothing held while a message is handled, and an effect that is
//! written with the record that it was seen is had once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use spine::bus::Subscription;
use store::{deliveries, seen};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bed::{
    Bed, Journal, MakeBus, PATIENCE, failure, handle, settle, settle_in_time, subscription,
};

/// Makes every case a test of one engine: `conformance::bus_conformance!(postgres by make);`
#[macro_export]
macro_rules! bus_conformance {
    ($engine:ident by $make:path) => {
        $crate::held_to!($engine by $make: bus_conformance:
            every_consumer_that_hears_a_subject_gets_its_messages_once_and_in_order,
            a_message_that_was_in_hand_when_its_consumer_died_is_delivered_again,
            order_holds_with_two_relays_and_two_consumers_while_a_message_fails_twice,
            an_effect_is_had_once_though_the_message_is_delivered_five_times,
            nothing_is_held_while_a_message_is_handled,
            what_was_handled_is_gone_although_a_slow_message_is_still_in_hand,
            a_consumer_that_is_added_later_hears_what_comes_then,
        );
    };
}

/// Writes down what it hears.
fn listener(journal: &Journal) -> Subscription {
    let journal = journal.clone();
    subscription(handle(move |message| {
        journal.write(message.fact.id, message.fact.seq);
        async { Ok(()) }
    }))
}

/// See its name.
pub async fn every_consumer_that_hears_a_subject_gets_its_messages_once_and_in_order(
    make: MakeBus,
) {
    let bed = Bed::new().await;
    let (one, two) = (Journal::default(), Journal::default());
    let other =
        Subscription { consumer: "other", subjects: &crate::bed::HEARD[1..2], ..listener(&two) };
    let bus = make(&bed, vec![listener(&one), other]);
    let ids = [bed.history(2).await, bed.history(0).await].map(|id| id.uuid());
    settle(&*bus).await;
    assert_eq!((one.of(ids[0]), one.of(ids[1])), (vec![1, 3, 4, 5, 6, 7], vec![1, 3]));
    assert_eq!((two.of(ids[0]), two.of(ids[1])), (vec![3], vec![3]));
    settle_in_time(&bed, &*bus).await;
    assert_eq!((one.total(), two.total()), (8, 2), "and never again");
    bed.end().await;
}

/// See its name.
pub async fn a_message_that_was_in_hand_when_its_consumer_died_is_delivered_again(make: MakeBus) {
    let bed = Bed::new().await;
    let (journal, in_hand) = (Journal::default(), Arc::new(Notify::new()));
    let reached = Arc::clone(&in_hand);
    let stuck = make(
        &bed,
        vec![subscription(handle(move |_| {
            reached.notify_one();
            std::future::pending()
        }))],
    );
    let id = bed.database.allocation().await.allocation.uuid();
    tokio::select! {
        _ = stuck.step() => panic!("nobody ends that"),
        () = in_hand.notified() => {}
    }
    let heir = make(&bed, vec![listener(&journal)]);
    settle(&*heir).await;
    assert_eq!(journal.of(id), [] as [i64; 0], "for all anybody knows it is still in hand");
    bed.clock.advance(heir.lease());
    settle(&*heir).await;
    assert_eq!(journal.of(id), [1]);
    bed.end().await;
}

/// See its name.
pub async fn order_holds_with_two_relays_and_two_consumers_while_a_message_fails_twice(
    make: MakeBus,
) {
    const RESTARTS: usize = 8;
    let bed = Arc::new(Bed::new().await);
    let (journal, failures) = (Journal::default(), Arc::new(AtomicUsize::new(0)));
    let told = journal.clone();
    let story = handle(move |message| {
        let (told, failures) = (told.clone(), Arc::clone(&failures));
        async move {
            let (entity, seq) = (message.fact.id, message.fact.seq);
            told.begin(entity);
            // The others get a chance to be wrong.
            tokio::task::yield_now().await;
            let fails = seq == 6 && failures.fetch_add(1, Ordering::SeqCst) < 2;
            if !fails {
                told.write(entity, seq);
            }
            told.end(entity);
            if fails { failure("not yet") } else { Ok(()) }
        }
    });
    let (mut writers, mut movers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..3 {
        let bed = Arc::clone(&bed);
        writers.spawn(async move { bed.history(RESTARTS).await });
    }
    let all = 3 * (2 + 2 * RESTARTS);
    for _ in 0..2 {
        let bus = make(&bed, vec![subscription(Arc::clone(&story))]);
        let journal = journal.clone();
        movers.spawn(async move {
            while journal.total() < all {
                bus.step().await.expect("the bus steps");
            }
        });
    }
    let ids = timeout(PATIENCE, writers.join_all()).await.expect("they write");
    timeout(PATIENCE, movers.join_all()).await.expect("everything is handled");
    assert_eq!(journal.overlaps(), 0, "two messages about one row at once");
    let expected: Vec<i64> = std::iter::once(1).chain(3..).take(2 + 2 * RESTARTS).collect();
    for id in ids {
        assert_eq!(journal.of(id.uuid()), expected);
    }
    Arc::into_inner(bed).expect("all have ended").end().await;
}

/// See its name.
pub async fn an_effect_is_had_once_though_the_message_is_delivered_five_times(make: MakeBus) {
    let bed = Bed::new().await;
    let (effects, deliveries) = (Journal::default(), Arc::new(AtomicUsize::new(0)));
    let (had, count, store) = (effects.clone(), Arc::clone(&deliveries), bed.store.clone());
    let story = handle(move |message| {
        let (had, count, store) = (had.clone(), Arc::clone(&count), store.clone());
        async move {
            let mut tx = store.begin().await.expect("it begins");
            let first = seen::first_time(&mut tx, "c", message.id).await.expect("it is asked");
            tx.commit().await.expect("it commits");
            if first {
                had.write(message.fact.id, message.fact.seq);
            }
            // The answer is lost on the way.
            if count.fetch_add(1, Ordering::SeqCst) < 4 { failure("who knows") } else { Ok(()) }
        }
    });
    let bus = make(&bed, vec![Subscription { attempts_max: 9, ..subscription(story) }]);
    let id = bed.database.allocation().await.allocation.uuid();
    settle_in_time(&bed, &*bus).await;
    assert_eq!((deliveries.load(Ordering::SeqCst), effects.of(id)), (5, vec![1]));
    bed.end().await;
}

/// See its name.
pub async fn nothing_is_held_while_a_message_is_handled(make: MakeBus) {
    let bed = Bed::narrow().await;
    let (journal, store) = (Journal::default(), bed.store.clone());
    let done = journal.clone();
    let bus = make(
        &bed,
        vec![subscription(handle(move |message| {
            let (store, done) = (store.clone(), done.clone());
            async move {
                // There is one connection, and it is to be had.
                let began = timeout(PATIENCE / 3, store.begin()).await;
                let Ok(Ok(tx)) = began else { return failure("a connection is held") };
                tx.rollback().await.expect("it ends");
                done.write(message.fact.id, 1);
                Ok(())
            }
        }))],
    );
    let id = bed.database.allocation().await.allocation.uuid();
    settle(&*bus).await;
    assert_eq!(journal.of(id), [1]);
    bed.end().await;
}

/// See its name.
pub async fn what_was_handled_is_gone_although_a_slow_message_is_still_in_hand(make: MakeBus) {
    let bed = Bed::new().await;
    let slow = bed.database.allocation().await.allocation.uuid();
    for _ in 0..5 {
        bed.database.allocation().await;
    }
    let (go_on, journal) = (Arc::new(Notify::new()), Journal::default());
    let (gate, told) = (Arc::clone(&go_on), journal.clone());
    let story = handle(move |message| {
        let (gate, told) = (Arc::clone(&gate), told.clone());
        async move {
            if message.fact.id == slow {
                gate.notified().await;
            }
            told.write(message.fact.id, message.fact.seq);
            Ok(())
        }
    });
    let bus = make(&bed, vec![subscription(story)]);
    let watch = async {
        // Five are gone before the slow one is done.
        while journal.total() < 5
            || deliveries::count_live(&bed.store, "c").await.expect("it counts") > 1
        {
            tokio::task::yield_now().await;
        }
        go_on.notify_one();
    };
    let both = async { tokio::join!(bus.step(), watch) };
    let (stepped, ()) = timeout(PATIENCE, both).await.expect("the others do not wait");
    assert!(stepped.expect("the bus steps") > 0);
    assert_eq!(deliveries::count_live(&bed.store, "c").await.expect("it counts"), 0);
    bed.end().await;
}

/// See its name.
pub async fn a_consumer_that_is_added_later_hears_what_comes_then(make: MakeBus) {
    let bed = Bed::new().await;
    let before = bed.database.allocation().await.allocation.uuid();
    settle(&*make(&bed, Vec::new())).await;
    let journal = Journal::default();
    let bus = make(&bed, vec![listener(&journal)]);
    let after = bed.database.allocation().await.allocation.uuid();
    settle(&*bus).await;
    bed.clock.advance(Duration::from_secs(3_600));
    settle(&*bus).await;
    assert_eq!((journal.of(before), journal.of(after)), (vec![], vec![1]));
    bed.end().await;
}
