//! Payments over HTTP (R17): our client, a sandbox that speaks like Stripe, and webhooks that come as they like.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use domain::policy::Scope;
use sandbox::{Event, Trouble};
use serde_json::{Value, json};
use server::outside::stripe::{Options, Secret, Stripe};
use testkit::new_id;
use tokio::task::JoinSet;

use crate::api::{Api, Told, told};
use crate::shop::{CHECKOUT, KEY, OLD_SECRET, SECRET, Shop, WEBHOOK};

const AMOUNT: i64 = 2_500;

#[tokio::test]
async fn somebody_pays_at_the_page_and_it_is_in_the_balance() {
    let shop = Shop::open().await;
    let made = shop.ask("one", AMOUNT).await;
    assert_eq!(made.status, 201, "{made:?}");
    let session = made.json();
    let id = session["id"].as_str().expect("an id");
    assert_eq!(made.header("location"), format!("/api/v1/payments/sessions/{id}"));
    assert_eq!(
        (session["progress"].as_str(), made.header("idempotency-replayed")),
        (Some("awaiting_payment"), "")
    );
    let again = shop.ask("one", AMOUNT).await;
    assert_eq!((again.json(), again.header("idempotency-replayed")), (session.clone(), "true"));
    assert_eq!((shop.sandbox.asked(), shop.sandbox.sessions().len()), (1, 1));

    let (browser, url) = (Shop::browser(), session["url"].as_str().expect("an address"));
    let page = told(browser.get(url)).await;
    assert!(page.text.contains("25.00 USD") && !page.text.contains("<script"), "{}", page.text);
    assert!(page.header("content-security-policy").contains("default-src 'none'"), "{page:?}");
    let declined = told(browser.post(url).body("how=decline")).await;
    assert!(declined.text.contains("declined"), "{}", declined.text);
    assert_eq!(shop.status(id).await, "initiated");
    let paid = told(browser.post(url).body("how=pay")).await;
    assert_eq!(paid.status, 303, "{paid:?}");
    assert_eq!(
        paid.header("location"),
        format!("https://berth.example.test/billing?payment_session={id}")
    );
    shop.sandbox.settled().await;
    let seen = shop.show(id).await;
    assert_eq!(
        (seen["status"].as_str(), seen["credited_amount_minor"].as_i64()),
        (Some("credited"), Some(AMOUNT))
    );
    assert_eq!(seen["url"], Value::Null);
    shop.has_more(AMOUNT).await;
    let mine = shop.api.get("/api/v1/payments/sessions", &shop.api.tenant).await.json();
    assert_eq!(mine["items"].as_array().map(Vec::len), Some(1));
    shop.close().await;
}

#[tokio::test]
async fn r17_a_hundred_clicks_are_one_session_here_and_there() {
    let shop = Arc::new(Shop::open().await);
    let mut clicks = JoinSet::new();
    for _ in 0..100 {
        let shop = Arc::clone(&shop);
        clicks.spawn(async move { shop.ask("one", AMOUNT).await });
    }
    let answers = clicks.join_all().await;
    let first = answers[0].json();
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.json() == first));
    let fresh = answers.iter().filter(|answer| answer.header("idempotency-replayed").is_empty());
    assert_eq!(fresh.count(), 1);
    assert_eq!((shop.sandbox.asked(), shop.sandbox.sessions().len()), (1, 1));
    Arc::into_inner(shop).expect("everybody is done").close().await;
}

#[tokio::test]
async fn r17_a_provider_that_fails_or_hangs_after_making_the_session_gives_the_same_one_for_the_same_key()
 {
    let shop = Shop::patient(Duration::from_millis(200)).await;
    let troubles = [Trouble::FailBefore, Trouble::FailAfter, Trouble::Hang];
    shop.sandbox.will(&troubles);
    for trouble in troubles {
        let failed = shop.ask("one", AMOUNT).await;
        assert_eq!(failed.refusal(), (503, "unavailable".to_owned()), "{trouble:?}");
        assert!(failed.header("retry-after").parse::<u64>().is_ok_and(|wait| wait > 0));
        assert!(
            !failed.text.contains(KEY) && failed.text.contains("nothing was charged"),
            "{failed:?}"
        );
    }
    let made = shop.ask("one", AMOUNT).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!((shop.sandbox.asked(), shop.sandbox.sessions().len()), (4, 1), "one session there");
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    shop.sandbox.pay(&shop.sandbox.sessions()[0]);
    shop.sandbox.settled().await;
    assert_eq!(shop.status(&id).await, "credited");
    shop.has_more(AMOUNT).await;
    shop.close().await;
}

