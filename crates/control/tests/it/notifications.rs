//! What people are told: each kind out of a real story, each cause once to each of them, in an order that loses nothing.

use std::time::Duration;

use control::account::{install, members};
use control::allocation::release;
use control::notification::{tell, view};
use control::{Caller, Error};
use domain::ids::{AccountId, AllocationId, EventId, OperationId, PaymentSessionId};
use domain::ledger::PostingKind;
use domain::machines::allocation::Event;
use domain::machines::payment_session::{
    AMOUNT_MINOR, CREDITED_AMOUNT_MINOR, CURRENCY, Event as Paying, LEDGER_ENTRY_ID,
};
use domain::machines::{PaymentSession, REASON};
use domain::policy::{ProjectRole, Scope};
use lifecycle::{Outcome, Source, Value};
use store::ledger::{self, NewPosting};
use store::lifecycle::{Actor, Birth, Report, apply};
use store::notifications::{self as rows, News};
use store::payment_sessions::{self, NewSession};
use testkit::{Act, FUNDS_MINOR, House, new_id};
use uuid::Uuid;
use wire::bus::Subject;
use wire::http::account::NewMember;
use wire::http::allocations::ForceRelease;
use wire::http::notifications::{Notification, NotificationKind as Kind, ReadAll};
use wire::node::FailureReason;

const SKU: &str = "h100.slice";

async fn house() -> House {
    let mut house = House::open().await;
    house.node(SKU, &[0, 0, 1, 1]).await;
    house
}

/// Everything that somebody was told, newest first.
async fn told(house: &House, caller: &Caller) -> Vec<Notification> {
    view::list(&house.ctx, caller, false, (Some(200), None)).await.expect("a list").items
}

async fn kinds(house: &House, caller: &Caller) -> Vec<Kind> {
    told(house, caller).await.iter().rev().map(|told| told.kind.0).collect()
}

/// Every message about a row comes again, five times each and all at once.
async fn again(house: &House, id: Uuid) {
    for message in house.outbox_of(Some(id)).await {
        let hear = || tell::hear(&house.ctx, &message);
        let heard = tokio::join!(hear(), hear(), hear(), hear(), hear());
        for heard in [heard.0, heard.1, heard.2, heard.3, heard.4] {
            heard.expect("heard");
        }
    }
}

async fn account(house: &House) -> AccountId {
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let found = store::accounts::find_of(&mut tx, house.tenant.user_id).await.expect("a look");
    tx.rollback().await.expect("nothing was done");
    found.expect("an account")
}

/// Money comes, or goes.
async fn move_money(house: &House, amount_minor: i64) {
    let account = account(house).await;
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let posting = NewPosting {
        key: &format!("test/{}", new_id()),
        kind: PostingKind::Adjustment,
        account,
        amount_minor,
        source_id: None,
        actor: "test",
        reason: Some("a test"),
    };
    ledger::post(&mut tx, &posting).await.expect("posted");
    tx.commit().await.expect("committed");
    house.settle().await;
}

async fn member(house: &House, email: &str, role: ProjectRole) -> Caller {
    let user_id =
        install::ensure_user(&house.ctx, email, email, false, None).await.expect("an account");
    let new = NewMember { email: email.to_owned(), role: role.into() };
    members::put(&house.ctx, &house.tenant, house.project, &new, None).await.expect("a member");
    let scopes = vec![Scope::Read, Scope::Write];
    Caller { user_id, email: email.to_owned(), scopes, token_id: new_id(), ..house.tenant.clone() }
}

