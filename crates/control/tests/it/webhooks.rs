//! Webhooks: claimed once, tried for three days, signed with every secret that is good, and sent again rather than not at all.
//! Whoever carries letters here is a test; how they travel is tested at the server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::webhook::courier::{Courier, Letter, Outcome};
use control::webhook::{deliver, manage};
use control::{Caller, Error, assemble};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use spine::Clock;
use testkit::{House, new_id};
use tokio::sync::Notify;
use uuid::Uuid;
use wire::http::webhooks::{
    Delivery, DeliveryFault, DeliveryStatus, FreshWebhook, NewWebhook, WebhookMessage,
};

const SKU: &str = "h100.slice";
const URL: &str = "https://hooks.example.org/berth";
const TAKEN: Outcome = Outcome { http_status: Some(200), fault: None };
const BROKEN: Outcome = Outcome { http_status: Some(500), fault: Some(DeliveryFault::NotTaken) };

/// Somebody who writes down what they carry, and says what a test wants.
#[derive(Default)]
struct Bag {
    carried: Mutex<Vec<Letter>>,
    answers: Mutex<VecDeque<Outcome>>,
    /// Set, nobody comes back before it is opened.
    gate: Mutex<Option<Arc<Notify>>>,
    rung: Notify,
}

impl Bag {
    fn will(&self, answers: &[Outcome]) {
        self.answers.lock().expect("nobody panicked").extend(answers);
    }

    /// From now on nobody comes back, until the gate is opened.
    fn shut(&self) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        *self.gate.lock().expect("nobody panicked") = Some(Arc::clone(&gate));
        gate
    }

    fn unshut(&self) {
        self.gate.lock().expect("nobody panicked").take();
    }

    fn letters(&self) -> Vec<Letter> {
        self.carried.lock().expect("nobody panicked").clone()
    }

    fn count(&self) -> usize {
        self.carried.lock().expect("nobody panicked").len()
    }
}

impl Courier for Bag {
    fn judge<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let judged =
            if url.starts_with("https://") { Ok(url.to_owned()) } else { Err("no".to_owned()) };
        async move { judged }.boxed()
    }

    fn carry(&self, letter: Letter) -> BoxFuture<'_, Outcome> {
        self.carried.lock().expect("nobody panicked").push(letter);
        self.rung.notify_one();
        let answer = self.answers.lock().expect("nobody panicked").pop_front();
        let gate = self.gate.lock().expect("nobody panicked").clone();
        async move {
            if let Some(gate) = gate {
                gate.notified().await;
            }
            answer.unwrap_or(TAKEN)
        }
        .boxed()
    }
}

fn message(letter: &Letter) -> WebhookMessage {
    serde_json::from_slice(&letter.body).expect("it is JSON")
}

fn header<'a>(letter: &'a Letter, name: &str) -> &'a str {
    let found = letter.headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value.as_str()).unwrap_or_default()
}

/// The signatures that a receiver computes with its own few lines: a `v1` for this secret is among those that came.
fn is_signed_with(letter: &Letter, secret: &str) -> bool {
    let given = header(letter, "berth-signature");
    let second = given.split(',').find_map(|part| part.strip_prefix("t=")).expect("a time");
    let signed = [second.as_bytes(), b".", &letter.body].concat();
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret.as_bytes());
    let tag = aws_lc_rs::hmac::sign(&key, &signed);
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    given.split(',').any(|part| part == format!("v1={hex}"))
}

async fn house() -> (House, Arc<Bag>) {
    let mut house = House::open().await;
    house.node(SKU, &[0, 0, 1, 1]).await;
    let bag = Arc::new(Bag::default());
    assert!(house.ctx.post.set(Arc::clone(&bag) as Arc<dyn Courier>));
    (house, bag)
}

async fn add(house: &House, caller: &Caller) -> FreshWebhook {
    let new = NewWebhook { url: URL.to_owned() };
    manage::create(&house.ctx, caller, &new, None).await.expect("a webhook").body
}

async fn deliveries(house: &House, id: Uuid) -> Vec<Delivery> {
    let page = manage::deliveries(&house.ctx, &house.tenant, id, (None, None)).await;
    page.expect("a page").items
}

