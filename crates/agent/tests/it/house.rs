//! One node and everything around it: a directory, a key that signs its tasks, a gateway in memory, a virtual clock.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent::{Clock, Config, CrashMode, Error, Identity, SimulatedConfig};
use jiff::{SignedDuration, Timestamp};
use lifecycle::Code as _;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{
    Cleanup, Envelope, PROTOCOL, Phase, Provision, Restart, SignedTask, SlotRef, Work,
};
use wire::seal::{Purpose, SigningKey};

use crate::gateway::FakeGateway;

pub(crate) const IMAGE: &str = "ubuntu-24.04-cuda";
pub(crate) const IMAGE_SHA256: &str =
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// A node.
pub(crate) struct House {
    directory: TempDir,
    key: SigningKey,
    pub(crate) identity: Identity,
    pub(crate) gateway: Arc<FakeGateway>,
    pub(crate) clock: Clock,
    pub(crate) machine: SimulatedConfig,
    pub(crate) journal_bytes: u64,
}

/// A task to be signed.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) task: Uuid,
    pub(crate) allocation: Uuid,
    pub(crate) operation: Uuid,
    pub(crate) fence: i64,
    pub(crate) dispatch: i64,
    pub(crate) work: Work,
}

impl Order {
    pub(crate) fn new(allocation: Uuid, fence: i64, work: Work) -> Order {
        let (task, operation) = (id(), id());
        Order { task, allocation, operation, fence, dispatch: 1, work }
    }

    pub(crate) fn dispatched(&self, dispatch: i64) -> Order {
        Order { dispatch, ..self.clone() }
    }
}

