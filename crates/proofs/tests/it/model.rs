//! The model check at its small size: the protocol holds, every edge is taken, and every flaw
//! shows.

use domain::machines::{Allocation, AllocationGroup, Claim, NodeTask};
use lifecycle::{Lawful, Table};
use proofs::model::config::Flaw;
use proofs::model::liveness::{Graph, at_rest, settled};
use proofs::model::protocol::{Protocol, Whose};
use proofs::model::scenario::scenarios;
use proofs::model::tables::Tables;
use proofs::model::{Checked, Size, check, untaken};

/// The edges that no scenario can take, each with the reason. None is left, and none may be added
/// without one.
const OUT_OF_REACH: &[&str] = &[];

fn same(one: &Table, other: &Table) -> bool {
    let rules = |table: &Table| {
        let events = table.events.iter();
        events
            .map(|e| (e.code, e.reporters.clone(), e.checks.clone(), e.guards.clone()))
            .collect::<Vec<_>>()
    };
    one.cells == other.cells && rules(one) == rules(other)
}

#[test]
fn without_a_flaw_the_tables_are_the_products_own() {
    let tables = Tables::new(None);
    assert!(same(&tables.allocation.table, Allocation::table()));
    assert!(same(&tables.claim.table, Claim::table()));
    assert!(same(&tables.task.table, NodeTask::table()));
    assert!(same(&tables.group.table, AllocationGroup::table()));
}

#[test]
fn every_property_holds_and_every_edge_is_taken() {
    let runs: Vec<Checked> = scenarios(Size::Small).iter().map(|each| check(each.config)).collect();
    for (scenario, run) in scenarios(Size::Small).iter().zip(&runs) {
        assert!(run.broken.is_empty(), "{}: {:#?}", scenario.name, run.broken);
        assert!(run.impossible.is_empty(), "{}: {:?}", scenario.name, run.impossible);
    }
    assert_eq!(untaken(&runs), OUT_OF_REACH);
}

#[test]
fn deadlines_bring_everything_to_rest_and_people_bring_it_to_its_end() {
    for scenario in scenarios(Size::Small).iter().filter(|scenario| scenario.searched) {
        let protocol = Protocol::new(scenario.config);
        let graph = Graph::of(&protocol);
        let without_people = [Whose::Agent, Whose::Control];
        let stranded = graph.lost(&without_people, |state| at_rest(&protocol, state)).len();
        assert_eq!(stranded, 0, "{}", scenario.name);
        let without_the_agent = [Whose::Control, Whose::People];
        let unended = graph.lost(&without_the_agent, |state| settled(&protocol, state)).len();
        assert_eq!(unended, 0, "{}", scenario.name);
    }
}

#[test]
fn without_deadlines_an_agent_that_dies_strands_its_work() {
    let scenario = scenarios(Size::Small)[4];
    let protocol = Protocol::new(scenario.config);
    let graph = Graph::of(&protocol);
    assert!(
        !graph.lost(&[Whose::Agent, Whose::People], |state| at_rest(&protocol, state)).is_empty()
    );
}

#[test]
fn every_flaw_breaks_what_it_should() {
    for flaw in Flaw::ALL {
        let run = check(flaw.shows_in());
        assert!(run.broken.contains_key(flaw.breaks()), "{}: {:?}", flaw.name(), run.broken.keys());
    }
}
