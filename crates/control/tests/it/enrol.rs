//! Agents: how they get an identity, keep it and lose it, and what is made of their heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control::Error;
use control::keys::Keys;
use control::node::enrol::{AgentIdentity, enrol, identify, renew, wake_revoked};
use control::node::roll_call::roll_call;
use control::node::{admin, heartbeat};
use domain::ids::NodeId;
use domain::machines::node::Status;
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, SharedString, Unit};
use rcgen::{CertificateParams, KeyPair};
use store::node_agents::{self, NewCertificate};
use store::{Ring, placement};
use testkit::{Database, House, new_id};
use tokio::sync::Barrier;
use uuid::Uuid;
use wire::http::admin::{Because, FreshNode, NewNode};
use wire::node::{Certificate, Enrolment, Gpu, Guest, Heartbeat, JoinToken, PROTOCOL, Renewal};
use wire::seal::Purpose;

const MINUTE: Duration = Duration::from_secs(60);

fn asked(name: &str, slots: usize) -> NewNode {
    NewNode {
        name: name.to_owned(),
        region: "eu-1".to_owned(),
        sku: "h100.slice".to_owned(),
        slots: vec![0; slots],
    }
}

async fn added(house: &House, name: &str) -> FreshNode {
    let made = admin::create(&house.ctx, &house.operator, &asked(name, 2), None).await;
    made.expect("a node").body
}

fn csr(names: &[&str]) -> String {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let params = CertificateParams::new(names).expect("names");
    params.serialize_request(&key).expect("a request").pem().expect("a text")
}

fn enrolment(fresh: &FreshNode) -> Enrolment {
    let token = JoinToken::parse(&fresh.join_token).expect("a token");
    Enrolment { protocol: PROTOCOL, node_id: token.node_id, secret: token.secret, csr: csr(&[]) }
}

fn der(certificate: &Certificate) -> Vec<u8> {
    use base64::Engine as _;
    let lines = certificate.certificate.lines().filter(|line| !line.starts_with("-----"));
    let text: String = lines.collect();
    base64::engine::general_purpose::STANDARD.decode(text).expect("it is PEM")
}

fn fingerprint(certificate: &Certificate) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &der(certificate));
    digest.as_ref().try_into().expect("32 bytes")
}

async fn enrolled(house: &House, name: &str) -> (AgentIdentity, Certificate) {
    let fresh = added(house, name).await;
    let certificate = enrol(&house.ctx, &enrolment(&fresh)).await.expect("enrolled");
    let identity =
        identify(&house.ctx, &fingerprint(&certificate), PROTOCOL).await.expect("it is known");
    assert_eq!(identity.node_id.uuid(), fresh.node.id);
    (identity, certificate)
}

async fn status(house: &House, node: NodeId) -> Status {
    admin::show(&house.ctx, &house.operator, node.uuid()).await.expect("it is there").status.0
}

fn is_refused<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Unauthenticated(_)))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_gives_one_certificate_to_two_who_come_together() {
    let house = House::open().await;
    let fresh = added(&house, "n").await;
    let (first, second) = (enrolment(&fresh), enrolment(&fresh));
    let barrier = Barrier::new(2);
    let come = async |enrolment: &Enrolment| {
        barrier.wait().await;
        enrol(&house.ctx, enrolment).await
    };
    let answers = tokio::join!(come(&first), come(&second));
    let answers = [answers.0, answers.1];
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    assert_eq!(answers.iter().filter(|answer| is_refused(answer)).count(), 1);
    assert_eq!(status(&house, NodeId(fresh.node.id)).await, Status::Ready);
    house.close().await;
}