/// A new id: the next of a count.
pub(crate) fn id() -> Uuid {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    Uuid::from_u64_pair(0, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A clock that goes with the virtual time of the runtime.
#[expect(clippy::disallowed_methods, reason = "the virtual time of a test's runtime is the clock")]
pub(crate) fn virtual_clock() -> Clock {
    let start = tokio::time::Instant::now();
    let base: Timestamp = "2030-01-01T00:00:00Z".parse().expect("it is a time");
    Clock::new(move || base + SignedDuration::try_from(start.elapsed()).expect("it is short"))
}

pub(crate) fn slots(indexes: &[i16]) -> Vec<SlotRef> {
    indexes
        .iter()
        .map(|index| SlotRef { id: Uuid::from_u128(*index as u128), index: *index, numa: 0 })
        .collect()
}

pub(crate) fn provision(indexes: &[i16]) -> Work {
    Work::SliceProvision(parameters(indexes))
}

pub(crate) fn parameters(indexes: &[i16]) -> Provision {
    Provision {
        slots: slots(indexes),
        image: IMAGE.to_owned(),
        image_sha256: IMAGE_SHA256.to_owned(),
        ssh_keys: vec!["ssh-ed25519 AAAA somebody".to_owned()],
    }
}

pub(crate) fn release(indexes: &[i16]) -> Work {
    Work::SliceRelease(Cleanup { slots: slots(indexes) })
}

pub(crate) fn restart(indexes: &[i16]) -> Work {
    Work::SliceRestart(Restart { slots: slots(indexes) })
}

pub(crate) fn reboot() -> Work {
    Work::NodeReboot(Restart { slots: Vec::new() })
}

pub(crate) fn user() -> Work {
    Work::UserProvision(parameters(&[]))
}

pub(crate) fn farewell() -> Work {
    Work::UserDeprovision(Cleanup { slots: Vec::new() })
}

impl House {
    pub(crate) fn new() -> House {
        let (key, _) = SigningKey::generate().expect("a key");
        let clock = virtual_clock();
        let now = clock.now();
        let identity = Identity {
            node_id: id(),
            gateway: "https://localhost:1".to_owned(),
            key: String::new(),
            certificate: String::new(),
            authority: String::new(),
            task_keys: vec![key.verifying().text()],
            issued_at: now,
            not_after: now + SignedDuration::from_hours(24 * 365),
            token_sha256: String::new(),
        };
        let machine = SimulatedConfig {
            images: vec![(IMAGE.to_owned(), IMAGE_SHA256.to_owned())],
            speed: 0.0,
            ..SimulatedConfig::with_gpus(8, 2, "H100")
        };
        House {
            directory: tempfile::tempdir().expect("a directory"),
            key,
            identity,
            gateway: FakeGateway::new(clock.clone()),
            clock,
            machine,
            journal_bytes: agent::journal::COMPACT_BYTES,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            clock: self.clock.clone(),
            crash: CrashMode::Return,
            journal_bytes: self.journal_bytes,
            ..Config::simulated(self.path(), self.machine.clone())
        }
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(self.config())
    }

    pub(crate) fn start_with(&self, config: Config) -> Running {
        let stop = CancellationToken::new();
        let mut set = JoinSet::new();
        let gateway = Arc::clone(&self.gateway);
        set.spawn(agent::run_with(config, self.identity.clone(), gateway, stop.clone()));
        Running { set, stop }
    }

    /// Starts an agent that is started again whenever it crashes, or its machine reboots.
    pub(crate) fn start_supervised(&self) -> Running {
        let stop = CancellationToken::new();
        let mut set = JoinSet::new();
        let (config, identity) = (self.config(), self.identity.clone());
        let (gateway, stopped) = (Arc::clone(&self.gateway), stop.clone());
        set.spawn(async move {
            loop {
                let gateway = Arc::clone(&gateway) as Arc<dyn agent::Gateway>;
                let run =
                    agent::run_with(config.clone(), identity.clone(), gateway, stopped.clone());
                match run.await {
                    Err(Error::Crashed | Error::Rebooting) => {}
                    ended => return ended,
                }
            }
        });
        Running { set, stop }
    }

    pub(crate) fn envelope(&self, order: &Order) -> Envelope {
        let now = self.clock.now();
        Envelope {
            v: PROTOCOL,
            key_id: self.key.verifying().id(),
            task_id: order.task,
            node_id: self.identity.node_id,
            allocation_id: order.allocation,
            operation_id: order.operation,
            fence: order.fence,
            dispatch: order.dispatch,
            kind: order.work.kind().code().to_owned(),
            params: order.work.params().expect("they are JSON"),
            issued_at: now,
            not_before: now,
            expires_at: now + SignedDuration::from_mins(15),
        }
    }

    pub(crate) fn sign(&self, order: &Order) -> SignedTask {
        self.seal(&self.envelope(order))
    }

    pub(crate) fn seal(&self, envelope: &Envelope) -> SignedTask {
        let text = serde_json::to_string(envelope).expect("it is JSON");
        self.seal_text((envelope.task_id, envelope.dispatch), text)
    }

    pub(crate) fn seal_text(
        &self,
        (task_id, dispatch): (Uuid, i64),
        envelope: String,
    ) -> SignedTask {
        let signature = self.key.sign(Purpose::Task, envelope.as_bytes());
        SignedTask { task_id, dispatch, envelope, signature, traceparent: None }
    }

    pub(crate) fn push(&self, order: &Order) {
        self.gateway.push(self.sign(order));
    }

    /// What really happened to an allocation, in order.
    pub(crate) fn effects(&self, allocation: Uuid) -> Vec<Phase> {
        let all = agent::drivers::simulated::effects(self.path()).expect("a diary");
        all.into_iter().filter(|(of, _)| *of == allocation).map(|(_, phase)| phase).collect()
    }

    /// The file of an allocation's guest.
    pub(crate) fn guest(&self, allocation: Uuid) -> serde_json::Value {
        let path = self.path().join(format!("world/guests/{allocation}.json"));
        serde_json::from_slice(&std::fs::read(path).expect("there is one")).expect("it is JSON")
    }

    pub(crate) fn guests(&self) -> usize {
        std::fs::read_dir(self.path().join("world/guests")).expect("a world").count()
    }

    pub(crate) fn residue(&self) -> usize {
        std::fs::read_dir(self.path().join("world/residue")).expect("a world").count()
    }

    pub(crate) fn faults(&self, faults: &[agent::faults::Fault]) {
        agent::faults::write(self.path(), faults).expect("they can be written");
    }
}

/// An agent that runs.
pub(crate) struct Running {
    set: JoinSet<Result<(), Error>>,
    stop: CancellationToken,
}

impl Running {
    /// Waits until it ends by itself.
    pub(crate) async fn ended(mut self) -> Result<(), Error> {
        self.set.join_next().await.expect("it runs").expect("it does not panic")
    }

    /// Waits until a fault has killed it.
    pub(crate) async fn crashed(self) {
        let ended = self.ended().await;
        assert!(matches!(ended, Err(Error::Crashed)), "{ended:?}");
    }

    /// Waits until it went down with its machine.
    pub(crate) async fn went_down(self) {
        let ended = self.ended().await;
        assert!(matches!(ended, Err(Error::Rebooting)), "{ended:?}");
    }

    /// Waits until it has fallen, in whichever way.
    pub(crate) async fn fell(self) {
        let ended = self.ended().await;
        assert!(matches!(ended, Err(Error::Crashed | Error::Rebooting)), "{ended:?}");
    }

    /// Stops it as an operator does.
    pub(crate) async fn stopped(self) {
        self.stop.cancel();
        self.ended().await.expect("a clean stop is no error");
    }

    /// Kills it where it stands.
    pub(crate) async fn killed(mut self) {
        self.set.shutdown().await;
    }
}
