//! What every bus does with a message that can't be handled: a few attempts further and further apart, then a state if there is
//! one to make of it, else a dead letter with its reason that can be driven again. Nothing else waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use spine::bus::Subscription;
use store::deliveries::{self, DeadRow};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::bed::{Bed, Journal, MakeBus, failure, handle, settle, settle_in_time, subscription};

/// Makes every case a test of one engine: `conformance::bus_failures!(postgres by make);`
#[macro_export]
macro_rules! bus_failures {
    ($engine:ident by $make:path) => {
        $crate::held_to!($engine by $make: bus_failures:
            r15_a_poisonous_message_is_parked_with_its_reason_and_what_is_behind_it_goes_on,
            a_consumer_survives_a_message_at_which_it_panics,
            attempts_are_further_and_further_apart,
            a_dead_letter_can_be_driven_again,
            a_message_that_is_given_up_becomes_a_state_if_there_is_one,
            a_message_that_can_not_even_be_given_up_is_a_dead_letter,
            a_message_that_kills_its_consumer_is_not_tried_for_ever,
        );
    };
}

async fn dead(bed: &Bed) -> Vec<DeadRow> {
    deliveries::list_dead(&bed.store, 100, None).await.expect("a list")
}

/// Fails at the births of allocations, and writes everything else down.
fn squeamish(journal: &Journal, tries: &Arc<AtomicUsize>) -> Subscription {
    let (journal, tries) = (journal.clone(), Arc::clone(tries));
    subscription(handle(move |message| {
        let born = message.fact.seq == 1;
        if born {
            tries.fetch_add(1, Ordering::SeqCst);
        } else {
            journal.write(message.fact.id, message.fact.seq);
        }
        async move { if born { failure("it is hideous") } else { Ok(()) } }
    }))
}

/// See its name.
pub async fn r15_a_poisonous_message_is_parked_with_its_reason_and_what_is_behind_it_goes_on(
    make: MakeBus,
) {
    let bed = Bed::new().await;
    let (journal, tries) = (Journal::default(), Arc::new(AtomicUsize::new(0)));
    let bus = make(&bed, vec![squeamish(&journal, &tries)]);
    let id = bed.history(1).await.uuid();
    bus.step().await.expect("the bus steps");
    assert_eq!((journal.total(), dead(&bed).await.len()), (0, 0), "what is behind it waits for it");
    settle_in_time(&bed, &*bus).await;
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    assert_eq!(journal.of(id), [3, 4, 5]);
    let letters = dead(&bed).await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.consumer.as_str(), letter.entity_id, letter.attempts), ("c", id, 3));
    assert_eq!(letter.reason, "it is hideous");
    assert_eq!(letter.message["subject"], "provisioning.requested");
    bed.end().await;
}

/// See its name.
pub async fn a_consumer_survives_a_message_at_which_it_panics(make: MakeBus) {
    let bed = Bed::new().await;
    let journal = Journal::default();
    let told = journal.clone();
    let bus = make(
        &bed,
        vec![subscription(handle(move |message| {
            // Before there is anything to await, and after.
            assert!(message.fact.seq != 1, "on purpose");
            let told = told.clone();
            async move {
                assert!(message.fact.seq != 3, "on purpose");
                told.write(message.fact.id, message.fact.seq);
                Ok(())
            }
        }))],
    );
    let id = bed.history(1).await.uuid();
    settle_in_time(&bed, &*bus).await;
    assert_eq!(journal.of(id), [4, 5]);
    let reasons: Vec<String> = dead(&bed).await.into_iter().map(|dead| dead.reason).collect();
    assert_eq!(reasons, ["panicked", "panicked"]);
    bed.end().await;
}

/// See its name.
pub async fn attempts_are_further_and_further_apart(make: MakeBus) {
    let bed = Bed::new().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let subscription = squeamish(&Journal::default(), &tries);
    let bus = make(&bed, vec![Subscription { attempts_max: 12, ..subscription }]);
    bed.database.allocation().await;
    bus.step().await.expect("the bus steps");
    // The test takes time of its own, so a pause is measured from below, roughly.
    for (tried, pause) in
        [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600].into_iter().enumerate()
    {
        bed.clock.advance(Duration::from_millis(pause / 2));
        bus.step().await.expect("the bus steps");
        if pause > 3_000 {
            assert_eq!(tries.load(Ordering::SeqCst), tried + 1, "{pause} ms are not over");
        }
        bed.clock.advance(Duration::from_millis(pause / 2));
        bus.step().await.expect("the bus steps");
        assert_eq!(tries.load(Ordering::SeqCst), tried + 2, "{pause} ms are over");
    }
    bed.end().await;
}