#[tokio::test]
async fn whatever_is_wrong_with_a_token_it_is_refused_in_the_same_words() {
    let house = House::open().await;
    let (one, two) = (added(&house, "one").await, added(&house, "two").await);
    let good = enrolment(&one);
    let wrong = [
        Enrolment { node_id: two.node.id, ..good.clone() },
        Enrolment { node_id: new_id(), ..good.clone() },
        Enrolment { secret: "guessed".to_owned(), ..good.clone() },
    ];
    let mut words = Vec::new();
    for enrolment in &wrong {
        words.push(enrol(&house.ctx, enrolment).await.expect_err("refused").to_string());
    }
    enrol(&house.ctx, &good).await.expect("nothing of that has used it");
    words.push(enrol(&house.ctx, &good).await.expect_err("used").to_string());
    house.ctx.clock.advance(15 * MINUTE);
    words.push(enrol(&house.ctx, &enrolment(&two)).await.expect_err("expired").to_string());
    words.dedup();
    assert_eq!(words.len(), 1, "{words:?}");
    assert_eq!(status(&house, NodeId(two.node.id)).await, Status::Enrolling);
    house.close().await;
}

#[tokio::test]
async fn a_request_that_cant_be_certified_does_not_use_the_token_up() {
    let house = House::open().await;
    let good = enrolment(&added(&house, "n").await);
    // The signature of one request under the body of another, as if somebody else's key were asked for.
    let mut forged = good.csr.clone().into_bytes();
    let middle = forged.len() / 2;
    forged[middle] = if forged[middle] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).expect("it is text");
    for bad in ["", "-----BEGIN CERTIFICATE REQUEST-----", forged.as_str(), &"x".repeat(100_000)] {
        let answer = enrol(&house.ctx, &Enrolment { csr: bad.to_owned(), ..good.clone() }).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
    }
    let newer = Enrolment { protocol: PROTOCOL + 1, ..good.clone() };
    let Err(Error::Invalid(faults)) = enrol(&house.ctx, &newer).await else {
        panic!("another protocol is taken");
    };
    assert!(faults[0].detail.contains(&PROTOCOL.to_string()), "{faults:?}");
    enrol(&house.ctx, &good).await.expect("it is still good");
    house.close().await;
}

#[tokio::test]
async fn a_certificate_says_what_we_say_and_nothing_of_what_was_asked_for() {
    let house = House::open().await;
    let fresh = added(&house, "n").await;
    let greedy =
        Enrolment { csr: csr(&["gateway.berth.internal", "evil.example"]), ..enrolment(&fresh) };
    let certificate = enrol(&house.ctx, &greedy).await.expect("enrolled");
    let der = der(&certificate);
    assert!(contains(&der, format!("spiffe://berth/node/{}", fresh.node.id).as_bytes()));
    assert!(!contains(&der, b"evil.example") && !contains(&der, b"gateway.berth.internal"));
    // id-kp-clientAuth, and not id-kp-serverAuth.
    assert!(contains(&der, &[0x2b, 6, 1, 5, 5, 7, 3, 2]));
    assert!(!contains(&der, &[0x2b, 6, 1, 5, 5, 7, 3, 1]));
    assert_eq!(certificate.task_keys, [house.ctx.keys.verifying(Purpose::Task).text()]);
    house.close().await;
}

#[tokio::test]
async fn a_renewal_keeps_the_agent_and_ends_the_older_certificate_once_it_is_used() {
    let house = House::open().await;
    let (identity, old) = enrolled(&house, "n").await;
    let renewal = Renewal { csr: csr(&[]) };
    let new = renew(&house.ctx, &identity, &renewal).await.expect("renewed");
    house.ctx.clock.advance(60 * MINUTE);
    let known = async |certificate| identify(&house.ctx, &fingerprint(certificate), PROTOCOL).await;
    // The answer may have got lost: until the new one is used, the old one is all the agent has.
    assert_eq!(known(&old).await.expect("it is good").agent_id, identity.agent_id);
    assert_eq!(known(&new).await.expect("it is good").agent_id, identity.agent_id);
    house.ctx.clock.advance(9 * MINUTE);
    known(&old).await.expect("the grace is not over");
    house.ctx.clock.advance(2 * MINUTE);
    assert!(is_refused(&known(&old).await));
    known(&new).await.expect("it stays good");
    house.ctx.clock.advance(Duration::from_secs(7 * 86_400));
    assert!(is_refused(&known(&new).await), "it has ended");
    house.close().await;
}

