//! Asking for a checkout (R17): one key is one session and one question to the provider, whoever asks how often and wherever; what
//! the provider can't do now is asked again with the same key.

use std::sync::Arc;
use std::time::Duration;

use control::payment::provider::{About, ProviderError};
use control::payment::{checkout, expire, resolve, view};
use control::policies::Policies;
use control::{Caller, Error, assemble};
use domain::ids::PaymentSessionId;
use spine::{Clock, wake};
use testkit::{House, new_id};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wire::http::payments::{NewCheckoutSession, ResolvePayment};

use crate::till::{
    AMOUNT, Till, ask, books_are_right, facts, key, page_of, refund, session, show, stands,
    tell_new,
};

/// A checkout is open for an hour.
fn hour() -> Policies {
    Policies { payments_session_ttl_seconds: 3_600, ..Policies::default() }
}

#[tokio::test]
async fn r17_a_hundred_identical_checkouts_are_one_session_and_one_question() {
    const CALLERS: usize = 100;
    let house = Arc::new(House::open().await);
    let till = Till::open(&house.ctx);
    let barrier = Arc::new(Barrier::new(CALLERS));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (house, barrier) = (Arc::clone(&house), Arc::clone(&barrier));
        callers.spawn(async move {
            barrier.wait().await;
            ask(&house, "one", AMOUNT).await.expect("everybody gets it")
        });
    }
    let answers = callers.join_all().await;
    let first = &answers[0].body;
    assert!(first.url.as_deref().is_some_and(|url| url.starts_with("https://pay.example.test/")));
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == *first));
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1, "one was the first");
    assert_eq!((till.asked(), house.rows("payment_sessions").await), (1, 1));
    assert_eq!(house.deeds("checkout.create").await, ["done"]);
    books_are_right(&house, 0).await;
    drop(till);
    Arc::into_inner(house).expect("everybody is done").close().await;
}

#[tokio::test]
async fn two_processes_ask_once_and_who_came_second_is_told_when_the_page_is_there() {
    let house = House::open().await;
    let till = Till::open(&house.ctx);
    let store = house.database.reopened("jit", "off").await;
    let other = assemble(store, Clock::system(), Policies::default()).await.expect("it stands").ctx;
    assert!(other.payments.take_through(till.clone()));
    let (stop, mut bridges) = (CancellationToken::new(), JoinSet::new());
    for ctx in [&house.ctx, &other] {
        bridges.spawn(wake::bridge(ctx.store.clone(), ctx.wake.clone(), stop.clone()));
    }
    // Nobody gets an answer of the provider until both have asked us.
    till.gate.forget_permits(tokio::sync::Semaphore::MAX_PERMITS);
    let asked = NewCheckoutSession { amount_minor: AMOUNT };
    let keys = [key(&house, "one", AMOUNT), key(&house, "one", AMOUNT)];
    let here = checkout::create(&house.ctx, &house.tenant, &asked, &keys[0]);
    let there = checkout::create(&other, &house.tenant, &asked, &keys[1]);
    let opened = async {
        while house.rows("payment_sessions").await == 0 || till.asked() == 0 {
            tokio::task::yield_now().await;
        }
        till.gate.add_permits(1);
    };
    let (here, there, ()) = tokio::join!(here, there, opened);
    let (here, there) = (here.expect("a page"), there.expect("the same page"));
    assert_eq!((here.body.clone(), here.replayed), (there.body, !there.replayed));
    assert_eq!(till.asked(), 1);
    stop.cancel();
    while bridges.join_next().await.is_some() {}
    other.store.close().await;
    house.close().await;
}

#[tokio::test]
async fn r17_a_provider_that_fails_after_making_the_page_gives_the_same_page_for_the_same_key() {
    let house = House::open().await;
    let till = Till::open(&house.ctx);
    let troubles = [
        ProviderError::Unavailable("500".to_owned()),
        ProviderError::Unavailable("no answer in time".to_owned()),
        ProviderError::Refused("401".to_owned()),
        ProviderError::Nonsense("no JSON".to_owned()),
    ];
    for trouble in troubles {
        till.fails(trouble);
        let failed = ask(&house, "one", AMOUNT).await;
        assert!(
            matches!(failed, Err(Error::Unavailable { retry_after_seconds: 1.., .. })),
            "{failed:?}"
        );
    }
    let made = ask(&house, "one", AMOUNT).await.expect("a page");
    let again = ask(&house, "one", AMOUNT).await.expect("the same page");
    assert_eq!((made.replayed, again.replayed, &again.body), (false, true, &made.body));
    assert_eq!((till.asked(), house.rows("payment_sessions").await), (5, 1));
    assert_eq!(house.deeds("checkout.create").await, ["done"], "it was asked for once");
    house.close().await;
}

