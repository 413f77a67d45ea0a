//! Word of messages by NATS JetStream. A stream holds what has left the outbox, by its subject; every consumer is a durable
//! pull consumer that all processes share. The stream may be deleted at any time: it is declared again, and what was in it is
//! found by the consumers' sweep.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType, Stream};
use async_nats::jetstream::{self, AckKind, Context};
use async_nats::{Client, ConnectOptions, Event};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _, stream};
use lifecycle::Code as _;
use spine::bus::{Broker, Settled, Word};
use store::outbox::Moved;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::Coded;
use wire::bus::{Message, Subject};

/// How many facts wait to be told; more are not told, but found.
const WAITING_MAX: usize = 10_000;
/// How many are told in one breath.
const BATCH: usize = 256;
/// How long the server may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// When a message is told again if nothing is heard of it: later than its delivery is anybody's again.
const ACK_WAIT: Duration = Duration::from_secs(35);
/// For how long facts are kept in the stream: for people who want to look, and for consumers that are slow.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// For how long the server remembers what it was told: a relay that died may tell once more.
const REMEMBERED: Duration = Duration::from_secs(120);
/// How many messages one process takes at a time.
const PULLED: usize = 32;
/// How often the server shows that it is there while there is nothing to say.
const HEARTBEAT: Duration = Duration::from_secs(5);
const EXPIRES: Duration = Duration::from_secs(30);

/// How to reach NATS, and what Berth is called there.
#[derive(Clone, Debug)]
pub struct Options {
    /// The servers, as URLs with commas between them.
    pub servers: String,
    /// A file with credentials, if they are asked for.
    pub credentials: Option<std::path::PathBuf>,
    /// What the stream is called, and what its subjects begin with: installations that share a server differ in it.
    pub name: String,
    /// On how many servers of a cluster the stream is kept.
    pub replicas: usize,
    /// How much is kept at most. A server sets this much aside, and refuses a stream for which it has not enough left.
    pub bytes_max: i64,
}

/// A connection to NATS. It is built again whenever it breaks. Clones share it.
#[derive(Clone)]
pub struct Nats {
    client: Client,
    context: Context,
    options: Arc<Options>,
    waiting: Sender<Moved>,
    /// Taken by whoever tells.
    told: Arc<Mutex<Option<Receiver<Moved>>>>,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

fn fault(source: impl Into<Fault>) -> spine::Error {
    spine::Error::Engine { engine: "NATS", source: source.into() }
}

impl Nats {
    /// Connects. A server that is not there yet is waited for in the background: nothing depends on it.
    ///
    /// # Errors
    /// When the addresses or the credentials can't be read.
    pub async fn connect(options: Options) -> Result<Nats, spine::Error> {
        let mut connect = ConnectOptions::new()
            .name("berth")
            .retry_on_initial_connect()
            .connection_timeout(ANSWER_MAX)
            .request_timeout(Some(ANSWER_MAX))
            .event_callback(|event| async move { note(&event) });
        if let Some(file) = &options.credentials {
            connect = connect.credentials_file(file).await.map_err(fault)?;
        }
        let client = connect.connect(&options.servers).await.map_err(fault)?;
        let context =
            ContextBuilder::new().timeout(ANSWER_MAX).ack_timeout(ANSWER_MAX).build(client.clone());
        let (waiting, told) = channel(WAITING_MAX);
        let (options, told) = (Arc::new(options), Arc::new(Mutex::new(Some(told))));
        Ok(Nats { client, context, options, waiting, told })
    }

    /// Whether it can be used now: a server answers, lets us in, and has JetStream. For whoever checks a configuration.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn reach(options: &Options) -> Result<(), spine::Error> {
        let mut connect = ConnectOptions::new().name("berth").connection_timeout(ANSWER_MAX);
        if let Some(file) = &options.credentials {
            connect = connect.credentials_file(file).await.map_err(fault)?;
        }
        let client = connect.connect(&options.servers).await.map_err(fault)?;
        let context = ContextBuilder::new().timeout(ANSWER_MAX).build(client);
        context.query_account().await.map_err(fault)?;
        Ok(())
    }

    fn subject(&self, subject: Subject) -> String {
        format!("{}.{}", self.options.name, subject.code())
    }

    /// The stream as it must be, made if it is not there.
    async fn declare(&self) -> Result<Stream, spine::Error> {
        let config = Config {
            name: self.options.name.clone(),
            description: Some("What has happened in Berth; word of what is in its database".into()),
            subjects: vec![format!("{}.>", self.options.name)],
            storage: StorageType::File,
            discard: DiscardPolicy::Old,
            max_age: KEPT,
            max_bytes: self.options.bytes_max,
            duplicate_window: REMEMBERED,
            num_replicas: self.options.replicas,
            ..Config::default()
        };
        self.context.create_or_update_stream(config).await.map_err(fault)?;
        self.context.get_stream(&self.options.name).await.map_err(fault)
    }

