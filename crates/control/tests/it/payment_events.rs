//! What the provider tells (R17): early, late, five times, all at once, not as it was asked for. At most one credit, and a person
//! where the sums differ.

use std::sync::Arc;
use std::time::Duration;

use control::payment::provider::About;
use control::payment::{expire, inbox, view, webhook};
use control::{Error, policies::Policies};
use testkit::{House, new_id};
use tokio::task::JoinSet;

use crate::till::{
    AMOUNT, Till, ask, books_are_right, facts, outcome, page_of, refund, session, show, stands,
    tell, tell_new,
};

#[tokio::test]
async fn what_was_paid_is_in_the_balance_in_one_step() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    assert_eq!(show(&house, id).await.progress.to_string(), "awaiting_payment");
    let event = tell_new(&house, &About::Paid(facts(id))).await;
    assert_eq!(outcome(&house, &event).await.as_deref(), Some("credited"));
    let shown = show(&house, id).await;
    assert_eq!((shown.status.to_string(), shown.url), ("credited".to_owned(), None));
    assert!(shown.status_text.contains("25.00 USD"), "{}", shown.status_text);
    assert!(shown.completed_at.is_some() && shown.ended_at.is_some());
    assert_eq!(house.published(id).await, ["payments.credited"]);
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn r17_told_five_times_and_all_at_once_it_counts_once() {
    let house = Arc::new(House::open().await);
    let _till = Till::open(&house.ctx);
    let (again, anew) = (session(&house).await, session(&house).await);
    for _ in 0..5 {
        tell(&house, "evt_again", &About::Paid(facts(again))).await;
    }
    let mut told = JoinSet::new();
    for number in 0..20 {
        let house = Arc::clone(&house);
        told.spawn(async move {
            // Half of them are one event, the others say the same under names of their own.
            let id = if number % 2 == 0 { "evt_once".to_owned() } else { format!("evt_{number}") };
            tell(&house, &id, &About::Paid(facts(anew))).await;
        });
    }
    told.join_all().await;
    for id in [again, anew] {
        assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));
        assert_eq!(house.published(id).await, ["payments.credited"]);
    }
    assert_eq!(house.rows("payment_events").await, 12);
    assert_eq!(house.rows("ledger_postings WHERE kind = 'payment'").await, 2);
    books_are_right(&house, 2 * AMOUNT).await;
    Arc::into_inner(house).expect("everybody is done").close().await;
}

#[tokio::test]
async fn r17_a_webhook_that_is_faster_than_our_second_transaction_finds_the_row() {
    let house = House::open().await;
    let till = Till::open(&house.ctx);
    till.gate.forget_permits(tokio::sync::Semaphore::MAX_PERMITS);
    let early = async {
        while till.asked() == 0 {
            tokio::task::yield_now().await;
        }
        let id: uuid::Uuid = house.only_session().await;
        tell(&house, "evt_early", &About::Paid(facts(id))).await;
        assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));
        till.gate.add_permits(1);
        id
    };
    let (made, id) = tokio::join!(ask(&house, "one", AMOUNT), early);
    let made = made.expect("it is known").body;
    assert_eq!((made.id, made.status.to_string()), (id, "credited".to_owned()));
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn r17_a_webhook_that_comes_before_the_row_waits_for_it_and_what_never_comes_is_listed() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    // As after a restore from a backup: the provider knows a session that we do not know yet.
    let id = session(&house).await;
    let page = page_of(id);
    assert!(house.database.has_page(id, None).await);
    let mut unknown = facts(id);
    unknown.session = None;
    tell(&house, "evt_early", &About::Paid(unknown)).await;
    let waiting = house.database.payment_event("evt_early").await.expect("it is kept");
    assert_eq!((waiting.outcome, waiting.due, waiting.attempts), (None, true, 1));
    assert_eq!(waiting.reason.as_deref(), Some("no_such_session"));
    house.pass(Duration::from_secs(4)).await;
    assert_eq!(
        house.database.payment_event("evt_early").await.expect("it is kept").attempts,
        1,
        "not yet"
    );
    assert!(house.database.has_page(id, Some(&page)).await);
    house.pass(Duration::from_secs(2)).await;
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));

    let mut nobody = facts(new_id());
    nobody.provider_id = "cs_of_nobody".to_owned();
    tell(&house, "evt_nobody", &About::Paid(nobody)).await;
    for _ in 0..12 {
        house.pass(Duration::from_secs(601)).await;
    }
    let given_up = house.database.payment_event("evt_nobody").await.expect("it is kept");
    assert_eq!(
        (given_up.outcome.as_deref(), given_up.due, given_up.attempts),
        (Some("unmatched"), false, 10)
    );
    let listed =
        view::list_events(&house.ctx, &house.operator, true, None, None).await.expect("a list");
    assert_eq!(
        listed.items.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(),
        ["evt_nobody"]
    );
    let cases =
        view::list_all(&house.ctx, &house.operator, true, None, None).await.expect("a list");
    assert_eq!(cases.unmatched_events, 1);
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn r17_another_amount_or_currency_is_for_an_operator_and_another_page_is_nobodys() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let wrongs = [
        (Some(AMOUNT - 1), Some("USD"), "amount_mismatch"),
        (Some(AMOUNT + 1), Some("USD"), "amount_mismatch"),
        (Some(AMOUNT), Some("EUR"), "currency_mismatch"),
        (None, None, "currency_mismatch"),
        (Some(0), Some("USD"), "amount_mismatch"),
    ];
    for (amount, currency, reason) in wrongs {
        let id = session(&house).await;
        let mut wrong = facts(id);
        (wrong.amount_minor, wrong.currency) = (amount, currency.map(str::to_owned));
        let event = tell_new(&house, &About::Paid(wrong)).await;
        assert_eq!(outcome(&house, &event).await.as_deref(), Some("mismatched"));
        assert_eq!(stands(&house, id).await, ("failed_reconcile".to_owned(), None, 0));
        assert_eq!(house.published(id).await, ["payments.failed_reconcile"]);
        let cases =
            view::list_all(&house.ctx, &house.operator, true, Some(1), None).await.expect("a list");
        assert_eq!(cases.items[0].reason.as_deref(), Some(reason));
        // What is told right afterwards does not overrule the operator.
        tell_new(&house, &About::Paid(facts(id))).await;
        assert_eq!(stands(&house, id).await, ("failed_reconcile".to_owned(), None, 0));
    }
    // Somebody else's page that says it is this session's.
    let (ours, theirs) = (session(&house).await, new_id());
    let mut other = facts(ours);
    other.provider_id = page_of(theirs);
    let event = tell_new(&house, &About::Paid(other)).await;
    assert_eq!(outcome(&house, &event).await.as_deref(), Some("unmatched"));
    assert_eq!(stands(&house, ours).await, ("initiated".to_owned(), None, 0));
    books_are_right(&house, 0).await;
    house.close().await;
}