#[tokio::test]
async fn who_dies_while_asking_is_followed_by_another_when_their_time_is_up() {
    let house = House::open().await;
    let till = Till::open(&house.ctx);
    till.gate.forget_permits(tokio::sync::Semaphore::MAX_PERMITS);
    {
        let asking = ask(&house, "one", AMOUNT);
        tokio::pin!(asking);
        while till.asked() == 0 {
            let _ = futures::poll!(&mut asking);
            tokio::task::yield_now().await;
        }
        // The caller hangs up: nobody gives back what they had taken.
    }
    house.ctx.clock.advance(Duration::from_secs(61));
    till.gate.add_permits(1);
    let made = ask(&house, "one", AMOUNT).await.expect("a page");
    assert_eq!((made.replayed, till.asked(), house.rows("payment_sessions").await), (false, 2, 1));
    house.close().await;
}

#[tokio::test]
async fn a_key_belongs_to_one_request_for_good_and_amounts_have_bounds() {
    let house = House::open().await;
    let nobody = ask(&house, "early", AMOUNT).await;
    let Err(Error::Unavailable { detail, .. }) = nobody else { panic!("{nobody:?}") };
    assert!(detail.contains("not set up"), "{detail}");
    assert_eq!(house.rows("payment_sessions").await, 0, "nor is it written down");
    let till = Till::open(&house.ctx);
    let made = ask(&house, "one", AMOUNT).await.expect("a page").body;
    let other = ask(&house, "one", AMOUNT + 1).await;
    assert!(matches!(other, Err(Error::IdempotencyMismatch)), "{other:?}");
    // Keys of other requests are forgotten after a day; this is the record of a payment.
    house.ctx.clock.advance(Duration::from_secs(10 * 86_400));
    control::idempotency::prune(&house.ctx).await.expect("it prunes");
    assert_eq!(expire::sweep(&house.ctx).await.expect("it looks"), 1);
    let later = ask(&house, "one", AMOUNT).await.expect("it is still known");
    assert_eq!((later.body.id, later.replayed, till.asked()), (made.id, true, 1));
    assert_eq!(later.body.url, None, "nobody can pay there any more");
    for (amount, said) in
        [(99, "1.00 USD"), (0, "1.00 USD"), (-5, "1.00 USD"), (100_000_000, "999999.99 USD")]
    {
        let refused = ask(&house, "bounds", amount).await;
        let Err(Error::Invalid(faults)) = refused else { panic!("{amount}: {refused:?}") };
        assert_eq!(faults[0].pointer, "/amount_minor");
        assert!(faults[0].detail.contains(said), "{faults:?}");
    }
    assert_eq!((till.asked(), house.rows("payment_sessions").await), (1, 1));
    house.close().await;
}

#[tokio::test]
async fn another_user_has_keys_of_their_own_and_sees_nothing_of_others() {
    let house = House::open().await;
    let till = Till::open(&house.ctx);
    let mine = ask(&house, "one", AMOUNT).await.expect("a page").body.id;
    let asked = NewCheckoutSession { amount_minor: AMOUNT };
    let theirs = control::idempotency::Key::of(
        house.operator.user_id,
        "create_checkout_session",
        "one",
        b"x",
    );
    let theirs = checkout::create(&house.ctx, &house.operator, &asked, &theirs).await;
    let theirs = theirs.expect("a page of their own").body.id;
    assert_ne!(mine, theirs);
    assert_eq!(till.asked(), 2);
    let seen = view::show(&house.ctx, &house.operator, mine).await;
    assert!(matches!(seen, Err(Error::NotFound("payment session"))), "{seen:?}");
    let list = view::list(&house.ctx, &house.tenant, None, None).await.expect("a list").items;
    assert_eq!(list.iter().map(|each| each.id).collect::<Vec<_>>(), [mine]);
    let forbidden = view::list_all(&house.ctx, &house.tenant, true, None, None).await;
    assert!(matches!(forbidden, Err(Error::Forbidden(_))), "{forbidden:?}");
    house.close().await;
}