#[tokio::test]
async fn what_is_asked_for_in_the_wrong_way_is_refused_in_words() {
    let shop = Shop::open().await;
    assert_eq!(shop.ask("one", AMOUNT).await.status, 201);
    assert_eq!(
        shop.ask("one", AMOUNT + 1).await.refusal(),
        (422, "idempotency_mismatch".to_owned())
    );
    let low = shop.ask("low", 99).await;
    assert_eq!(low.refusal(), (422, "invalid".to_owned()));
    assert!(low.problem().detail.contains("between 1.00 USD and 999999.99 USD"), "{low:?}");
    let body = json!({ "amount_minor": AMOUNT });
    let keyless =
        told(shop.api.request("POST", CHECKOUT, Some(&shop.api.tenant)).json(&body)).await;
    assert_eq!(keyless.refusal(), (400, "idempotency_key_missing".to_owned()));
    let (id, _) = shop.checkout(AMOUNT).await;
    let path = format!("/api/v1/payments/sessions/{id}");
    let stranger = shop.api.get(&path, &shop.api.stranger).await;
    assert_eq!(stranger.refusal(), (404, "not_found".to_owned()));
    shop.close().await;
}

#[tokio::test]
async fn without_a_provider_nobody_pays_and_is_told_why() {
    let api = Api::open().await;
    let told = api.send("POST", CHECKOUT, &api.tenant, &json!({"amount_minor": AMOUNT})).await;
    assert_eq!(told.refusal(), (503, "unavailable".to_owned()));
    assert!(told.problem().detail.contains("not set up"), "{told:?}");
    let told = crate::api::told(api.request("POST", WEBHOOK, None).body("{}")).await;
    assert_eq!(told.refusal(), (503, "unavailable".to_owned()));
    api.close().await;
}