#[tokio::test]
async fn a_provision_that_failed_is_told_to_its_owner_once_however_often_the_message_comes() {
    let house = house().await;
    let admin = member(&house, "admin@example.test", ProjectRole::Admin).await;
    house.first_node().will(&[Act::Fail(FailureReason::ImageUnavailable)]);
    let id = house.create(SKU, 1).await.expect("it fits").id;
    house.settle().await;
    again(&house, id).await;
    let told = told(&house, &house.tenant).await;
    let [only] = told.as_slice() else { panic!("told once: {told:#?}") };
    assert_eq!((only.kind.0, only.number), (Kind::AllocationFailed, 1));
    assert_eq!((only.allocation_id, only.project_id), (Some(id), Some(house.project)));
    assert!(only.title.ends_with("could not be prepared"), "{}", only.title);
    assert!(
        only.body.starts_with("The image could not be fetched. Nothing was charged"),
        "{}",
        only.body
    );
    assert_eq!(kinds(&house, &admin).await, [], "it is not theirs, and nothing is stuck");
    house.close().await;
}

#[tokio::test]
async fn without_the_unique_key_nothing_is_told_and_nobody_is_told_twice() {
    let house = house().await;
    assert!(house.database.lets("DROP INDEX notifications_cause").await);
    house.first_node().will(&[Act::Fail(FailureReason::ImageUnavailable)]);
    let id = house.create(SKU, 1).await.expect("it fits").id;
    let failed = async || {
        let messages = house.outbox_of(Some(id)).await;
        messages.into_iter().find(|message| message.subject.0 == Subject::ProvisioningFailed)
    };
    for _ in 0..50 {
        if failed().await.is_some() {
            break;
        }
        house.spine.step_all().await.expect("it moves");
        house.let_nodes_work().await;
    }
    let message = failed().await.expect("it has failed");
    let heard = tell::hear(&house.ctx, &message).await;
    assert!(matches!(heard, Err(Error::Store(_))), "the key is what makes it once: {heard:?}");
    assert_eq!(house.rows("notifications").await, 0);
    house.database.remove().await;
}

#[tokio::test]
async fn the_life_of_an_allocation_is_told_where_its_owner_waits_for_something() {
    let house = house().await;
    house.beat(house.first_node()).await;
    let id = house.active(SKU, 2).await.id;
    house.restart(id).await.expect("asked");
    house.settle().await;
    house.first_node().will(&[Act::Fail(FailureReason::RebootFailed)]);
    house.restart(id).await.expect("asked");
    house.settle().await;
    house.release(id).await.expect("asked");
    house.settle().await;
    again(&house, id).await;
    let told = told(&house, &house.tenant).await;
    let kinds: Vec<Kind> = told.iter().rev().map(|told| told.kind.0).collect();
    let expected =
        [Kind::AllocationActive, Kind::AllocationRestarted, Kind::AllocationRestartFailed];
    assert_eq!(kinds, expected, "who gave it back is not told that it is gone");
    let numbers: Vec<i64> = told.iter().map(|told| told.number).collect();
    assert_eq!(numbers, [3, 2, 1], "without a gap, newest first");
    let ready = &told[2];
    assert!(ready.body.starts_with("2 × h100.slice in eu-1 is ready to use"), "{}", ready.body);
    assert!(told[0].body.contains("not being charged"), "{}", told[0].body);
    house.close().await;
}

#[tokio::test]
async fn a_release_that_was_given_up_is_told_to_the_admins_too_and_so_is_its_end() {
    let house = house().await;
    let admin = member(&house, "admin@example.test", ProjectRole::Admin).await;
    let viewer = member(&house, "viewer@example.test", ProjectRole::Viewer).await;
    let id = house.active(SKU, 1).await.id;
    house.first_node().will(&[Act::LeaveResidue; 5]);
    house.release(id).await.expect("asked");
    for _ in 0..8 {
        house.pass(Duration::from_secs(70)).await;
    }
    assert_eq!(kinds(&house, &admin).await, [Kind::AllocationReleaseFailed]);
    house.release(id).await.expect("asked once more");
    house.pass(Duration::from_secs(10)).await;
    again(&house, id).await;
    let both = [Kind::AllocationReleaseFailed, Kind::AllocationReleased];
    assert_eq!(kinds(&house, &admin).await, both);
    let owner = kinds(&house, &house.tenant).await;
    assert_eq!(owner, [&[Kind::AllocationActive][..], &both].concat());
    assert_eq!(kinds(&house, &viewer).await, []);
    let told = told(&house, &admin).await;
    assert!(told[1].body.contains("You are not being charged since 20"), "{}", told[1].body);
    house.close().await;
}

