//! Mutants are many, all different from the truth, and say what they are.

use std::collections::{BTreeMap, BTreeSet};

use lifecycle::Lawful;
use lifecycle::mutate::{Sort, mutants};

use crate::job::Job;

#[test]
fn every_mutant_differs_from_the_table_and_from_every_other() {
    let mut seen = BTreeSet::from([format!("{:?}", Job::table())]);
    for mutant in mutants(Job::table()) {
        assert!(seen.insert(format!("{:?}", mutant.table)), "{} is not new", mutant.what);
    }
}

#[test]
fn every_mutant_has_a_sentence_of_its_own() {
    let all = mutants(Job::table());
    let sentences: BTreeSet<&str> = all.iter().map(|mutant| mutant.what.as_str()).collect();
    assert_eq!(sentences.len(), all.len());
    assert!(sentences.contains("job: work.ended does not check not_stopped"));
    assert!(
        sentences.contains("job: work.began in idle is late, though in truth it leads to working")
    );
    assert!(sentences.contains("job: entering kept's stamp of ended_at is missing"));
}

#[test]
fn nothing_a_table_says_is_left_out() {
    let mut counts: BTreeMap<Sort, usize> = BTreeMap::new();
    for mutant in mutants(Job::table()) {
        *counts.entry(mutant.sort).or_default() += 1;
    }
    // Four events in five statuses: four cells that lead somewhere, sixteen that do not.
    assert_eq!(counts[&Sort::EdgeRemoved], 4);
    assert_eq!(counts[&Sort::TargetChanged], 3 * 4 + 3 + 2 * 3);
    assert_eq!(counts[&Sort::AbsenceChanged], 16 * 2);
    assert_eq!(counts[&Sort::CheckRemoved], 3);
    assert_eq!(counts[&Sort::CheckOrder], 1);
    assert_eq!(counts[&Sort::GuardRemoved], 1);
    assert_eq!(counts[&Sort::StampRemoved], 5);
    assert_eq!(counts[&Sort::TopicRemoved], 1);
    assert_eq!(counts[&Sort::FieldRemoved], 3);
    assert_eq!(counts[&Sort::BirthChanged], 5);
}