#[tokio::test]
async fn money_that_takes_its_time_is_processing_until_it_comes_or_does_not() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let (comes, does_not) = (session(&house).await, session(&house).await);
    for id in [comes, does_not] {
        let event = tell_new(&house, &About::Awaiting(facts(id))).await;
        assert_eq!(outcome(&house, &event).await.as_deref(), Some("awaiting_payment"));
        let shown = show(&house, id).await;
        assert_eq!(
            (shown.status.to_string(), shown.progress.to_string()),
            ("initiated".to_owned(), "processing".to_owned())
        );
        assert_eq!(shown.url, None, "there is nothing to pay there any more");
    }
    books_are_right(&house, 0).await;
    // Days later, when it has long expired here.
    house.ctx.clock.advance(Duration::from_secs(3 * 86_400));
    assert_eq!(expire::sweep(&house.ctx).await.expect("it looks"), 2);
    tell_new(&house, &About::Paid(facts(comes))).await;
    tell_new(&house, &About::Ended(facts(does_not))).await;
    assert_eq!(stands(&house, comes).await, ("credited".to_owned(), Some(AMOUNT), 0));
    assert_eq!(stands(&house, does_not).await, ("expired".to_owned(), None, 0));
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn refunds_take_back_what_was_credited_and_no_more_in_any_order() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    tell(&house, "evt_paid", &About::Paid(facts(id))).await;
    tell(&house, "evt_second", &refund(id, 700)).await;
    tell(&house, "evt_first", &refund(id, 300)).await;
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 700));
    assert_eq!(
        outcome(&house, "evt_first").await.as_deref(),
        Some("repeated"),
        "it never becomes less"
    );
    books_are_right(&house, AMOUNT - 700).await;
    tell(&house, "evt_more", &refund(id, AMOUNT + 100)).await;
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), AMOUNT));
    assert_eq!(outcome(&house, "evt_more").await.as_deref(), Some("exceeds"));
    let cases =
        view::list_all(&house.ctx, &house.operator, true, None, None).await.expect("a list");
    assert_eq!(cases.unmatched_events, 1, "the rest is for an operator");
    books_are_right(&house, 0).await;
    house.close().await;
}

#[tokio::test]
async fn r17_a_refund_before_the_payment_waits_for_it_however_long() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let (soon, late) = (session(&house).await, session(&house).await);
    for (event, id) in [("evt_soon", soon), ("evt_late", late)] {
        tell(&house, event, &refund(id, 400)).await;
        let waiting = house.database.payment_event(event).await.expect("it is kept");
        assert_eq!((waiting.due, waiting.reason.as_deref()), (true, Some("not_credited_yet")));
    }
    tell_new(&house, &About::Paid(facts(soon))).await;
    // No time passes: the credit makes it due.
    assert_eq!(inbox::sweep(&house.ctx).await.expect("it works"), 1);
    assert_eq!(stands(&house, soon).await, ("credited".to_owned(), Some(AMOUNT), 400));
    for _ in 0..12 {
        house.pass(Duration::from_secs(601)).await;
    }
    assert_eq!(outcome(&house, "evt_late").await.as_deref(), Some("unmatched"), "it was given up");
    tell_new(&house, &About::Paid(facts(late))).await;
    assert_eq!(inbox::sweep(&house.ctx).await.expect("it works"), 1);
    assert_eq!(stands(&house, late).await, ("credited".to_owned(), Some(AMOUNT), 400));
    assert_eq!(outcome(&house, "evt_late").await.as_deref(), Some("refunded"));
    books_are_right(&house, 2 * (AMOUNT - 400)).await;
    house.close().await;
}