#[tokio::test]
async fn what_somebody_else_took_back_is_told_with_why() {
    let house = house().await;
    let (forced, depleted, own) = (
        house.active(SKU, 1).await.id,
        house.active(SKU, 1).await.id,
        house.active(SKU, 1).await.id,
    );
    let because = ForceRelease { reason: "the rack is \u{202e} moved".to_owned() };
    release::force(&house.ctx, &house.operator, AllocationId(forced), &because, None)
        .await
        .expect("taken back");
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let report = Report::new(
        Event::ReleaseRequested,
        EventId(new_id()),
        Actor::new(Source::Worker, "billing"),
    )
    .about(OperationId(new_id()))
    .with(REASON, Value::Text("balance_depleted".into()));
    let reported = store::allocations::report(&mut tx, AllocationId(depleted), &report).await;
    assert!(matches!(reported, Ok(Outcome::Applied { .. })));
    tx.commit().await.expect("committed");
    house.release(own).await.expect("asked");
    house.settle().await;
    let told = told(&house, &house.tenant).await;
    let taken: Vec<&Notification> =
        told.iter().filter(|told| told.kind.0 == Kind::AllocationTakenBack).collect();
    let body_of = |id: Uuid| {
        let found = taken.iter().find(|told| told.allocation_id == Some(id));
        found.map(|told| told.body.clone()).unwrap_or_default()
    };
    assert_eq!(taken.len(), 2, "what they gave back themselves is no news: {told:#?}");
    assert!(body_of(forced).starts_with("An operator took the machine back."));
    assert!(!body_of(forced).contains("rack"), "what an operator wrote is for the audit log");
    assert!(body_of(depleted).starts_with("The balance that pays for it is used up."));
    house.close().await;
}

#[tokio::test]
async fn each_crossing_of_a_balance_is_told_once_and_an_account_that_is_opened_is_no_news() {
    let house = house().await;
    house.settle().await;
    let id = account(&house).await;
    again(&house, id.uuid()).await;
    assert_eq!(kinds(&house, &house.tenant).await, [], "it was opened with nothing, and filled");
    house.active(SKU, 2).await;
    move_money(&house, 500 - FUNDS_MINOR).await;
    move_money(&house, -10).await;
    move_money(&house, -490).await;
    move_money(&house, 100).await;
    move_money(&house, 50_000).await;
    again(&house, id.uuid()).await;
    let expected = [
        Kind::AllocationActive,
        Kind::BalanceLow,
        Kind::BalanceDepleted,
        Kind::AllocationTakenBack,
        Kind::BalanceRecovered,
        Kind::BalanceRecovered,
    ];
    assert_eq!(kinds(&house, &house.tenant).await, expected);
    let told = told(&house, &house.tenant).await;
    assert_eq!(told[4].title, "Your balance is low: 5.00 USD");
    assert!(told[4].body.starts_with("At the current rate ("), "{}", told[4].body);
    assert!(told[4].body.contains("/h) your balance lasts about "), "{}", told[4].body);
    assert!(told[4].body.ends_with("At zero, running machines are released."), "{}", told[4].body);
    assert_eq!(told[3].title, "Your balance is used up: 0.00 USD");
    assert_eq!(kinds(&house, &house.operator).await, [], "it is nobody else's");
    house.close().await;
}