async fn only(house: &House, id: Uuid) -> Delivery {
    let mut all = deliveries(house, id).await;
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

async fn sweep(house: &House) -> u64 {
    deliver::sweep(&house.ctx).await.expect("a sweep")
}

#[tokio::test]
async fn what_somebody_is_told_goes_to_their_webhook_signed_and_once() {
    let (house, bag) = house().await;
    let fresh = add(&house, &house.tenant).await;
    let foreign = add(&house, &house.operator).await;
    let allocation = house.active(SKU, 1).await;
    assert_eq!(sweep(&house).await, 1);
    assert_eq!(sweep(&house).await, 0);
    let letters = bag.letters();
    let [letter] = letters.as_slice() else { panic!("one letter, not {}", letters.len()) };
    assert_eq!(letter.url, URL);
    let said = message(letter);
    assert_eq!((said.version, said.allocation_id), (1, Some(allocation.id)));
    assert_eq!(said.kind.to_string(), "allocation.active");
    assert_eq!(header(letter, "berth-delivery"), said.id.to_string());
    assert!(is_signed_with(letter, &fresh.secret) && !is_signed_with(letter, &foreign.secret));
    let delivery = only(&house, fresh.webhook.id).await;
    assert_eq!((delivery.status.0, delivery.attempts), (DeliveryStatus::Delivered, 1));
    assert_eq!((delivery.http_status, delivery.fault), (Some(200), None));
    let seen =
        manage::deliveries(&house.ctx, &house.tenant, foreign.webhook.id, (None, None)).await;
    assert!(matches!(seen, Err(Error::NotFound(_))), "another's webhook is not there");
    house.close().await;
}

#[tokio::test]
async fn what_was_not_taken_is_tried_again_when_its_time_has_come_and_with_the_same_identity() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    house.active(SKU, 1).await;
    bag.will(&[BROKEN]);
    sweep(&house).await;
    let waiting = only(&house, id).await;
    assert_eq!((waiting.status.0, waiting.attempts), (DeliveryStatus::Pending, 1));
    assert_eq!(waiting.fault.map(|fault| fault.0), Some(DeliveryFault::NotTaken));
    assert_eq!((sweep(&house).await, bag.count()), (0, 1), "not before its time");
    house.ctx.clock.advance(Duration::from_secs(30));
    assert_eq!((sweep(&house).await, bag.count()), (1, 2));
    let done = only(&house, id).await;
    assert_eq!((done.status.0, done.attempts, done.fault), (DeliveryStatus::Delivered, 2, None));
    let letters = bag.letters();
    assert_eq!(message(&letters[0]), message(&letters[1]));
    assert_ne!(header(&letters[0], "berth-signature"), header(&letters[1], "berth-signature"));
    house.close().await;
}

#[tokio::test]
async fn what_is_never_taken_is_given_up_after_three_days_and_can_be_had_again() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    house.active(SKU, 1).await;
    bag.will(&[BROKEN; 60]);
    let mut hours = 0;
    while only(&house, id).await.status.0 == DeliveryStatus::Pending {
        sweep(&house).await;
        house.ctx.clock.advance(Duration::from_secs(1_800));
        hours += 1;
        assert!(hours <= 2 * 73, "three days are over");
    }
    let lost = only(&house, id).await;
    assert_eq!(lost.status.0, DeliveryStatus::GivenUp);
    assert!((10..=30).contains(&lost.attempts), "{}", lost.attempts);
    assert!(hours > 2 * 60, "it was given up after {hours} half hours");
    house.ctx.clock.advance(Duration::from_secs(86_400));
    let before = bag.count();
    assert_eq!((sweep(&house).await, bag.count()), (0, before), "it is left alone");
    // Somebody who has mended their receiver asks for it.
    bag.answers.lock().expect("nobody panicked").clear();
    let notification = lost.notification_id;
    let again = manage::redeliver(&house.ctx, &house.tenant, (id, notification), None).await;
    let again = again.expect("queued");
    assert_eq!(
        (again.status, again.body.status.0, again.body.attempts),
        (202, DeliveryStatus::Pending, 0)
    );
    assert_eq!((sweep(&house).await, bag.count()), (1, before + 1));
    assert_eq!(message(&bag.letters()[before]).id, notification, "the same identity");
    let foreign = manage::redeliver(&house.ctx, &house.operator, (id, notification), None).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))));
    house.close().await;
}