    async fn tell(&self, moved: &[Moved]) {
        if self.client.connection_state() != State::Connected {
            return untold(moved.len(), "the server is not there");
        }
        let mut rest = self.publish(moved).await;
        if !rest.is_empty() {
            // The stream may have been deleted.
            if let Err(error) = self.declare().await {
                return untold(rest.len(), &error.to_string());
            }
            rest = self.publish(&rest).await;
        }
        if !rest.is_empty() {
            untold(rest.len(), "the server did not take them");
        }
    }

    /// Tells of these; answers those that the server has not taken.
    async fn publish(&self, moved: &[Moved]) -> Vec<Moved> {
        let mut answers = Vec::with_capacity(moved.len());
        for each in moved {
            let message = Message {
                id: each.event_id,
                subject: Coded(each.subject),
                fact: each.fact.clone(),
                traceparent: each.traceparent.clone(),
            };
            let Ok(body) = serde_json::to_vec(&message) else {
                continue;
            };
            let message =
                PublishMessage::build().message_id(each.event_id.to_string()).payload(body.into());
            answers.push(self.context.send_publish(self.subject(each.subject), message).await);
        }
        let mut rest = Vec::new();
        for (each, answer) in moved.iter().zip(answers) {
            let taken = match answer {
                // One that it was told of before is as good as taken.
                Ok(answer) => answer.await.is_ok(),
                Err(_) => false,
            };
            if !taken {
                rest.push(each.clone());
            }
        }
        rest
    }
}

fn untold(count: usize, why: &str) {
    metrics::counter!("berth_broker_untold_total")
        .increment(u64::try_from(count).unwrap_or(u64::MAX));
    tracing::warn!(count, why, "NATS was not told of messages: consumers will find them");
}

fn note(event: &Event) {
    let up = match event {
        Event::Connected => 1.0,
        Event::Disconnected | Event::Closed => 0.0,
        Event::LameDuckMode
        | Event::Draining
        | Event::SlowConsumer(_)
        | Event::ServerError(_)
        | Event::ClientError(_) => return tracing::debug!(%event, "NATS"),
    };
    metrics::gauge!("berth_broker_connected").set(up);
    tracing::info!(%event, "NATS");
}

impl Broker for Nats {
    fn announce(&self, moved: Vec<Moved>) {
        for each in moved {
            if self.waiting.try_send(each).is_err() {
                return untold(1, "too many wait to be told");
            }
        }
    }

    fn listen(
        &self,
        consumer: &'static str,
        subjects: &'static [Subject],
    ) -> BoxFuture<'_, Result<BoxStream<'static, Word>, spine::Error>> {
        async move {
            let config = pull::Config {
                durable_name: Some(consumer.to_owned()),
                // What was said before is in Postgres.
                deliver_policy: DeliverPolicy::New,
                ack_policy: AckPolicy::Explicit,
                ack_wait: ACK_WAIT,
                // How often a message is tried is decided in Postgres.
                max_deliver: -1,
                max_ack_pending: 1_024,
                filter_subjects: subjects.iter().map(|each| self.subject(*each)).collect(),
                ..pull::Config::default()
            };
            let consumer = self.declare().await?.create_consumer(config).await.map_err(fault)?;
            let messages = consumer
                .stream()
                .max_messages_per_batch(PULLED)
                .heartbeat(HEARTBEAT)
                .expires(EXPIRES)
                .messages()
                .await
                .map_err(fault)?;
            Ok(words(messages).boxed())
        }
        .boxed()
    }

    fn run(&self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let nats = self.clone();
        let told = nats.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            // Only one of several tells: there is one line of those who wait.
            let Some(mut told) = told else {
                return stop.cancelled().await;
            };
            let mut batch = Vec::with_capacity(BATCH);
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    _ = told.recv_many(&mut batch, BATCH) => {}
                }
                nats.tell(&batch).await;
                batch.clear();
            }
        }
        .boxed()
    }
}

/// The messages as words, until there is a fault: then the line is built again.
fn words(messages: pull::Stream) -> impl stream::Stream<Item = Word> {
    messages
        .map(|message| match message {
            Ok(message) => Some(message),
            Err(error) => {
                tracing::warn!(%error, "NATS no longer brings messages");
                None
            }
        })
        .take_while(|message| std::future::ready(message.is_some()))
        .filter_map(|message| async { word_of(message?).await })
}

async fn word_of(message: jetstream::Message) -> Option<Word> {
    let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
    let event_id = id.and_then(|id| Uuid::parse_str(id.as_str()).ok());
    let (message, acker) = message.split();
    let Some(event_id) = event_id else {
        // Not one of ours, whoever sent it.
        tracing::warn!(subject = %message.subject, "a message on the stream has no identity: it is left out");
        let _ = acker.ack_with(AckKind::Term).await;
        return None;
    };
    let settle = Box::new(move |settled| {
        async move {
            let kind = match settled {
                Settled::Over => AckKind::Ack,
                Settled::Again(pause) => AckKind::Nak(Some(pause)),
            };
            if let Err(error) = acker.ack_with(kind).await {
                // It is told again, and found to be settled.
                tracing::debug!(error, "NATS was not told what became of a message");
            }
        }
        .boxed()
    });
    Some(Word { event_id, settle })
}
