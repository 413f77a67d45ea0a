//! Signs of life, revocation and renewal.

use agent::{Error, Identity};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;
use wire::node::{Certificate, FailureReason, Phase, PhaseStatus};

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::gateway::{Log, Mood};
use crate::house::{House, Order, id, provision};

#[tokio::test(start_paused = true)]
async fn the_first_heartbeat_comes_at_once_and_says_what_the_machine_is() {
    let house = House::new();
    let begun = house.clock.now();
    let agent = house.start();
    let log = house.gateway.until("a heartbeat", |log| !log.heartbeats.is_empty()).await;
    assert!(house.clock.now().duration_since(begun) < SignedDuration::from_secs(1));
    let first = log.heartbeats[0].clone();
    assert_eq!((first.gpus.len(), first.gpus[7].numa), (8, 1));
    assert_eq!(first.images, [crate::house::IMAGE]);
    assert_eq!(first.agent_version, env!("CARGO_PKG_VERSION"));
    let log = house.gateway.until("ten more", |log| log.heartbeats.len() > 10).await;
    let took = house.clock.now().duration_since(begun).as_secs_f64();
    assert!((90.0..=110.0).contains(&took), "{took}");
    assert!(log.heartbeats.iter().all(|heartbeat| heartbeat.boot_id == first.boot_id));
    agent.stopped().await;

    // The machine has not booted because its agent was started again.
    let house_again = house.start();
    let log = house.gateway.until("another", |log| log.heartbeats.len() > 11).await;
    assert_eq!(log.heartbeats.last().map(|last| last.boot_id), Some(first.boot_id));
    house_again.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_revoked_node_asks_slowly_and_leaves_its_guests_alone() {
    let house = House::new();
    let agent = house.start();
    let tenant = Order::new(id(), 1, provision(&[0]));
    house.push(&tenant);
    assert!(succeeded(&house.gateway.outcome(tenant.task).await));
    house.gateway.set_mood(Mood::Revoking);
    // The poll that is open brings one more task, and with it the first refusal.
    let begun = house.clock.now();
    let next = Order::new(id(), 1, provision(&[1]));
    house.push(&next);
    house.gateway.until("twenty refusals", |log| log.refusals >= 20).await;
    let took = house.clock.now().duration_since(begun);
    // Three ask by themselves, each of them twice a minute at the most.
    assert!(took > SignedDuration::from_mins(2), "{took}");
    assert!(house.guests() >= 1);
    house.gateway.set_mood(Mood::Well);
    assert!(succeeded(&house.gateway.outcome(next.task).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_renewed_before_half_its_life_with_a_new_key_while_work_goes_on() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let now = house.clock.now();
    house.identity.not_after = now + SignedDuration::from_secs(200);
    let (key, _) = wire::seal::SigningKey::generate().expect("a key");
    let certificate = Certificate {
        certificate: "new".to_owned(),
        not_after: now + SignedDuration::from_hours(168),
        authority: "authority".to_owned(),
        task_keys: vec![house.identity.task_keys[0].clone(), key.verifying().text()],
    };
    house.gateway.offer_certificate(certificate);
    let agent = house.start();
    let order = Order::new(id(), 1, provision(&[0]));
    house.push(&order);
    let log = house.gateway.until("a renewal", |log| !log.installed.is_empty()).await;
    let after = house.clock.now().duration_since(now).as_secs();
    assert!((60..=100).contains(&after), "{after}");
    assert!(log.outcome(order.task).is_none(), "the work goes on");
    let kept = Identity::find(house.path()).expect("it can be read").expect("it was kept");
    assert_eq!(kept, log.installed[0]);
    assert!(kept.key.contains("PRIVATE KEY") && kept.task_keys.len() == 2);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(house.path().join("identity.json")).expect("a file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert!(succeeded(&house.gateway.outcome(order.task).await));

    house.gateway.ask_renewal();
    let log = house.gateway.until("another", |log| log.installed.len() == 2).await;
    assert_ne!(log.installed[0].key, log.installed[1].key);
    agent.stopped().await;
    assert_eq!(house.gateway.log().renewals.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again() {
    let mut house = House::new();
    let now = house.clock.now();
    house.identity.not_after = now + SignedDuration::from_secs(200);
    let agent = house.start();
    let log = house.gateway.until("five attempts", |log| log.renewals.len() >= 5).await;
    assert!(log.installed.is_empty());
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_certificate_and_token_says_what_to_do() {
    let house = House::new();
    let ended = agent::run(house.config(), CancellationToken::new()).await;
    let Err(error @ Error::NotEnrolled { .. }) = ended else { panic!("{ended:?}") };
    assert!(error.to_string().contains("--join"), "{error}");
    let config = agent::Config { join: Some("nonsense".to_owned()), ..house.config() };
    let ended = agent::run(config, CancellationToken::new()).await;
    assert!(matches!(ended, Err(Error::Token)), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_with_its_reason_and_counted() {
    let house = House::new();
    let agent = house.start();
    let order = Order::new(id(), 1, provision(&[0]));
    let mut envelope = house.envelope(&order);
    envelope.kind = "node.explode".to_owned();
    house.gateway.push(house.seal(&envelope));
    let outcome = house.gateway.outcome(order.task).await;
    assert_eq!(reason(&outcome), Some(FailureReason::UnknownKind));
    let counted = |log: &Log| log.heartbeats.last().is_some_and(|last| last.refused == 1);
    house.gateway.until("the count", counted).await;
    assert!(!house.gateway.log().heard(order.task, Phase::ImagePrepared, PhaseStatus::Running));
    assert_eq!(house.guests(), 0);
    agent.stopped().await;
}