/// A payment that came to this end.
async fn paid(house: &House, good: bool) -> Uuid {
    let (id, account) = (PaymentSessionId(new_id()), account(house).await);
    let by = |source| Actor::new(source, "test");
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let new = NewSession { id, account, amount_minor: 5_000, currency: "USD".to_owned() };
    let birth = Birth::new(EventId(new_id()), by(Source::User));
    payment_sessions::insert(&mut tx, &new, &birth).await.expect("a session");
    let report = Report::new(Paying::Completed, EventId(new_id()), by(Source::Outside));
    let completed = apply::<PaymentSession>(&mut tx, id, &report).await;
    assert!(matches!(completed, Ok(Outcome::Applied { .. })));
    let report = if good {
        Report::new(Paying::CreditPosted, EventId(new_id()), by(Source::Worker))
            .with(AMOUNT_MINOR, Value::Int(5_000))
            .with(CURRENCY, Value::Text("USD".into()))
            .with(LEDGER_ENTRY_ID, Value::Id(new_id().as_u128()))
            .with(CREDITED_AMOUNT_MINOR, Value::Int(5_000))
    } else {
        Report::new(Paying::CreditFailed, EventId(new_id()), by(Source::Worker))
            .with(REASON, Value::Text("amount_mismatch".into()))
    };
    let settled = apply::<PaymentSession>(&mut tx, id, &report).await;
    assert!(matches!(settled, Ok(Outcome::Applied { .. })));
    tx.commit().await.expect("committed");
    house.settle().await;
    id.uuid()
}

#[tokio::test]
async fn a_payment_is_told_to_its_payer_and_one_that_does_not_add_up_to_operators_as_well() {
    let house = house().await;
    let good = paid(&house, true).await;
    let bad = paid(&house, false).await;
    again(&house, good).await;
    again(&house, bad).await;
    assert_eq!(kinds(&house, &house.tenant).await, [Kind::PaymentCredited, Kind::PaymentInReview]);
    let (payer, operator) =
        (told(&house, &house.tenant).await, told(&house, &house.operator).await);
    assert_eq!(payer[1].title, "50.00 USD was credited");
    assert_eq!(payer[1].payment_session_id, Some(good));
    let [only] = operator.as_slice() else { panic!("told once: {operator:#?}") };
    assert_eq!((only.kind.0, only.payment_session_id), (Kind::PaymentFailedReconcile, Some(bad)));
    house.database.remove().await;
}

#[tokio::test]
async fn what_was_read_stays_read_and_only_what_was_seen_is() {
    let house = house().await;
    for _ in 0..3 {
        house.active(SKU, 1).await;
    }
    let (ctx, tenant) = (&house.ctx, &house.tenant);
    let page = view::list(ctx, tenant, false, (Some(2), None)).await.expect("a page");
    assert_eq!((page.unread, page.items.len()), (3, 2));
    let cursor = page.next_cursor.as_deref();
    let rest = view::list(ctx, tenant, false, (Some(2), cursor)).await.expect("a page");
    assert_eq!((rest.items[0].number, rest.next_cursor.is_none()), (1, true));
    let other = view::list(ctx, tenant, true, (Some(2), cursor)).await;
    assert!(matches!(other, Err(Error::Invalid(_))), "another list has another cursor");
    let middle = page.items[1].id;
    let read = view::read(ctx, tenant, middle, None).await.expect("read").body;
    let twice = view::read(ctx, tenant, middle, None).await.expect("read").body;
    assert_eq!((read.read_at.is_some(), twice.read_at), (true, read.read_at));
    let unread = view::list(ctx, tenant, true, (None, None)).await.expect("a page");
    let numbers: Vec<i64> = unread.items.iter().map(|told| told.number).collect();
    assert_eq!((unread.unread, numbers), (2, vec![3, 1]));
    // What came after the last that was seen stays unread.
    let seen = ReadAll { up_to: Some(2) };
    assert_eq!(view::read_all(ctx, tenant, &seen, None).await.expect("read").body.read, 1);
    let all = ReadAll { up_to: None };
    assert_eq!(view::read_all(ctx, tenant, &all, None).await.expect("read").body.read, 1);
    assert_eq!(view::read_all(ctx, tenant, &all, None).await.expect("read").body.read, 0);
    // A stranger has nothing to read, and learns of nothing.
    let foreign = view::read(ctx, &house.operator, middle, None).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))));
    assert_eq!(view::list(ctx, &house.operator, false, (None, None)).await.expect("one").unread, 0);
    house.close().await;
}

