//! Mutation: every small way in which a machine could be wrong must show against the reference. A table without a
//! difference is right, and every mutant of it must have one.

use std::collections::BTreeMap;

use lifecycle::mutate::{self, Mutant};
use lifecycle::{Code, Table};

use crate::reference::{self, Reference};

pub use crate::reference::oracle::{differences, first_difference};

/// What became of all mutants.
#[derive(Clone, Debug, Default)]
pub struct Mutation {
    /// How many there were, by sort.
    pub tried: BTreeMap<&'static str, usize>,
    /// Those that nothing told from the truth.
    pub survivors: Vec<String>,
    /// What is wrong with the true tables.
    pub differences: Vec<String>,
}

impl Mutation {
    /// Tries every mutant of one machine.
    pub fn try_machine(&mut self, table: &Table, reference: &Reference) {
        self.differences.extend(differences(table, reference));
        for Mutant { sort, what, table } in mutate::mutants(table) {
            *self.tried.entry(sort.code()).or_default() += 1;
            if first_difference(&table, reference).is_none() {
                self.survivors.push(what);
            }
        }
    }

    /// How many mutants were tried.
    pub fn total(&self) -> usize {
        self.tried.values().sum()
    }

    /// Whether every mutant was found and the true tables are right.
    pub fn is_ok(&self) -> bool {
        self.survivors.is_empty() && self.differences.is_empty() && self.total() > 0
    }

    /// The figures, as one line of JSON.
    pub fn figures(&self) -> serde_json::Value {
        serde_json::json!({
            "proof": "mutation",
            "tried": self.total(),
            "survived": self.survivors.len(),
            "survivors": self.survivors,
            "differences": self.differences,
            "by_sort": self.tried,
            "ok": self.is_ok(),
        })
    }
}

/// Tries every mutant of every machine.
///
/// # Errors
/// A reference that can't be read, or machines and references that are not the same ten.
pub fn prove() -> Result<Mutation, String> {
    let mut mutation = Mutation::default();
    for (table, reference) in pairs()? {
        mutation.try_machine(table, &reference);
    }
    Ok(mutation)
}

/// Every machine with its reference.
///
/// # Errors
/// A reference that can't be read, or machines and references that are not the same ten.
pub fn pairs() -> Result<Vec<(&'static Table, Reference)>, String> {
    let (tables, references) = (domain::machines::tables(), reference::all()?);
    let named = |(table, reference): (&&Table, &Reference)| table.name == reference.name;
    if tables.len() != references.len() || !tables.iter().zip(&references).all(named) {
        return Err("the list of machines and the list of references differ".to_owned());
    }
    Ok(tables.into_iter().zip(references).collect())
}