/// See its name.
pub async fn a_dead_letter_can_be_driven_again(make: MakeBus) {
    let bed = Bed::new().await;
    let (mended, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (works, count) = (Arc::clone(&mended), Arc::clone(&tries));
    let bus = make(
        &bed,
        vec![subscription(handle(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let works = works.load(Ordering::SeqCst);
            async move { if works { Ok(()) } else { failure("not yet") } }
        }))],
    );
    bed.database.allocation().await;
    settle_in_time(&bed, &*bus).await;
    let event = dead(&bed).await[0].event_id;
    let redrive = async |consumer: &str, event: Uuid| {
        let work =
            bed.database.in_transaction(async |tx| deliveries::redrive(tx, consumer, event).await);
        work.await.expect("it commits")
    };
    assert!(!redrive("nobody", event).await);
    assert!(redrive("c", event).await);
    assert!(!redrive("c", event).await, "it is not dead any more");
    settle_in_time(&bed, &*bus).await;
    assert_eq!((tries.load(Ordering::SeqCst), dead(&bed).await.len()), (6, 1), "all its attempts");
    mended.store(true, Ordering::SeqCst);
    assert!(redrive("c", event).await);
    settle(&*bus).await;
    assert_eq!((tries.load(Ordering::SeqCst), dead(&bed).await.len()), (7, 0));
    assert_eq!(deliveries::count_live(&bed.store, "c").await.expect("it counts"), 0);
    bed.end().await;
}

/// See its name.
pub async fn a_message_that_is_given_up_becomes_a_state_if_there_is_one(make: MakeBus) {
    let bed = Bed::new().await;
    let (journal, tries, states) = (Journal::default(), Arc::default(), Journal::default());
    let state = states.clone();
    let exhausted = handle(move |message| {
        state.write(message.fact.id, message.fact.seq);
        async { Ok(()) }
    });
    let subscription = squeamish(&journal, &tries);
    let bus = make(&bed, vec![Subscription { exhausted: Some(exhausted), ..subscription }]);
    let id = bed.history(0).await.uuid();
    settle_in_time(&bed, &*bus).await;
    assert_eq!((tries.load(Ordering::SeqCst), states.of(id)), (3, vec![1]));
    assert_eq!((journal.of(id), dead(&bed).await.len()), (vec![3], 0));
    bed.end().await;
}

/// See its name.
pub async fn a_message_that_can_not_even_be_given_up_is_a_dead_letter(make: MakeBus) {
    let bed = Bed::new().await;
    let subscription = squeamish(&Journal::default(), &Arc::default());
    let exhausted = Some(handle(|_| async { failure("nor this") }));
    let bus = make(&bed, vec![Subscription { exhausted, ..subscription }]);
    bed.database.allocation().await;
    settle_in_time(&bed, &*bus).await;
    let letters = dead(&bed).await;
    assert_eq!(letters.len(), 1);
    let reason = &letters[0].reason;
    assert!(reason.contains("it is hideous") && reason.contains("nor this"), "{reason}");
    bed.end().await;
}

/// See its name.
pub async fn a_message_that_kills_its_consumer_is_not_tried_for_ever(make: MakeBus) {
    let bed = Bed::new().await;
    let (in_hand, tries, given_up) = (Arc::new(Notify::new()), Arc::default(), Arc::default());
    let (reached, count, end) =
        (Arc::clone(&in_hand), Arc::clone(&tries), Arc::<AtomicUsize>::clone(&given_up));
    let deadly = subscription(handle(move |_| {
        AtomicUsize::fetch_add(&count, 1, Ordering::SeqCst);
        reached.notify_one();
        std::future::pending()
    }));
    let exhausted = Some(handle(move |_| {
        end.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    }));
    let bus = make(&bed, vec![Subscription { exhausted, ..deadly }]);
    bed.database.allocation().await;
    for _ in 0..3 {
        tokio::select! {
            _ = bus.step() => panic!("nobody ends that"),
            () = in_hand.notified() => {}
        }
        bus.kill().await;
        bed.clock.advance(bus.lease());
    }
    settle(&*bus).await;
    assert_eq!((tries.load(Ordering::SeqCst), given_up.load(Ordering::SeqCst)), (3, 1));
    assert_eq!(deliveries::count_live(&bed.store, "c").await.expect("it counts"), 0);
    bed.end().await;
}
