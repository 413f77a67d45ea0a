//! Random deaths: at random phases, before or after their effect, and at random calls to the gateway.

use agent::faults::{Fault, FaultKind};
use proptest::prelude::*;
use wire::node::{Phase, TaskKind};

use crate::crashes::succeeded;
use crate::house::{House, Order, id, provision, release};

#[derive(Clone, Debug)]
struct Deaths {
    /// A phase of all, and whether its effect comes first.
    crashes: Vec<(usize, bool)>,
    /// After so many calls to the gateway each.
    kills: Vec<u32>,
}

fn deaths() -> impl Strategy<Value = Deaths> {
    let crashes = prop::collection::vec((0_usize..12, any::<bool>()), 0..4);
    let kills = prop::collection::vec(0_u32..14, 0..5);
    (crashes, kills).prop_map(|(crashes, kills)| Deaths { crashes, kills })
}

fn every_phase() -> Vec<Phase> {
    let come = agent::tasks::phases(TaskKind::SliceProvision).iter();
    come.chain(agent::tasks::phases(TaskKind::SliceRelease)).copied().collect()
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
            () = async { if let Some(agent) = agent.take() { agent.crashed().await } } => {}
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
    let phases = every_phase();
    let fault = |(at, after): &(usize, bool)| Fault {
        after: *after,
        ..Fault::new(FaultKind::Crash).at(phases[*at]).times(1)
    };
    let faults: Vec<Fault> = deaths.crashes.iter().map(fault).collect();
    house.faults(&faults);
    let come = Order::new(id(), 1, provision(&[0, 1]));
    let go = Order::new(come.allocation, 2, release(&[0, 1]));
    let mut kills = deaths.kills.into_iter();
    see_through(&house, &come, &mut kills).await;
    see_through(&house, &go, &mut kills).await;

    let log = house.gateway.log();
    for order in [&come, &go] {
        let results = log.results_of(order.task);
        assert!(results.iter().all(|result| succeeded(&result.outcome)), "{results:#?}");
        let same = results.iter().all(|result| result.outcome == results[0].outcome);
        assert!(same, "{results:#?}");
    }
    let effects: Vec<Phase> =
        phases.into_iter().filter(|phase| *phase != Phase::LeasesReleased).collect();
    assert_eq!(house.effects(come.allocation), effects);
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