fn news<'a>(house: &House, cause: &'a str) -> News<'a> {
    News {
        kind: "other",
        cause,
        title: "t",
        body: "b",
        project_id: None,
        allocation_id: None,
        payment_session_id: None,
        webhook_id: None,
        now: house.ctx.clock.now(),
    }
}

async fn tell_in(house: &House, cause: &str) -> store::Tx {
    let mut tx = house.ctx.store.begin().await.expect("a transaction");
    let to = rows::address(&mut tx, &[house.tenant.user_id]).await.expect("somebody");
    rows::tell(&mut tx, &to, &news(house, cause)).await.expect("told");
    tx
}

#[tokio::test]
async fn a_number_that_is_taken_first_and_committed_last_is_missed_by_nobody() {
    let house = House::open().await;
    let user = house.tenant.user_id;
    let seen = async |after: i64| {
        let told = view::after(&house.ctx, user, after).await.expect("a look");
        told.into_iter().map(|told| told.number).collect::<Vec<i64>>()
    };
    // The first has its number, and takes its time to commit; the second comes meanwhile.
    let first = tell_in(&house, "first").await;
    let second = async {
        tell_in(&house, "second").await.commit().await.expect("committed");
    };
    let reader = async {
        // Until the second waits for the first. If it did not, it would be seen here before the first, which would be missed.
        while house.waiting_for_locks().await == 0 {
            assert_eq!(seen(0).await, [] as [i64; 0], "the second was faster than the first");
            tokio::task::yield_now().await;
        }
        assert_eq!(seen(0).await, [] as [i64; 0]);
        first.commit().await.expect("committed");
    };
    tokio::join!(second, reader);
    assert_eq!(seen(0).await, [1, 2]);
    assert_eq!(seen(1).await, [2]);
    house.close().await;
}

#[tokio::test]
async fn many_who_tell_the_same_people_at_once_leave_no_gap_and_nobody_waits_in_a_circle() {
    let house = House::open().await;
    let (one, other) = (house.tenant.user_id, house.operator.user_id);
    let tell = async |number: usize| {
        for cause in 0..10 {
            let mut tx = house.ctx.store.begin().await.expect("a transaction");
            // Each in an order of their own, and what was rolled back takes no number along.
            let people = if number.is_multiple_of(2) { [one, other] } else { [other, one] };
            let to = rows::address(&mut tx, &people).await.expect("both");
            let cause = format!("{number}/{cause}");
            rows::tell(&mut tx, &to, &news(&house, &cause)).await.expect("told");
            if cause.ends_with('7') {
                tx.rollback().await.expect("undone");
            } else {
                tx.commit().await.expect("committed");
            }
        }
    };
    // Who reads all along sees every number once, and in order.
    let read = async {
        let mut seen = Vec::new();
        while seen.len() < 36 {
            let last = seen.last().copied().unwrap_or(0);
            let more = view::after(&house.ctx, one, last).await.expect("a look");
            seen.extend(more.into_iter().map(|told| told.number));
            tokio::task::yield_now().await;
        }
        seen
    };
    let ((), (), (), (), seen) = tokio::join!(tell(0), tell(1), tell(2), tell(3), read);
    assert_eq!(seen, (1..=36).collect::<Vec<i64>>());
    assert_eq!(view::latest(&house.ctx, other).await.expect("a number"), 36);
    house.close().await;
}

#[tokio::test]
async fn who_was_shut_out_is_told_nothing() {
    let house = house().await;
    let id = house.create(SKU, 1).await.expect("it fits").id;
    house.shut_out(house.tenant.user_id).await;
    house.settle().await;
    again(&house, id).await;
    assert_eq!(house.rows("notifications").await, 0);
    house.close().await;
}