#[tokio::test]
async fn another_enrolment_cuts_the_agent_before_it_off_and_leaves_the_status() {
    let house = House::open().await;
    let (identity, old) = enrolled(&house, "n").await;
    house.ctx.clock.advance(2 * MINUTE);
    assert_eq!(heartbeat::sweep_offline(&house.ctx).await.expect("swept"), 1);
    let again = admin::reissue(&house.ctx, &house.operator, identity.node_id.uuid(), None).await;
    let again = again.expect("a token").body;
    identify(&house.ctx, &fingerprint(&old), PROTOCOL)
        .await
        .expect("it stays until the other one comes");
    let new = enrol(&house.ctx, &enrolment(&again)).await.expect("enrolled");
    assert!(is_refused(&identify(&house.ctx, &fingerprint(&old), PROTOCOL).await));
    let other = identify(&house.ctx, &fingerprint(&new), PROTOCOL).await.expect("it is good");
    assert_ne!(other.agent_id, identity.agent_id);
    assert_eq!(status(&house, identity.node_id).await, Status::Offline);
    let late = renew(&house.ctx, &identity, &Renewal { csr: csr(&[]) }).await;
    assert!(is_refused(&late), "who is cut off gets nothing more");
    house.close().await;
}

#[tokio::test]
async fn a_newer_token_withdraws_the_older_one() {
    let house = House::open().await;
    let fresh = added(&house, "n").await;
    let again = admin::reissue(&house.ctx, &house.operator, fresh.node.id, None).await;
    assert!(is_refused(&enrol(&house.ctx, &enrolment(&fresh)).await));
    enrol(&house.ctx, &enrolment(&again.expect("a token").body)).await.expect("enrolled");
    house.close().await;
}

#[tokio::test]
async fn whoever_is_revoked_is_out_at_once_and_whoever_waits_for_work_is_woken() {
    let house = House::open().await;
    let (identity, certificate) = enrolled(&house, "n").await;
    let waiter = house.ctx.wake.on(Ring::Node(identity.node_id.uuid()));
    let because = Because { reason: "stolen".to_owned() };
    let id = identity.node_id.uuid();
    let answer = admin::revoke(&house.ctx, &house.operator, id, &because, None).await;
    assert_eq!(answer.expect("revoked").body.certificate_expires_at, None);
    assert!(is_refused(&identify(&house.ctx, &fingerprint(&certificate), PROTOCOL).await));
    waiter.notified().await;
    // In another process nobody rang: the look for revocations does.
    let elsewhere = house.ctx.wake.on(Ring::Node(id));
    wake_revoked(&house.ctx, None).await.expect("looked");
    elsewhere.notified().await;
    house.close().await;
}

pub(crate) fn alive(slots: i16) -> Heartbeat {
    Heartbeat {
        protocol: PROTOCOL,
        agent_version: "1.2.3".to_owned(),
        boot_id: Uuid::nil(),
        gpus: (0..slots).map(|index| Gpu { index, model: "H100".to_owned(), numa: 0 }).collect(),
        images: vec!["ubuntu".to_owned()],
        guests: Vec::new(),
        leases: Vec::new(),
        running: Vec::new(),
        refused: 0,
    }
}

#[tokio::test]
async fn a_silent_node_is_offline_until_it_is_heard_of() {
    let house = House::open().await;
    let (identity, _) = enrolled(&house, "n").await;
    let beat = async || heartbeat::beat(&house.ctx, &identity, &alive(2)).await.expect("heard");
    let answer = beat().await;
    assert_eq!((answer.status.as_str(), answer.renew, answer.next_seconds), ("ready", false, 10));
    house.ctx.clock.advance(Duration::from_secs(59));
    assert_eq!(heartbeat::sweep_offline(&house.ctx).await.expect("swept"), 0);
    house.ctx.clock.advance(Duration::from_secs(2));
    assert_eq!(heartbeat::sweep_offline(&house.ctx).await.expect("swept"), 1);
    assert_eq!(heartbeat::sweep_offline(&house.ctx).await.expect("swept"), 0);
    assert_eq!(status(&house, identity.node_id).await, Status::Offline);
    assert_eq!(beat().await.status, "ready");
    assert_eq!(status(&house, identity.node_id).await, Status::Ready);
    house.ctx.clock.advance(Duration::from_secs(4 * 86_400));
    assert!(beat().await.renew, "more than half of its life is over");
    house.close().await;
}