#[tokio::test]
async fn two_processes_that_sweep_at_once_send_everything_once() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    for _ in 0..3 {
        manage::test(&house.ctx, &house.tenant, id, None).await.expect("queued");
    }
    house.active(SKU, 1).await;
    let policies = house.ctx.policies();
    let other = assemble(house.database.store.clone(), Clock::system(), policies).await;
    let other = other.expect("another process").ctx;
    other.post.set(Arc::clone(&bag) as Arc<dyn Courier>);
    let here = async { deliver::sweep(&house.ctx).await.expect("a sweep") };
    let there = async { deliver::sweep(&other).await.expect("a sweep") };
    let (one, two, three, four) =
        tokio::join!(here, there, deliver::sweep(&house.ctx), deliver::sweep(&other));
    let sent = one + two + three.expect("a sweep") + four.expect("a sweep");
    assert_eq!((sent, bag.count()), (4, 4));
    let mut ids: Vec<Uuid> = bag.letters().iter().map(|letter| message(letter).id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    house.close().await;
}

#[tokio::test]
async fn who_dies_between_sending_and_writing_it_down_has_it_sent_again_with_the_same_identity() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    house.active(SKU, 1).await;
    bag.shut();
    tokio::select! {
        swept = deliver::sweep(&house.ctx) => panic!("it does not come back: {swept:?}"),
        () = bag.rung.notified() => {}
    }
    bag.unshut();
    assert_eq!(only(&house, id).await.status.0, DeliveryStatus::Pending);
    assert_eq!((sweep(&house).await, bag.count()), (0, 1), "it may still be under way");
    house.ctx.clock.advance(Duration::from_secs(61));
    assert_eq!((sweep(&house).await, bag.count()), (1, 2), "at least once");
    let letters = bag.letters();
    assert_eq!(message(&letters[0]).id, message(&letters[1]).id, "and so taken once");
    assert_eq!(only(&house, id).await.status.0, DeliveryStatus::Delivered);
    house.close().await;
}

#[tokio::test]
async fn what_comes_back_after_somebody_else_has_taken_over_is_not_written_down() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    house.active(SKU, 1).await;
    // Before it comes back it is asked for anew.
    let gate = bag.shut();
    let notification = only(&house, id).await.notification_id;
    let slow = async { deliver::sweep(&house.ctx).await.expect("a sweep") };
    let asked = async {
        bag.rung.notified().await;
        let again = manage::redeliver(&house.ctx, &house.tenant, (id, notification), None);
        again.await.expect("queued");
        bag.unshut();
        gate.notify_one();
    };
    let (sent, ()) = tokio::join!(slow, asked);
    let sent = sent + sweep(&house).await;
    assert_eq!((sent, bag.count()), (2, 2), "what was asked for is not taken for done");
    assert_eq!(only(&house, id).await.status.0, DeliveryStatus::Delivered);
    house.close().await;
}

#[tokio::test]
async fn a_new_secret_signs_beside_the_old_one_for_a_day() {
    let (house, bag) = house().await;
    let old = add(&house, &house.tenant).await;
    let id = old.webhook.id;
    let new = manage::rotate(&house.ctx, &house.tenant, id, None).await.expect("rotated").body;
    assert!(new.secret != old.secret && new.webhook.previous_secret_until.is_some());
    let send = async || {
        manage::test(&house.ctx, &house.tenant, id, None).await.expect("queued");
        sweep(&house).await;
        bag.letters().pop().expect("a letter")
    };
    let both = send().await;
    assert!(is_signed_with(&both, &old.secret) && is_signed_with(&both, &new.secret));
    house.ctx.clock.advance(Duration::from_secs(24 * 3_600 - 60));
    assert!(is_signed_with(&send().await, &old.secret));
    house.ctx.clock.advance(Duration::from_secs(120));
    let one = send().await;
    assert!(!is_signed_with(&one, &old.secret) && is_signed_with(&one, &new.secret));
    // A third takes the place of the first at once: two are enough.
    let third = manage::rotate(&house.ctx, &house.tenant, id, None).await.expect("rotated").body;
    let fourth = manage::rotate(&house.ctx, &house.tenant, id, None).await.expect("rotated").body;
    let last = send().await;
    assert!(is_signed_with(&last, &third.secret) && is_signed_with(&last, &fourth.secret));
    assert!(!is_signed_with(&last, &new.secret));
    assert!(matches!(
        manage::rotate(&house.ctx, &house.operator, id, None).await,
        Err(Error::NotFound(_))
    ));
    house.close().await;
}