#[tokio::test]
async fn what_nobody_pays_expires_and_money_that_comes_later_is_honoured() {
    let house = House::with(hour()).await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    house.pass(Duration::from_secs(3_500)).await;
    assert_eq!(stands(&house, id).await.0, "initiated");
    house.pass(Duration::from_secs(200)).await;
    let shown = show(&house, id).await;
    assert_eq!(
        (shown.status.to_string(), shown.progress.to_string()),
        ("expired".to_owned(), "expired".to_owned())
    );
    assert!(shown.status_text.contains("Nothing was charged"), "{}", shown.status_text);
    tell_new(&house, &About::Paid(facts(id))).await;
    assert_eq!(stands(&house, id).await, ("credited".to_owned(), Some(AMOUNT), 0));
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn what_was_paid_and_never_told_is_credited_before_it_expires() {
    let house = House::with(hour()).await;
    let till = Till::open(&house.ctx);
    let (paid, silent, open) =
        (session(&house).await, session(&house).await, session(&house).await);
    till.stands(&page_of(paid), Ok(About::Paid(facts(paid))));
    till.stands(&page_of(silent), Err(ProviderError::Unavailable("away".to_owned())));
    house.pass(Duration::from_secs(3_601)).await;
    let standing = |(status, _, _): (String, Option<i64>, i64)| status;
    assert_eq!(standing(stands(&house, paid).await), "credited");
    assert_eq!(standing(stands(&house, open).await), "expired");
    assert_eq!(standing(stands(&house, silent).await), "initiated", "it is asked again");
    // The webhook comes after all.
    tell_new(&house, &About::Paid(facts(paid))).await;
    assert_eq!(expire::sweep(&house.ctx).await.expect("it looks"), 0);
    house.pass(Duration::from_secs(3_601)).await;
    assert_eq!(standing(stands(&house, silent).await), "expired", "not for ever");
    books_are_right(&house, AMOUNT).await;
    house.close().await;
}

#[tokio::test]
async fn a_page_that_was_never_made_is_not_made_when_it_would_close_at_once() {
    let house = House::with(hour()).await;
    let till = Till::open(&house.ctx);
    till.fails(ProviderError::Unavailable("500".to_owned()));
    ask(&house, "one", AMOUNT).await.expect_err("it failed");
    house.ctx.clock.advance(Duration::from_secs(1_200));
    let late = ask(&house, "one", AMOUNT).await;
    assert!(
        matches!(&late, Err(Error::Conflict(why)) if why.contains("new Idempotency-Key")),
        "{late:?}"
    );
    assert_eq!(till.asked(), 1);
    house.pass(Duration::from_secs(2_500)).await;
    let over = ask(&house, "one", AMOUNT).await.expect("it is known").body;
    assert_eq!((over.status.to_string(), over.url), ("expired".to_owned(), None));
    house.close().await;
}

fn resolution(amount_minor: i64) -> ResolvePayment {
    ResolvePayment { amount_minor, reason: "the bank took a cent".to_owned() }
}

/// A session of which a cent is missing.
async fn short(house: &House) -> PaymentSessionId {
    let id = session(house).await;
    let mut less = facts(id);
    less.amount_minor = Some(AMOUNT - 1);
    tell_new(house, &About::Paid(less)).await;
    assert_eq!(stands(house, id).await, ("failed_reconcile".to_owned(), None, 0));
    PaymentSessionId(id)
}

#[tokio::test]
async fn an_operator_resolves_once_what_does_not_add_up() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let (ctx, operator) = (&house.ctx, &house.operator);
    let id = short(&house).await;
    let cases = view::list_all(ctx, operator, true, None, None).await.expect("a list");
    let case = &cases.items[0];
    assert_eq!(
        (case.paid_amount_minor, case.reason.as_deref()),
        (Some(AMOUNT - 1), Some("amount_mismatch"))
    );
    assert!(
        case.operator_advice.as_deref().is_some_and(|advice| advice.contains("payments resolve"))
    );
    let nobody: &Caller = &house.tenant;
    let refused = resolve::resolve(ctx, nobody, id, &resolution(1), None).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))), "{refused:?}");
    for wrong in [
        ResolvePayment { reason: " ".to_owned(), ..resolution(1) },
        resolution(-1),
        resolution(i64::MAX),
    ] {
        let refused = resolve::resolve(ctx, operator, id, &wrong, None).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    // Two operators at once: one of them is too late.
    let (one, two) = (resolution(AMOUNT - 1), resolution(AMOUNT));
    let (one, two) = tokio::join!(
        resolve::resolve(ctx, operator, id, &one, None),
        resolve::resolve(ctx, operator, id, &two, None)
    );
    let credited = match (&one, &two) {
        (Ok(done), Err(Error::Conflict(_))) | (Err(Error::Conflict(_)), Ok(done)) => {
            done.body.session.credited_amount_minor.expect("an amount")
        }
        (_, _) => panic!("{one:?} {two:?}"),
    };
    let again = resolve::resolve(ctx, operator, id, &resolution(AMOUNT), None).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
    assert_eq!(stands(&house, id.uuid()).await, ("credited".to_owned(), Some(credited), 0));
    assert_eq!(
        house.published(id.uuid()).await,
        ["payments.failed_reconcile", "payments.credited"]
    );
    let deeds = house.deeds("payment.resolve").await;
    assert_eq!(deeds.iter().filter(|deed| *deed == "done").count(), 1, "{deeds:?}");
    assert!(
        view::list_all(ctx, operator, true, None, None).await.expect("a list").items.is_empty()
    );
    books_are_right(&house, credited).await;
    house.close().await;
}

