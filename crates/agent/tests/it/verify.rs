//! What a node believes, and what it does not.

use agent::verify::{Accepted, Refusal, Verifier};
use jiff::SignedDuration;
use wire::node::{Envelope, FailureReason, SignedTask};
use wire::seal::VerifyingKey;

use crate::house::{House, Order, id, provision};

fn verifier(house: &House) -> Verifier {
    let key = VerifyingKey::parse(&house.identity.task_keys[0]).expect("a key");
    Verifier::new(house.identity.node_id, vec![key])
}

fn verify(house: &House, signed: &SignedTask) -> Result<Accepted, FailureReason> {
    let verdict = verifier(house).verify(signed, house.clock.now());
    verdict.map_err(|refusal: Refusal| refusal.reason)
}

fn altered(house: &House, alter: impl FnOnce(&mut Envelope)) -> Result<Accepted, FailureReason> {
    let mut envelope = house.envelope(&Order::new(id(), 1, provision(&[0])));
    alter(&mut envelope);
    verify(house, &house.seal(&envelope))
}

#[tokio::test(start_paused = true)]
async fn a_task_signed_for_this_node_is_accepted_as_it_was_signed() {
    let house = House::new();
    let order = Order::new(id(), 7, provision(&[0, 1]));
    let accepted = verify(&house, &house.sign(&order)).expect("it is good");
    assert_eq!(accepted.work, order.work);
    assert_eq!((accepted.task, accepted.fence, accepted.dispatch), (order.task, 7, 1));
}

#[tokio::test(start_paused = true)]
async fn one_changed_byte_anywhere_breaks_the_signature() {
    let house = House::new();
    let signed = house.sign(&Order::new(id(), 1, provision(&[0])));
    for at in 0..signed.envelope.len() {
        let mut bytes = signed.envelope.clone().into_bytes();
        bytes[at] ^= 1;
        let envelope = String::from_utf8(bytes).expect("it stays ASCII");
        let forged = SignedTask { envelope, ..signed.clone() };
        assert_eq!(verify(&house, &forged), Err(FailureReason::BadSignature), "{at}");
    }
    // Another key's signature, and one for another purpose, are no better.
    let other = House::new().sign(&Order::new(id(), 1, provision(&[0])));
    assert_eq!(verify(&house, &other), Err(FailureReason::BadSignature));
}

#[tokio::test(start_paused = true)]
async fn every_flaw_has_its_refusal() {
    let house = House::new();
    let minutes = SignedDuration::from_mins;
    let now = house.clock.now();
    let other_node = altered(&house, |envelope| envelope.node_id = id());
    assert_eq!(other_node, Err(FailureReason::OtherNode));
    let expired = altered(&house, |envelope| envelope.expires_at = now - minutes(2));
    assert_eq!(expired, Err(FailureReason::TaskExpired));
    let early = altered(&house, |envelope| envelope.not_before = now + minutes(2));
    assert_eq!(early, Err(FailureReason::TaskExpired));
    let kind = altered(&house, |envelope| envelope.kind = "node.explode".to_owned());
    assert_eq!(kind, Err(FailureReason::UnknownKind));
    let version = altered(&house, |envelope| envelope.v = 0);
    assert_eq!(version, Err(FailureReason::Malformed));
    let params = altered(&house, |envelope| envelope.params["shell"] = "rm -rf".into());
    assert_eq!(params, Err(FailureReason::Malformed));
}

#[tokio::test(start_paused = true)]
async fn clocks_may_be_a_minute_apart() {
    let house = House::new();
    let now = house.clock.now();
    let minute = SignedDuration::from_secs(60);
    assert!(altered(&house, |envelope| envelope.expires_at = now - minute).is_ok());
    assert!(altered(&house, |envelope| envelope.not_before = now + minute).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_field_is_refused_even_if_it_is_signed() {
    let house = House::new();
    let order = Order::new(id(), 1, provision(&[0]));
    let mut value = serde_json::to_value(house.envelope(&order)).expect("it is JSON");
    value["sudo"] = true.into();
    let signed = house.seal_text((order.task, 1), value.to_string());
    assert_eq!(verify(&house, &signed), Err(FailureReason::Malformed));
}

#[tokio::test(start_paused = true)]
async fn what_stands_beside_the_envelope_must_agree_with_it() {
    let house = House::new();
    let signed = house.sign(&Order::new(id(), 1, provision(&[0])));
    let other = SignedTask { task_id: id(), ..signed.clone() };
    assert_eq!(verify(&house, &other), Err(FailureReason::Malformed));
    let later = SignedTask { dispatch: 2, ..signed };
    assert_eq!(verify(&house, &later), Err(FailureReason::Malformed));
}

#[tokio::test(start_paused = true)]
async fn the_order_of_the_checks_tells_a_stranger_nothing() {
    let house = House::new();
    let mut envelope = house.envelope(&Order::new(id(), 1, provision(&[0])));
    envelope.node_id = id();
    envelope.kind = "node.explode".to_owned();
    envelope.expires_at = house.clock.now() - SignedDuration::from_hours(1);
    let mut signed = house.seal(&envelope);
    assert_eq!(verify(&house, &signed), Err(FailureReason::OtherNode));
    signed.signature = String::new();
    assert_eq!(verify(&house, &signed), Err(FailureReason::BadSignature));
}
