//! The bus whose words NATS carries.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use conformance::bed::{Bed, Journal, PATIENCE, handle, subscription};
use engines::nats::Nats;
use jiff::SignedDuration;
use spine::bus::{Broker as _, Consumer, Subscription};
use spine::{Wake, relay};
use store::deliveries;
use testkit::NatsServer;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::bed::{moment, options};

mod suite {
    conformance::bus_conformance!(nats by crate::bed::nats);
}
mod failures {
    conformance::bus_failures!(nats by crate::bed::nats);
}

/// So long that nobody looks for what they were not told of.
const NEVER: SignedDuration = SignedDuration::from_hours(1_000);
/// A sweep as it is in the product, in less time.
const OFTEN: SignedDuration = SignedDuration::from_millis(100);

/// A process: a relay and a consumer, and its own connection.
struct Process {
    broker: Nats,
    subscriptions: Vec<Subscription>,
    _parts: JoinSet<()>,
}

impl Process {
    async fn start(bed: &Bed, url: String, journal: &Journal, sweep: SignedDuration) -> Process {
        let broker = Nats::connect(options(url, "tests")).await.expect("it connects");
        let journal = journal.clone();
        let listener = subscription(handle(move |message| {
            journal.write(message.fact.id, message.fact.seq);
            async { Ok(()) }
        }));
        let mut parts = JoinSet::new();
        parts.spawn(broker.run(CancellationToken::new()));
        let consumer = Consumer::new(bed.store.clone(), bed.clock.clone(), listener.clone())
            .told_by(Arc::new(broker.clone()), sweep);
        parts.spawn(async move { consumer.run(&Wake::new(), &CancellationToken::new()).await });
        Process { broker, subscriptions: vec![listener], _parts: parts }
    }

    async fn relay(&self, bed: &Bed) {
        let moved = relay::step_telling(&bed.store, &self.subscriptions, &self.broker);
        moved.await.expect("the relay steps");
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            moment().await;
        }
    };
    timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Waits until the consumer is known to the server: what is said before is found by its sweep alone.
async fn listening(server: &NatsServer) -> jetstream::Context {
    let client = async_nats::connect(server.url()).await.expect("it connects");
    let context = jetstream::new(client);
    until("the consumer is declared", async || match context.get_stream("tests").await {
        Ok(stream) => stream.get_consumer::<jetstream::consumer::pull::Config>("c").await.is_ok(),
        Err(_) => false,
    })
    .await;
    context
}

async fn live(bed: &Bed) -> i64 {
    deliveries::count_live(&bed.store, "c").await.expect("it counts")
}

#[tokio::test]
async fn nats_alone_brings_messages_to_another_process_in_order() {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let server = NatsServer::start().await;
    let told = Nats::connect(options(server.url(), "tests")).await.expect("it connects");
    let mut telling = JoinSet::new();
    telling.spawn(told.run(CancellationToken::new()));
    let worker = Process::start(&bed, server.url(), &journal, NEVER).await;
    listening(&server).await;
    // It has looked once when it began; from now on it knows only what it is told.
    let id = bed.history(3).await.uuid();
    relay::step_telling(&bed.store, &worker.subscriptions, &told).await.expect("it relays");
    until("all are handled", async || live(&bed).await == 0).await;
    assert_eq!(journal.of(id), [1, 3, 4, 5, 6, 7, 8, 9]);
    bed.end().await;
}

#[tokio::test]
async fn r15_a_message_that_was_published_twice_is_in_the_stream_once() {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let server = NatsServer::start().await;
    let process = Process::start(&bed, server.url(), &journal, NEVER).await;
    let context = listening(&server).await;
    bed.history(0).await;
    let hearers =
        [store::outbox::Hearer { consumer: "c", subjects: process.subscriptions[0].subjects }];
    let moved = store::outbox::relay(&bed.store, &hearers).await.expect("it relays").moved;
    process.broker.announce(moved.clone());
    process.broker.announce(moved);
    until("all are handled", async || live(&bed).await == 0).await;
    let mut stream = context.get_stream("tests").await.expect("it is there");
    assert_eq!(stream.info().await.expect("it is told").state.messages, 2);
    assert_eq!(journal.total(), 2);
    bed.end().await;
}

#[tokio::test]
async fn r15_with_the_server_down_or_its_store_deleted_everything_is_handled_and_afterwards_told_again()
 {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let mut server = NatsServer::start().await;
    let process = Process::start(&bed, server.url(), &journal, OFTEN).await;
    listening(&server).await;
    let mut expected = 0;
    for forget in [false, true] {
        server.kill();
        bed.history(1).await;
        expected += 4;
        process.relay(&bed).await;
        until("all are handled although it is down", async || live(&bed).await == 0).await;
        server = server.restart(forget).await;
        bed.history(1).await;
        expected += 4;
        process.relay(&bed).await;
        until("all are handled when it is back", async || live(&bed).await == 0).await;
        assert_eq!(journal.total(), expected, "each of them once");
    }
    // And by being told, not by looking.
    listening(&server).await;
    bed.end().await;
}

#[tokio::test]
async fn r15_a_stream_that_is_deleted_is_declared_again_and_carries_on() {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let server = NatsServer::start().await;
    let process = Process::start(&bed, server.url(), &journal, OFTEN).await;
    let context = listening(&server).await;
    context.delete_stream("tests").await.expect("it is deleted");
    bed.history(1).await;
    process.relay(&bed).await;
    until("all are handled", async || live(&bed).await == 0).await;
    listening(&server).await;
    assert_eq!(journal.total(), 4);
    bed.end().await;
}

#[tokio::test]
async fn what_others_put_on_the_stream_is_left_out() {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let server = NatsServer::start().await;
    let process = Process::start(&bed, server.url(), &journal, NEVER).await;
    let context = listening(&server).await;
    for (header, body) in [
        (None, "junk"),
        (Some("no identity"), "{}"),
        (Some("00000000-0000-0000-0000-000000000001"), ""),
    ] {
        let mut message = jetstream::message::PublishMessage::build().payload(body.into());
        if let Some(id) = header {
            message = message.message_id(id);
        }
        let sent = context.send_publish("tests.provisioning.requested", message).await;
        sent.expect("it is sent").await.expect("it is taken");
    }
    bed.history(0).await;
    process.relay(&bed).await;
    until("all are handled", async || live(&bed).await == 0).await;
    assert_eq!(journal.total(), 2);
    let consumer: jetstream::consumer::PullConsumer =
        context.get_consumer_from_stream("c", "tests").await.expect("it is there");
    until("nothing is told again", async || {
        let info = consumer.clone().info().await.expect("it is told").clone();
        info.num_ack_pending == 0 && info.num_pending == 0
    })
    .await;
    bed.end().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for_in_the_background() {
    let (bed, journal) = (Bed::new().await, Journal::default());
    let mut server = NatsServer::start().await;
    server.kill();
    let process =
        timeout(Duration::from_secs(5), Process::start(&bed, server.url(), &journal, OFTEN))
            .await
            .expect("nobody waits for it");
    bed.history(0).await;
    process.relay(&bed).await;
    until("all are handled", async || live(&bed).await == 0).await;
    let server = server.restart(false).await;
    listening(&server).await;
    assert_eq!(journal.total(), 2);
    bed.end().await;
}
