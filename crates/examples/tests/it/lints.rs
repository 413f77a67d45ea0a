//! The laws on the four machines: what the first generation is let off, and that the second needs
//! no leave.

use examples::{environment_v1, environment_v2, tables, thread_v1, thread_v2};
use lifecycle::laws::{Breach, breaches, waivers};
use lifecycle::{Lawful, Rest, Source, Table};

fn laws_of(found: &[Breach]) -> Vec<&'static str> {
    found.iter().map(|breach| breach.law).collect()
}

/// The table as it would be if nothing had been observed.
fn without_leave(table: &Table) -> Table {
    let mut strict = table.clone();
    strict.notes.iter_mut().flatten().for_each(|note| *note = None);
    strict
}

#[test]
fn the_first_environment_machine_leaves_destroyed_by_two_known_cells_and_no_others() {
    let table = environment_v1::Environment::table();
    let kept: Vec<_> = waivers(table).into_iter().map(|waiver| waiver.what).collect();
    assert_eq!(
        kept,
        [
            "provision.requested leads from destroyed to provisioning",
            "provision.succeeded leads from destroyed to ready",
        ]
    );
    assert_eq!(breaches(table), []);
    let strict = breaches(&without_leave(table));
    assert_eq!(laws_of(&strict), ["terminal means terminal"; 2]);
}

#[test]
fn the_first_thread_machine_has_no_end_and_so_needs_no_leave() {
    let table = thread_v1::Thread::table();
    assert_eq!(breaches(table), []);
    assert_eq!(waivers(table), []);
    assert_eq!(breaches(&without_leave(table)), []);
}

#[test]
fn the_redesigned_machines_pass_every_law_and_keep_nothing_that_looks_wrong() {
    for table in [thread_v2::Thread::table(), environment_v2::Environment::table()] {
        assert_eq!(breaches(table), [], "{}", table.name);
        assert_eq!(waivers(table), [], "{}", table.name);
        let observed = table.notes.iter().flatten().flatten().filter(|note| note.observed);
        assert_eq!(observed.count(), 0, "{}", table.name);
        assert!(table.events.iter().all(|event| !event.reporters.is_empty()), "{}", table.name);
    }
}

#[test]
fn the_observed_cells_are_the_ones_we_know() {
    let observed = |table: &Table| -> usize {
        table.notes.iter().flatten().flatten().filter(|note| note.observed).count()
    };
    assert_eq!(tables().map(observed), [11, 8, 0, 0]);
}

#[test]
fn every_result_in_the_redesign_says_which_operation_it_answers() {
    for table in [thread_v2::Thread::table(), environment_v2::Environment::table()] {
        for event in table.events.iter().filter(|event| event.reporters.contains(&Source::Agent)) {
            assert!(event.settles, "{}", event.code);
            assert!(event.checks.contains(&lifecycle::SAME_OPERATION), "{}", event.code);
        }
    }
    // The first generation asks one of its results only.
    let table = environment_v1::Environment::table();
    let settling: Vec<_> = table.events.iter().filter(|e| e.settles).map(|e| e.code).collect();
    assert_eq!(settling, ["destroy.failed"]);
}

#[test]
fn a_redesigned_machine_without_one_of_its_safeguards_breaks_a_law() {
    let table = environment_v2::Environment::table();
    let spoilt = |spoil: fn(&mut Table)| {
        let mut copy = table.clone();
        spoil(&mut copy);
        laws_of(&breaches(&copy))
    };
    let timer_gone = spoilt(|t| {
        let lost = t.event("destroy.lost").unwrap();
        t.events[lost].reporters.retain(|source| *source != Source::Timer);
    });
    assert_eq!(timer_gone, ["every wait times out"]);

    let operator_gone = spoilt(|t| {
        let lost = t.event("destroy.lost").unwrap();
        t.events[lost].reporters.retain(|source| *source != Source::Operator);
    });
    assert_eq!(
        operator_gone,
        ["every wait has an exit for people", "people alone can bring it to rest"]
    );

    let unrecognised = spoilt(|t| {
        let succeeded = t.event("destroy.succeeded").unwrap();
        t.events[succeeded].checks.clear();
    });
    assert_eq!(unrecognised, ["results name their operation"]);

    let endless = spoilt(|t| {
        let destroying = t.status("destroying").unwrap();
        if let Rest::Transient { seconds, .. } = &mut t.statuses[destroying].rest {
            *seconds = 0;
        }
    });
    assert_eq!(endless, ["every wait has a deadline"]);
}