fn signed(secret: &str, at: i64, body: &str) -> String {
    let key = hmac::Key::new(HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{at}.{body}").as_bytes());
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={hex}")
}

async fn knock(shop: &Shop, signature: Option<&str>, body: &str) -> Told {
    let request = shop.api.request("POST", WEBHOOK, None).body(body.to_owned());
    told(signature.into_iter().fold(request, |request, it| request.header("stripe-signature", it)))
        .await
}

#[tokio::test]
async fn r17_what_is_forged_unsigned_or_old_is_refused_and_both_secrets_count_while_they_are_changed()
 {
    let shop = Shop::open().await;
    shop.sandbox.hold();
    let (id, page) = shop.checkout(AMOUNT).await;
    shop.sandbox.pay(&page);
    let event = shop.sandbox.events().pop().expect("an event");
    let (body, now) = (event.body.as_str(), shop.api.house.ctx.clock.now().as_second());
    let forged = body.replace("2500", "250000");
    let refused = [
        (None, body),
        (Some(String::new()), body),
        (Some("t=1,v1=00".to_owned()), body),
        (Some(signed("whsec_unknown", now, body)), body),
        (Some(signed(SECRET, now, body)), forged.as_str()),
        (Some(signed(SECRET, now - 301, body)), body),
        (Some(signed(SECRET, now + 310, body)), body),
        (Some(signed(SECRET, now, "not json")), "not json"),
    ];
    for (signature, body) in refused {
        let told = knock(&shop, signature.as_deref(), body).await;
        assert_eq!(told.refusal(), (400, "bad_request".to_owned()), "{signature:?}");
        assert!(!told.text.contains("whsec"), "{told:?}");
    }
    assert_eq!(shop.api.house.rows("payment_events").await, 0, "nothing was written down");
    assert_eq!(shop.status(&id).await, "initiated");
    // Signed with the secret of before, and once more with the new one.
    for secret in [OLD_SECRET, SECRET] {
        assert_eq!(knock(&shop, Some(&signed(secret, now - 299, body)), body).await.status, 200);
    }
    assert_eq!(shop.status(&id).await, "credited");
    assert_eq!(shop.api.house.rows("payment_events").await, 1);
    let kept = shop.api.house.columns_with("payer@example.test".to_owned()).await;
    assert!(kept.is_empty(), "who paid is kept in {kept:?}");
    let metrics = told(shop.api.request("GET", "/metrics", None)).await.text;
    assert!(metrics.contains("berth_payment_webhooks_total{result=\"unproven\"}"), "{metrics}");
    shop.has_more(AMOUNT).await;
    shop.close().await;
}

/// What the sandbox has to tell, of that kind.
fn of_kind(events: &[Event], kind: &str) -> Event {
    let of = |event: &&Event| event.kind.ends_with(kind);
    events.iter().find(of).unwrap_or_else(|| panic!("there is no {kind}")).clone()
}

#[tokio::test]
async fn r17_webhooks_in_the_opposite_order_five_times_and_at_once_come_to_the_same_end() {
    let shop = Arc::new(Shop::open().await);
    shop.sandbox.hold();
    let (id, page) = shop.checkout(AMOUNT).await;
    shop.sandbox.pay_later(&page);
    shop.sandbox.arrives(&page, true);
    assert!(shop.sandbox.refund(&page, 300) && shop.sandbox.refund(&page, 500));
    let events = shop.sandbox.events();
    assert_eq!(events.len(), 4);
    for event in events.iter().rev() {
        assert_eq!(shop.sandbox.deliver(event).await.expect("an answer"), 200);
    }
    let mut told = JoinSet::new();
    for _ in 0..5 {
        for event in events.clone() {
            let shop = Arc::clone(&shop);
            told.spawn(async move { shop.sandbox.deliver(&event).await.expect("an answer") });
        }
    }
    assert!(told.join_all().await.iter().all(|status| *status == 200));
    shop.api.house.pass(Duration::from_secs(1)).await;
    let seen = shop.show(&id).await;
    assert_eq!(
        (seen["status"].as_str(), seen["refunded_minor"].as_i64()),
        (Some("credited"), Some(800))
    );
    shop.has_more(AMOUNT - 800).await;
    Arc::into_inner(shop).expect("everybody is done").close().await;
}

#[tokio::test]
async fn expired_before_completed_and_bounced_payments_end_as_they_should() {
    let shop = Shop::open().await;
    shop.sandbox.hold();
    let (late, page) = shop.checkout(AMOUNT).await;
    shop.sandbox.expire(&page);
    let expired = of_kind(&shop.sandbox.events(), "session.expired");
    shop.sandbox.deliver(&expired).await.expect("an answer");
    assert_eq!(shop.status(&late).await, "expired");
    // Stripe lets nobody pay at an expired page; but a word of it may be older than one that came before.
    let paid = expired
        .body
        .replace("session.expired", "session.completed")
        .replace("\"unpaid\"", "\"paid\"");
    let paid = Event { body: paid.replace(&expired.id, "evt_of_before"), ..expired };
    shop.sandbox.deliver(&paid).await.expect("an answer");
    assert_eq!(shop.status(&late).await, "credited");

    let (bounced, page) = shop.checkout(AMOUNT).await;
    shop.sandbox.pay_later(&page);
    shop.sandbox.deliver(&shop.sandbox.events().pop().expect("an event")).await.expect("an answer");
    assert_eq!(shop.show(&bounced).await["progress"], "processing");
    shop.sandbox.arrives(&page, false);
    shop.sandbox.deliver(&shop.sandbox.events().pop().expect("an event")).await.expect("an answer");
    assert_eq!(shop.status(&bounced).await, "expired");
    shop.has_more(AMOUNT).await;
    shop.close().await;
}

#[tokio::test]
async fn r17_other_sums_and_other_accounts_sessions_wait_for_an_operator_who_resolves_once() {
    let shop = Shop::open().await;
    let mut cases = Vec::new();
    for (amount, currency) in [(AMOUNT - 1, "usd"), (AMOUNT + 1, "usd"), (AMOUNT, "eur")] {
        let (id, page) = shop.checkout(AMOUNT).await;
        shop.sandbox.tamper(&page, amount, currency);
        shop.sandbox.pay(&page);
        shop.sandbox.settled().await;
        assert_eq!(shop.status(&id).await, "failed_reconcile");
        cases.push(id);
    }
    shop.has_more(0).await;
    let api = &shop.api;
    let stuck = "/api/v1/admin/payments/sessions?stuck=true";
    let listed = api.get(stuck, &api.operator).await.json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(listed["items"][0]["paid_currency"], "EUR");
    assert_eq!(listed["items"][0]["reason"], "currency_mismatch");

    let path = format!("/api/v1/admin/payments/sessions/{}/resolve", cases[0]);
    let body = json!({"amount_minor": AMOUNT - 1, "reason": "the bank took a cent"});
    let tenant = api.send("POST", &path, &api.tenant, &body).await;
    assert_eq!(tenant.refusal(), (403, "forbidden".to_owned()));
    let done = api.send("POST", &path, &api.operator, &body).await;
    assert_eq!(
        (done.status.as_u16(), done.json()["session"]["status"].as_str()),
        (200, Some("credited")),
        "{done:?}"
    );
    assert_eq!(
        api.send("POST", &path, &api.operator, &body).await.refusal(),
        (409, "conflict".to_owned())
    );
    shop.has_more(AMOUNT - 1).await;
    assert_eq!(
        api.get(stuck, &api.operator).await.json()["items"].as_array().map(Vec::len),
        Some(2)
    );

    // A session of somebody else that says it is one of ours.
    shop.sandbox.hold();
    let (id, page) = shop.checkout(AMOUNT).await;
    shop.sandbox.pay(&page);
    let event = shop.sandbox.events().pop().expect("an event");
    let other = Event {
        body: event.body.replace(&page, "cs_test_another").replace(&event.id, "evt_another"),
        ..event
    };
    assert_eq!(shop.sandbox.deliver(&other).await.expect("an answer"), 200);
    assert_eq!(shop.status(&id).await, "initiated");
    let events =
        api.get("/api/v1/admin/payments/events?unmatched=true", &api.operator).await.json();
    assert_eq!(events["items"][0]["id"], "evt_another");
    shop.has_more(AMOUNT - 1).await;
    shop.close().await;
}

#[tokio::test]
async fn what_the_api_could_not_take_is_told_again_until_it_can() {
    let shop = Shop::open().await;
    let (id, page) = shop.checkout(AMOUNT).await;
    let gone = "ALTER TABLE payment_events RENAME TO payment_events_gone";
    assert!(shop.api.house.database.lets(gone).await);
    shop.sandbox.hold();
    shop.sandbox.pay(&page);
    let event = shop.sandbox.events().pop().expect("an event");
    let status = shop.sandbox.deliver(&event).await.expect("an answer");
    assert!(status >= 500, "what is not written down is not acknowledged: {status}");
    assert!(
        shop.api
            .house
            .database
            .lets("ALTER TABLE payment_events_gone RENAME TO payment_events")
            .await
    );
    assert_eq!(shop.sandbox.deliver(&event).await.expect("an answer"), 200);
    assert_eq!(shop.status(&id).await, "credited");
    shop.has_more(AMOUNT).await;
    shop.close().await;
}

#[tokio::test]
async fn a_payment_whose_webhook_never_comes_is_found_before_it_expires() {
    let mut shop = Shop::open().await;
    shop.sandbox.hold();
    let ((paid, page), (open, _)) = (shop.checkout(AMOUNT).await, shop.checkout(AMOUNT).await);
    shop.sandbox.pay(&page);
    shop.api.house.ctx.clock.advance(Duration::from_secs(86_401));
    // The token of yesterday is over, too.
    let tenant = shop.api.house.tenant.user_id;
    shop.api.tenant = shop.api.token(tenant, &[Scope::Read]).await;
    control::payment::expire::sweep(&shop.api.house.ctx).await.expect("it looks");
    assert_eq!(
        (shop.status(&paid).await, shop.status(&open).await),
        ("credited".to_owned(), "expired".to_owned())
    );
    // And then it comes.
    for event in shop.sandbox.events() {
        assert_eq!(shop.sandbox.deliver(&event).await.expect("an answer"), 200);
    }
    shop.has_more(AMOUNT).await;
    shop.close().await;
}

#[tokio::test]
async fn a_wrong_key_is_a_matter_for_operators_and_no_secret_is_ever_told() {
    let shop = Shop::open().await;
    let options = Options::new(
        shop.sandbox.url(),
        Secret::new("sk_wrong"),
        vec![Secret::new(SECRET)],
        "https://b.test",
    );
    assert!(!format!("{options:?}").contains("sk_wrong"), "{options:?}");
    let stripe = Stripe::new(options).expect("a client");
    assert!(!format!("{stripe:?}").contains("sk_wrong") && !format!("{stripe:?}").contains(SECRET));
    let new = control::payment::provider::NewCheckout {
        session: new_id(),
        amount_minor: AMOUNT,
        currency: "USD".to_owned(),
        expires_at: shop.api.house.ctx.after_seconds(7_200),
    };
    use control::payment::provider::{Provider as _, ProviderError};
    let refused = stripe.create_session(&new).await.expect_err("it is not known");
    assert!(
        matches!(&refused, ProviderError::Refused(why) if why.contains("key") && !why.contains("sk_wrong")),
        "{refused}"
    );
    shop.close().await;
}

#[tokio::test]
async fn the_sandbox_is_as_strict_as_stripe() {
    let shop = Shop::open().await;
    let http = Shop::browser();
    let url = format!("{}/v1/checkout/sessions", shop.sandbox.url());
    let now = shop.api.house.ctx.clock.now().as_second();
    let good = format!(
        "mode=payment&client_reference_id=x&success_url=https://a.test&cancel_url=https://a.test&line_items[0][quantity]=1\
         &line_items[0][price_data][currency]=usd&line_items[0][price_data][unit_amount]=500\
         &line_items[0][price_data][product_data][name]=n&expires_at={}",
        now + 3_600
    );
    let post = |key: &str, once: &str, body: String| {
        let request = http.post(&url).bearer_auth(key).header("idempotency-key", once);
        told(request.body(body))
    };
    assert_eq!(post("wrong", "k", good.clone()).await.status, 401);
    let made = post(KEY, "k", good.clone()).await;
    assert_eq!(made.status, 200, "{made:?}");
    let again = post(KEY, "k", good.clone()).await;
    assert_eq!((again.json(), again.header("idempotent-replayed")), (made.json(), "true"));
    let other = post(KEY, "k", good.replace("500", "501")).await;
    assert_eq!(
        (other.status.as_u16(), other.json()["error"]["type"].as_str()),
        (400, Some("idempotency_error"))
    );
    for (part, instead) in [
        ("mode=payment", "mode=subscription"),
        ("unit_amount]=500", "unit_amount]=49"),
        ("unit_amount]=500", "unit_amount]=100000000"),
        ("unit_amount]=500", "unit_amount]=many"),
        ("currency]=usd", "currency]=dollars"),
        ("success_url=https://a.test", "success_url=nowhere"),
        ("&line_items[0][quantity]=1", ""),
        (&format!("expires_at={}", now + 3_600), &format!("expires_at={}", now + 60)),
        (&format!("expires_at={}", now + 3_600), &format!("expires_at={}", now + 90_000)),
    ] {
        let refused = post(KEY, &new_id().to_string(), good.replace(part, instead)).await;
        assert_eq!(refused.status, 400, "{instead}: {refused:?}");
        assert!(refused.json()["error"]["message"].is_string(), "{refused:?}");
    }
    let missing = told(http.get(format!("{url}/cs_nothing")).bearer_auth(KEY)).await;
    assert_eq!(missing.status, 404);
    shop.close().await;
}
