//! The agent as a process of its own: killed by SIGKILL in the middle, started again, stopped by SIGTERM.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use agent::faults::{Fault, FaultKind};
use tokio::task::JoinSet;
use wire::node::{Phase, TaskKind, TaskOutcome};

use crate::crashes::succeeded;
use crate::house::{House, IMAGE, IMAGE_SHA256, Order, id, provision, reboot, user};
use crate::tls::{Server, listen, token};

fn start(house: &House, join: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_berth-agent"))
        .arg("--directory")
        .arg(house.path())
        .args(["--gpus", "8", "--speed", "0", "--image", &format!("{IMAGE}={IMAGE_SHA256}")])
        .env("BERTH_JOIN", join)
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

async fn ended(mut child: Child) -> ExitStatus {
    let wait = tokio::task::spawn_blocking(move || child.wait());
    wait.await.expect("no panic").expect("it ended")
}

#[tokio::test]
async fn a_killed_process_goes_on_where_it_was_and_a_stopped_one_ends_well() {
    let mut house = House::new();
    house.clock = agent::Clock::system();
    let server = Server::new(house.identity.task_keys[0].clone());
    let mut set = JoinSet::new();
    let address = listen(&server, &mut set).await;
    let order = Order::new(id(), 1, provision(&[0]));
    server.hand_out(&house.sign(&order));
    let join = token(&server, address, house.identity.node_id);
    house.faults(&[Fault::new(FaultKind::Crash).at(Phase::VmStarted).times(1)]);
    let status = ended(start(&house, &join)).await;
    assert_eq!(status.signal(), Some(9), "{status}");
    assert_eq!(house.effects(order.allocation).len(), 3);

    let child = start(&house, &join);
    let mut results = server.results.subscribe();
    let results = results.wait_for(|results| !results.is_empty()).await.expect("it lives").clone();
    assert!(succeeded(&results[0].outcome));
    let phases = agent::tasks::phases(TaskKind::SliceProvision);
    assert_eq!(house.effects(order.allocation), phases);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is told");
    let status = ended(child).await;
    assert!(status.success(), "{status}");
    assert_eq!(server.results.borrow().len(), 1);
}

#[tokio::test]
async fn a_process_goes_through_the_reboot_of_its_machine() {
    let mut house = House::new();
    house.clock = agent::Clock::system();
    let server = Server::new(house.identity.task_keys[0].clone());
    let mut set = JoinSet::new();
    let address = listen(&server, &mut set).await;
    let come = Order::new(id(), 1, user());
    server.hand_out(&house.sign(&come));
    let child = start(&house, &token(&server, address, house.identity.node_id));
    let mut results = server.results.subscribe();
    let first = results.wait_for(|results| !results.is_empty()).await.expect("it lives").clone();
    assert!(succeeded(&first[0].outcome));
    server.hand_out(&house.sign(&Order::new(come.allocation, 2, reboot())));
    let both = results.wait_for(|results| results.len() > 1).await.expect("it lives").clone();
    assert!(matches!(both[1].outcome, TaskOutcome::Restarted { .. }), "{both:?}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is told");
    let status = ended(child).await;
    assert!(status.success(), "{status}");
}