#[tokio::test]
async fn a_node_whose_agent_enrols_and_is_never_heard_of_again_falls_silent_too() {
    let house = House::open().await;
    let (identity, _) = enrolled(&house, "n").await;
    house.ctx.clock.advance(2 * MINUTE);
    assert_eq!(heartbeat::sweep_offline(&house.ctx).await.expect("swept"), 1);
    assert_eq!(status(&house, identity.node_id).await, Status::Offline);
    house.close().await;
}

#[tokio::test]
async fn what_an_agent_reports_is_shown_and_frees_nothing() {
    let mut house = House::open().await;
    let identity = house.node("h100.slice", &[0, 0]).await.identity;
    let made = house.create("h100.slice", 2).await.expect("it fits");
    heartbeat::beat(&house.ctx, &identity, &alive(1)).await.expect("heard");
    let shown = admin::show(&house.ctx, &house.operator, identity.node_id.uuid()).await;
    let shown = shown.expect("it is there");
    assert_eq!((shown.free_slots, shown.slots.len()), (0, 2));
    assert!(shown.slots.iter().all(|slot| slot.claim.is_some()));
    assert!(shown.reason.is_some_and(|reason| reason.contains("1 GPUs")));
    assert_eq!(house.claims(made.id).await, ["reserved", "reserved"]);
    house.close().await;
}

#[tokio::test]
async fn a_heartbeat_that_says_too_much_is_refused() {
    let house = House::open().await;
    let (identity, _) = enrolled(&house, "n").await;
    let guest = || Guest { allocation_id: Uuid::nil(), slots: vec![0; 65] };
    let wrong = [
        Heartbeat { protocol: PROTOCOL + 1, ..alive(1) },
        alive(65),
        Heartbeat { images: vec!["x".to_owned(); 257], ..alive(1) },
        Heartbeat { images: vec!["x".repeat(65)], ..alive(1) },
        Heartbeat { images: vec!["a\0b".to_owned()], ..alive(1) },
        Heartbeat { guests: vec![guest()], ..alive(1) },
        Heartbeat { running: vec![Uuid::nil(); 257], ..alive(1) },
        Heartbeat { agent_version: String::new(), ..alive(1) },
    ];
    for heartbeat in &wrong {
        let answer = heartbeat::beat(&house.ctx, &identity, heartbeat).await;
        assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
    }
    house.close().await;
}

/// Counts the heartbeats' commits, and nothing else.
#[derive(Default)]
struct Commits(Arc<AtomicU64>);