#[tokio::test]
async fn a_webhook_that_is_removed_gets_nothing_more_and_its_secret_is_forgotten() {
    let (house, bag) = house().await;
    let fresh = add(&house, &house.tenant).await;
    let id = fresh.webhook.id;
    house.active(SKU, 1).await;
    bag.will(&[BROKEN]);
    sweep(&house).await;
    assert_eq!(house.columns_with(fresh.secret.clone()).await, ["webhooks.secret"]);
    let foreign = manage::delete(&house.ctx, &house.operator, id, None).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))));
    manage::delete(&house.ctx, &house.tenant, id, None).await.expect("removed");
    assert_eq!(house.columns_with(fresh.secret).await, [] as [&str; 0]);
    house.active(SKU, 1).await;
    house.ctx.clock.advance(Duration::from_secs(3_600));
    assert_eq!((sweep(&house).await, bag.count()), (0, 1));
    let tested = manage::test(&house.ctx, &house.tenant, id, None).await;
    assert!(matches!(tested, Err(Error::NotFound(_))));
    let twice = manage::delete(&house.ctx, &house.tenant, id, None).await;
    assert!(matches!(twice, Err(Error::NotFound(_))));
    house.close().await;
}

#[tokio::test]
async fn nobody_has_more_than_ten_even_if_they_ask_for_them_all_at_once() {
    let (house, _bag) = house().await;
    let asks = (0..14).map(async |_| {
        let new = NewWebhook { url: URL.to_owned() };
        manage::create(&house.ctx, &house.tenant, &new, None).await
    });
    let asked = futures::future::join_all(asks).await;
    let refused = asked.iter().filter(|made| matches!(made, Err(Error::Conflict(_)))).count();
    assert_eq!((refused, house.rows("webhooks").await), (4, 10));
    let page = manage::list(&house.ctx, &house.tenant, None, None).await.expect("a page");
    assert_eq!(page.items.len(), 10);
    manage::delete(&house.ctx, &house.tenant, page.items[0].id, None).await.expect("removed");
    add(&house, &house.tenant).await;
    // Somebody else has their own.
    add(&house, &house.operator).await;
    house.close().await;
}

#[tokio::test]
async fn a_test_goes_to_the_one_webhook_and_is_no_unread_news() {
    let (house, bag) = house().await;
    let one = add(&house, &house.tenant).await.webhook.id;
    let other = add(&house, &house.tenant).await.webhook.id;
    let tested = manage::test(&house.ctx, &house.tenant, one, None).await.expect("queued");
    assert_eq!((tested.status, tested.body.kind.to_string().as_str()), (202, "webhook.test"));
    sweep(&house).await;
    assert_eq!(bag.count(), 1);
    assert!(deliveries(&house, other).await.is_empty());
    let told = control::notification::view::list(&house.ctx, &house.tenant, false, (None, None));
    let told = told.await.expect("a page");
    assert_eq!((told.items.len(), told.unread), (1, 0));
    let foreign = manage::test(&house.ctx, &house.operator, one, None).await;
    assert!(matches!(foreign, Err(Error::NotFound(_))));
    assert_eq!(house.rows("notifications").await, 1, "what was refused leaves nothing");
    house.close().await;
}

#[tokio::test]
async fn a_webhook_with_many_waiting_does_not_keep_another_waiting() {
    let (house, bag) = house().await;
    let busy = add(&house, &house.tenant).await.webhook.id;
    for _ in 0..20 {
        manage::test(&house.ctx, &house.tenant, busy, None).await.expect("queued");
    }
    let calm = add(&house, &house.operator).await;
    manage::test(&house.ctx, &house.operator, calm.webhook.id, None).await.expect("queued");
    assert_eq!(sweep(&house).await, 21);
    let place = bag.letters().iter().position(|letter| is_signed_with(letter, &calm.secret));
    assert!(place.is_some_and(|place| place < 5), "{place:?}");
    house.close().await;
}

#[tokio::test]
async fn a_process_without_anybody_to_carry_leaves_it_to_the_others() {
    let (house, bag) = house().await;
    let id = add(&house, &house.tenant).await.webhook.id;
    manage::test(&house.ctx, &house.tenant, id, None).await.expect("queued");
    let policies = house.ctx.policies();
    let other = assemble(house.database.store.clone(), Clock::system(), policies).await;
    let other = other.expect("another process").ctx;
    assert_eq!(deliver::sweep(&other).await.expect("a sweep"), 0);
    let new = NewWebhook { url: URL.to_owned() };
    let refused = manage::create(&other, &house.tenant, &new, None).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert_eq!((sweep(&house).await, bag.count()), (1, 1));
    let wrong = NewWebhook { url: "http://a".to_owned() };
    let refused = manage::create(&house.ctx, &house.tenant, &wrong, None).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let none = manage::redeliver(&house.ctx, &house.tenant, (id, new_id()), None).await;
    assert!(matches!(none, Err(Error::NotFound(_))));
    house.close().await;
}
