//! Random deaths: at random phases, before or after their effect, and at random calls to the gateway.

use agent::faults::{Fault, FaultKind};
use proptest::prelude::*;
use wire::node::{FailureReason, Phase, TaskKind};

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::house::{House, Order, farewell, id, provision, reboot, release, restart, user};

/// What an allocation goes through.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Slice,
    Whole,
}

impl Shape {
    const fn kinds(self) -> [TaskKind; 3] {
        match self {
            Shape::Slice => {
                [TaskKind::SliceProvision, TaskKind::SliceRestart, TaskKind::SliceRelease]
            }
            Shape::Whole => {
                [TaskKind::UserProvision, TaskKind::NodeReboot, TaskKind::UserDeprovision]
            }
        }
    }

    /// Every phase, with the kind it belongs to.
    fn phases(self) -> Vec<(TaskKind, Phase)> {
        let of = |kind| agent::tasks::phases(kind).iter().map(move |phase| (kind, *phase));
        self.kinds().into_iter().flat_map(of).collect()
    }

    fn orders(self) -> [Order; 3] {
        let allocation = id();
        let works = match self {
            Shape::Slice => [provision(&[0, 1]), restart(&[0, 1]), release(&[0, 1])],
            Shape::Whole => [user(), reboot(), farewell()],
        };
        let mut fence = 0;
        works.map(|work| {
            fence += 1;
            Order::new(allocation, fence, work)
        })
    }
}

#[derive(Clone, Debug)]
struct Deaths {
    shape: Shape,
    /// A phase of all, and whether its effect comes first.
    crashes: Vec<(usize, bool)>,
    /// After so many calls to the gateway each.
    kills: Vec<u32>,
}

fn deaths() -> impl Strategy<Value = Deaths> {
    let shape = prop_oneof![Just(Shape::Slice), Just(Shape::Whole)];
    let crashes = prop::collection::vec((0_usize..18, any::<bool>()), 0..4);
    let kills = prop::collection::vec(0_u32..14, 0..5);
    (shape, crashes, kills).prop_map(|(shape, crashes, kills)| Deaths { shape, crashes, kills })
}

/// Runs agents, one after another, until the task has its outcome.
async fn see_through(house: &House, order: &Order, kills: &mut std::vec::IntoIter<u32>) {
    loop {
        match kills.next() {
            Some(calls) => house.gateway.kill_after(calls),
            None => house.gateway.kill_after(u32::MAX),
        }
        let agent = house.start();
        // The control plane hands out again what it has not heard of.
        if house.gateway.log().outcome(order.task).is_none() {
            house.push(order);
        }
        let told = house.gateway.outcome(order.task);
        let mut agent = Some(agent);
        tokio::select! {
            biased;
            _ = told => {}
            () = house.gateway.killed.notified() => {}
            () = async { if let Some(agent) = agent.take() { agent.fell().await } } => {}
        }
        if let Some(agent) = agent {
            agent.killed().await;
        }
        if house.gateway.log().outcome(order.task).is_some() {
            return;
        }
    }
}

async fn live_through(deaths: Deaths) {
    let house = House::new();
    let phases = deaths.shape.phases();
    let fault = |(at, after): &(usize, bool)| {
        let (kind, phase) = phases[*at % phases.len()];
        Fault { after: *after, ..Fault::new(FaultKind::Crash).at(phase).of(kind).times(1) }
    };
    let faults: Vec<Fault> = deaths.crashes.iter().map(fault).collect();
    house.faults(&faults);
    let mut kills = deaths.kills.into_iter();
    let mut given_up = false;
    let orders = deaths.shape.orders();
    for order in &orders {
        let mut order = order.clone();
        loop {
            see_through(&house, &order, &mut kills).await;
            let log = house.gateway.log();
            let results = log.results_of(order.task);
            let same = results.iter().all(|result| result.outcome == results[0].outcome);
            assert!(same, "{results:#?}");
            let outcome = &results[0].outcome;
            if succeeded(outcome) {
                break;
            }
            // After too many deaths in one phase a task is given up, and the control plane gives out another.
            let given = [FailureReason::AgentDied, FailureReason::RebootFailed];
            assert!(reason(outcome).is_some_and(|it| given.contains(&it)), "{outcome:?}");
            given_up = true;
            order = Order::new(order.allocation, order.fence, order.work);
        }
    }
    if !given_up {
        let effects: Vec<Phase> = phases
            .into_iter()
            .map(|(_, phase)| phase)
            .filter(|phase| *phase != Phase::LeasesReleased)
            .collect();
        assert_eq!(house.effects(orders[0].allocation), effects);
    }
    assert_eq!((house.guests(), house.residue()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_kills_it_every_effect_happens_once_and_every_end_is_told(deaths in deaths()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(live_through(deaths));
    }
}
