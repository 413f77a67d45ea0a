//! A driver that takes its time to stop: newer work waits until it has.

use std::sync::{Arc, Mutex};

use agent::drivers::{Done, Driver, Failure, Job, Machine};
use agent::{Config, DriverConfig};
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::node::{Access, FailureReason, Guest, Phase, PhaseStatus, TaskKind, Work};

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::gateway::Log;
use crate::house::{House, Order, id, provision, release};

/// Its provisions never end, and stop only when they are let go.
#[derive(Default)]
struct Stubborn {
    let_go: Notify,
    diary: Mutex<Vec<&'static str>>,
}

impl Stubborn {
    fn note(&self, what: &'static str) {
        self.diary.lock().expect("nobody panicked with it").push(what);
    }

    fn diary(&self) -> Vec<&'static str> {
        self.diary.lock().expect("nobody panicked with it").clone()
    }
}

impl Driver for Stubborn {
    fn perform<'a>(
        &'a self,
        job: &'a Job,
        phase: Phase,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Done, Failure>> {
        Box::pin(async move {
            if job.work.kind() == TaskKind::SliceProvision {
                self.note("provision begins");
                stop.cancelled().await;
                self.let_go.notified().await;
                self.note("provision stops");
                return Err(Failure::Stopped);
            }
            if phase == Phase::AccessRevoked {
                self.note("clean-up begins");
            }
            Ok(Done::default())
        })
    }

    fn machine(&self) -> Machine {
        Machine { boot_id: Uuid::nil(), gpus: Vec::new(), images: Vec::new() }
    }

    fn boot_id(&self, _allocation: Uuid, _work: &Work) -> Result<Option<Uuid>, Failure> {
        Ok(Some(Uuid::nil()))
    }

    fn guests(&self) -> Result<Vec<Guest>, Failure> {
        Ok(Vec::new())
    }

    fn access(&self, _job: &Job) -> Access {
        Access { host: String::new(), port: 22, user: String::new() }
    }
}

#[tokio::test(start_paused = true)]
async fn newer_work_begins_only_once_the_older_has_stopped() {
    let house = House::new();
    let driver = Arc::new(Stubborn::default());
    let given = DriverConfig::Given(Arc::clone(&driver) as Arc<dyn Driver>);
    let agent = house.start_with(Config { driver: given, ..house.config() });
    let older = Order::new(id(), 1, provision(&[0]));
    let newer = Order::new(older.allocation, 3, release(&[0]));
    house.push(&older);
    let begun = |log: &Log| log.heard(older.task, Phase::ImagePrepared, PhaseStatus::Running);
    house.gateway.until("the older at work", begun).await;
    house.push(&newer);
    house.gateway.heartbeats(2).await;
    assert_eq!(driver.diary(), ["provision begins"]);

    // Meanwhile a forged copy of what waits is no reason to say that it failed.
    let mut forged = house.sign(&newer.dispatched(2));
    forged.signature = String::new();
    house.gateway.push(forged);
    let counted = |log: &Log| log.heartbeats.last().is_some_and(|last| last.refused == 1);
    let log = house.gateway.until("the refusal in a heartbeat", counted).await;
    assert!(log.results.is_empty());

    driver.let_go.notify_one();
    assert!(succeeded(&house.gateway.outcome(newer.task).await));
    assert_eq!(driver.diary(), ["provision begins", "provision stops", "clean-up begins"]);
    let older = house.gateway.outcome(older.task).await;
    assert_eq!(reason(&older), Some(FailureReason::Interrupted));
    agent.stopped().await;
}