#[tokio::test]
async fn a_resolution_with_a_key_is_answered_again_and_may_be_of_nothing() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let (ctx, operator) = (&house.ctx, &house.operator);
    let id = short(&house).await;
    // The payer had it back before anybody looked.
    let event = tell_new(&house, &refund(id.uuid(), AMOUNT - 1)).await;
    let key = || control::idempotency::Key::of(operator.user_id, "resolve_payment", "k", b"");
    let first =
        resolve::resolve(ctx, operator, id, &resolution(0), Some(&key())).await.expect("done");
    let again =
        resolve::resolve(ctx, operator, id, &resolution(0), Some(&key())).await.expect("known");
    assert_eq!((first.replayed, again.replayed, &first.body), (false, true, &again.body));
    house.pass(Duration::from_secs(5)).await;
    assert_eq!(stands(&house, id.uuid()).await, ("credited".to_owned(), Some(0), 0));
    let told = house.database.payment_event(&event).await.expect("it was kept");
    assert_eq!(
        told.outcome.as_deref(),
        Some("exceeds"),
        "an operator sees that it is more than was credited"
    );
    books_are_right(&house, 0).await;
    house.close().await;
}

#[tokio::test]
async fn operators_see_who_has_been_at_the_checkout_for_over_an_hour() {
    let house = House::open().await;
    let _till = Till::open(&house.ctx);
    let id = session(&house).await;
    let stuck = async || {
        let listed = view::list_all(&house.ctx, &house.operator, true, None, None).await;
        listed.expect("a list").items.iter().map(|case| case.session.id).collect::<Vec<_>>()
    };
    assert_eq!(stuck().await, Vec::<uuid::Uuid>::new());
    house.pass(Duration::from_secs(3_601)).await;
    assert_eq!(stuck().await, [id]);
    let unknown = PaymentSessionId(new_id());
    let missing =
        resolve::resolve(&house.ctx, &house.operator, unknown, &resolution(1), None).await;
    assert!(matches!(missing, Err(Error::NotFound("payment session"))), "{missing:?}");
    let early =
        resolve::resolve(&house.ctx, &house.operator, PaymentSessionId(id), &resolution(1), None)
            .await;
    assert!(matches!(early, Err(Error::Conflict(_))), "{early:?}");
    books_are_right(&house, 0).await;
    house.close().await;
}