impl metrics::Recorder for Commits {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        let ours = key.name() == "berth_heartbeat_commits_total";
        if ours { Counter::from_arc(Arc::clone(&self.0)) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// An agent of a node of its own, and what it shows.
pub(crate) async fn certified(house: &House, number: usize) -> (AgentIdentity, [u8; 32]) {
    let (node_id, _) = house.database.ready_node(2).await;
    let (agent_id, not_after) = (new_id(), house.ctx.after_seconds(3_600));
    let mut fingerprint = [0; 32];
    fingerprint[..8].copy_from_slice(&number.to_be_bytes());
    let added = house.database.in_transaction(async |tx| {
        node_agents::insert(tx, agent_id, node_id).await?;
        let new = NewCertificate { agent_id, fingerprint, not_after };
        node_agents::insert_certificate(tx, &new).await
    });
    assert!(added.await.expect("an agent"));
    (AgentIdentity { agent_id, node_id, not_after, protocol: PROTOCOL }, fingerprint)
}

#[tokio::test]
async fn heartbeats_that_come_together_share_their_commits() {
    const NODES: usize = 200;
    let house = House::open().await;
    let mut agents = Vec::new();
    for number in 0..NODES {
        agents.push(certified(&house, number).await);
    }
    let commits = Commits::default();
    let _recorded = metrics::set_default_local_recorder(&commits);
    let (collector, flusher) = heartbeat::collector(&house.ctx);
    let (barrier, said) = (Barrier::new(NODES), alive(2));
    let come = async |(identity, certificate): &(AgentIdentity, [u8; 32])| {
        barrier.wait().await;
        collector.beat(identity, *certificate, &said).await.expect("heard").status
    };
    let all = futures::future::join_all(agents.iter().map(come));
    let statuses = tokio::select! {
        statuses = all => statuses,
        () = flusher.run() => panic!("there is somebody left who could hand one in"),
    };
    assert_eq!(statuses, vec!["ready"; NODES]);
    let commits = commits.0.load(Ordering::SeqCst);
    assert!((1..=3).contains(&commits), "{commits} commits for {NODES} heartbeats");
    let page = admin::list(&house.ctx, &house.operator, Some(200), None).await.expect("a page");
    assert!(page.items.iter().all(|node| node.agent_version.as_deref() == Some("1.2.3")));
    house.close().await;
}

/// Who places a group holds a node and waits for another, in an order of its own.
#[tokio::test]
async fn heartbeats_that_come_together_hold_no_node_while_they_wait_for_another() {
    let house = House::open().await;
    let mut agents = [certified(&house, 1).await, certified(&house, 2).await];
    agents.sort_unstable_by_key(|(identity, _)| identity.node_id);
    let [(one, first), (two, second)] = agents;
    let nodes = [one.node_id, two.node_id];
    let (collector, flusher) = heartbeat::collector(&house.ctx);
    let mut group = house.ctx.store.begin().await.expect("a transaction");
    placement::lock_candidates(&mut group, &[nodes[1]], &[]).await.expect("it holds the second");
    let placing = async {
        while house.waiting_for_locks().await == 0 {}
        let first = placement::lock_candidates(&mut group, &[nodes[0]], &[]).await;
        assert_eq!(first.expect("nobody who waits for it holds anything").len(), 1);
        group.rollback().await.expect("it is over");
    };
    let said = alive(2);
    let all = futures::future::join3(
        collector.beat(&one, first, &said),
        collector.beat(&two, second, &said),
        placing,
    );
    let (one, two, ()) = tokio::select! {
        all = all => all,
        () = flusher.run() => panic!("there is somebody left who could hand one in"),
    };
    let statuses = [one, two].map(|answer| answer.expect("heard").status);
    assert_eq!(statuses, ["ready", "ready"]);
    house.close().await;
}

#[tokio::test]
async fn who_was_revoked_or_has_ended_is_not_heard_and_the_others_of_the_round_are() {
    let house = House::open().await;
    let (good, revoked) = (certified(&house, 1).await, certified(&house, 2).await);
    let older = certified(&house, 3).await;
    let cut_off =
        house.database.in_transaction(async |tx| node_agents::revoke(tx, revoked.0.node_id).await);
    assert_eq!(cut_off.await.expect("it is written"), Some(revoked.0.agent_id));
    // A newer one was used long ago: the record says less than was known of the older one when it was first shown.
    let new = NewCertificate {
        agent_id: older.0.agent_id,
        fingerprint: [9; 32],
        not_after: older.0.not_after,
    };
    let renewed =
        house.database.in_transaction(async |tx| node_agents::insert_certificate(tx, &new).await);
    assert!(renewed.await.expect("it is written"));
    let (store, now) = (&house.database.store, house.ctx.clock.now());
    node_agents::end_older(store, &[9; 32], now).await.expect("it has ended");
    let (collector, flusher) = heartbeat::collector(&house.ctx);
    let (roll_call, caller) = roll_call(&house.ctx);
    let said = alive(2);
    let beat = async |(identity, shown): (AgentIdentity, [u8; 32])| {
        let answers = (collector.beat(&identity, shown, &said).await, roll_call.of(shown).await);
        let shown = admin::show(&house.ctx, &house.operator, identity.node_id.uuid()).await;
        let heard = shown.expect("it is there").agent_version.is_some();
        (answers.0.map(|answer| answer.status), answers.1, heard)
    };
    let all = async { tokio::join!(beat(good), beat(revoked), beat(older)) };
    let (good, revoked, older) = tokio::select! {
        all = all => all,
        _ = futures::future::join(flusher.run(), caller.run()) => panic!("somebody could still ask"),
    };
    assert!(matches!(&good, (Ok(status), Ok(()), true) if status == "ready"), "{good:?}");
    for refused in [revoked, older] {
        let (Err(beat), Err(called), false) = &refused else { panic!("{refused:?}") };
        assert!(is_unauthenticated(beat) && is_unauthenticated(called), "{beat:?} {called:?}");
    }
    house.close().await;
}

fn is_unauthenticated(error: &Error) -> bool {
    matches!(error, Error::Unauthenticated(_))
}

#[tokio::test]
async fn processes_that_start_together_have_the_same_keys() {
    let database = Database::new().await;
    let load = async || Keys::load_or_create(&database.store).await.expect("keys");
    let (one, two, three) = tokio::join!(load(), load(), load());
    let signature = one.sign(Purpose::Task, b"task");
    for keys in [&two, &three, &load().await] {
        assert_eq!(keys.authority_pem(), one.authority_pem());
        assert!(keys.verify(Purpose::Task, b"task", &signature));
        assert!(!keys.verify(Purpose::Receipt, b"task", &signature));
        assert_eq!(keys.verifying(Purpose::Cursor), one.verifying(Purpose::Cursor));
    }
    assert_ne!(one.verifying(Purpose::Task), one.verifying(Purpose::Receipt));
    assert!(!format!("{one:?}").contains("PRIVATE"));
    database.remove().await;
}

#[tokio::test]
async fn a_node_is_added_by_operators_alone_and_only_as_the_catalogue_knows_it() {
    let house = House::open().await;
    let create = async |new: &NewNode| admin::create(&house.ctx, &house.operator, new, None).await;
    let as_tenant = admin::create(&house.ctx, &house.tenant, &asked("n", 1), None).await;
    assert!(matches!(as_tenant.map(drop), Err(Error::Forbidden(_))));
    let wrong = [
        (NewNode { region: "nowhere".to_owned(), ..asked("n", 1) }, "/region"),
        (NewNode { sku: "nothing".to_owned(), ..asked("n", 1) }, "/sku"),
        (asked("n", 0), "/slots"),
        (asked("n", 65), "/slots"),
        (NewNode { slots: vec![-1], ..asked("n", 1) }, "/slots"),
        (asked("", 1), "/name"),
    ];
    for (new, pointer) in &wrong {
        let Err(Error::Invalid(faults)) = create(new).await.map(drop) else {
            panic!("{new:?} is taken");
        };
        assert_eq!(
            faults.iter().map(|fault| fault.pointer.as_str()).collect::<Vec<_>>(),
            [*pointer]
        );
    }
    let made = create(&asked("n", 4)).await.expect("a node");
    assert_eq!((made.status, made.body.node.status.0), (201, Status::Enrolling));
    assert_eq!(made.body.node.free_slots, 4);
    assert!(matches!(create(&asked("n", 4)).await.map(drop), Err(Error::Conflict(_))));
    let page = admin::list(&house.ctx, &house.operator, Some(1), None).await.expect("a page");
    assert_eq!((page.items.len(), page.next_cursor), (1, None));
    let none = admin::show(&house.ctx, &house.operator, new_id()).await;
    assert!(matches!(none, Err(Error::NotFound(_))));
    house.close().await;
}