#[tokio::test]
async fn what_was_heard_before_the_process_died_is_worked_off_by_the_timer() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    // As whoever answered the provider left it: written down, with the first attempt begun and never ended.
    let event = store::payment_events::NewEvent {
        id: "evt_left",
        kind: "of.the.test",
        payload: &serde_json::to_value(About::Paid(facts(id))).expect("JSON"),
        due_at: Some(house.ctx.after_seconds(5)),
        outcome: None,
    };
    let mut tx = house.ctx.store.begin().await.expect("it begins");
    assert!(store::payment_events::hear(&mut tx, &event).await.expect("it is heard"));
    tx.commit().await.expect("it is committed");
    tell(&house, "evt_left", &About::Paid(facts(id))).await;
    assert_eq!(stands(&house, id).await.0, "initiated", "it is another's turn");
    house.pass(Duration::from_secs(6)).await;
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));
    let done = house.database.payment_event("evt_left").await.expect("it is kept");
    assert_eq!((done.outcome.as_deref(), done.attempts, done.due), (Some("credited"), 2, false));
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

/// The ledger refuses every posting.
const BROKEN: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$";
const REFUSES: &str = "CREATE TRIGGER refuses BEFORE INSERT ON ledger_postings FOR EACH ROW EXECUTE FUNCTION refuse()";

#[tokio::test]
async fn a_credit_that_fails_is_tried_again_and_at_last_an_operator_is_asked() {
    let house =
        House::with(Policies { payments_event_attempts_max: 3, ..Policies::default() }).await;
    let _till = Till::open(&house.ctx);
    let (mends, stays) = (session(&house).await, session(&house).await);
    assert!(house.database.lets(BROKEN).await && house.database.lets(REFUSES).await);
    tell(&house, "evt_mends", &About::Paid(facts(mends))).await;
    let failed = house.database.payment_event("evt_mends").await.expect("it is kept");
    assert_eq!((failed.outcome, failed.due, failed.attempts), (None, true, 1));
    assert_eq!(stands(&house, mends).await.0, "initiated", "half a credit is none");
    assert_eq!(show(&house, mends).await.progress.to_string(), "processing");
    assert!(house.database.lets("DROP TRIGGER refuses ON ledger_postings").await);
    house.pass(Duration::from_secs(6)).await;
    assert_eq!(stands(&house, mends).await, ("credited".to_owned(), Some(AMOUNT), 0));

    assert!(house.database.lets(REFUSES).await);
    tell(&house, "evt_stays", &About::Paid(facts(stays))).await;
    for _ in 0..5 {
        house.pass(Duration::from_secs(601)).await;
    }
    let given_up = house.database.payment_event("evt_stays").await.expect("it is kept");
    assert_eq!(
        (given_up.outcome.as_deref(), given_up.due, given_up.attempts),
        (Some("failed"), false, 3)
    );
    assert_eq!(stands(&house, stays).await, ("failed_reconcile".to_owned(), None, 0));
    let cases =
        view::list_all(&house.ctx, &house.operator, true, None, None).await.expect("a list");
    let case = &cases.items[0];
    assert_eq!(
        (case.reason.as_deref(), case.paid_amount_minor),
        (Some("credit_failed"), Some(AMOUNT))
    );
    assert_eq!(house.published(stays).await, ["payments.failed_reconcile"]);
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn what_is_not_proved_leaves_nothing_behind_and_what_is_no_concern_is_kept_as_that() {
    let house = House::open().await;
    let unset = webhook::receive(&house.ctx, Some("x"), b"{}").await;
    assert!(matches!(unset, Err(Error::Unavailable { .. })), "{unset:?}");
    let _till = Till::open(&house.ctx);
    for proof in [None, Some("somebody else")] {
        let forged = webhook::receive(&house.ctx, proof, b"{}").await;
        assert!(matches!(forged, Err(Error::Unproven(_))), "{forged:?}");
    }
    assert_eq!(house.rows("payment_events").await, 0);
    tell(&house, "evt_other", &About::Nothing).await;
    assert_eq!(outcome(&house, "evt_other").await.as_deref(), Some("ignored"));
    assert_eq!(inbox::sweep(&house.ctx).await.expect("it works"), 0);
    house.close().await;
}
