//! The bridge between the reference's bare numbers and the library's named, typed facts. It translates and decides
//! nothing.

use lifecycle::writer::raised;
use lifecycle::{Assign, Code, Column, Facts, Kind, Source, Value};

use super::{NOTHING, Reference, SOURCES, Values};

/// The texts that numbers stand for in facts of kind `text`.
const TEXTS: [&str; 32] = [
    "t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9", "t10", "t11", "t12", "t13", "t14",
    "t15", "t16", "t17", "t18", "t19", "t20", "t21", "t22", "t23", "t24", "t25", "t26", "t27",
    "t28", "t29", "t30", "t31",
];

/// Both spellings of the facts and sources of one machine.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// The library's columns, by number of the fact.
    pub columns: Vec<Column>,
    /// The library's sources, by number of the source.
    pub sources: Vec<Source>,
}

impl Bridge {
    /// The bridge for one machine.
    ///
    /// # Errors
    /// The name of a kind or of a source that the library does not have.
    pub fn of(reference: &Reference) -> Result<Bridge, String> {
        let column = |fact: &super::Fact| {
            let kind = kind_called(fact.kind).ok_or_else(|| format!("{} is no kind", fact.kind))?;
            Ok(Column::new(fact.name, kind))
        };
        let source =
            |name: &&str| Source::parse(name).ok_or_else(|| format!("{name} is no source"));
        Ok(Bridge {
            columns: reference.facts.iter().map(column).collect::<Result<_, String>>()?,
            sources: SOURCES.iter().map(source).collect::<Result<_, String>>()?,
        })
    }

    /// The number of the fact called `name`.
    pub fn number(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The library's value for a number.
    pub fn value(&self, fact: usize, number: i64) -> Value {
        if number == NOTHING {
            return Value::Null;
        }
        match self.columns[fact].kind {
            Kind::Bool => Value::Bool(number == 1),
            Kind::Int => Value::Int(number),
            Kind::Id => Value::Id(u128::from(number.unsigned_abs())),
            Kind::Text => Value::Text(TEXTS[number.unsigned_abs() as usize % TEXTS.len()].into()),
            Kind::Time => Value::Time(number),
        }
    }

    /// Writes all values into `facts`, in place.
    pub fn fill(&self, facts: &mut Facts, values: &Values) {
        for (fact, column) in self.columns.iter().enumerate() {
            facts.set(*column, self.value(fact, values[fact]));
        }
    }

    /// Whether `facts` read as `values` do, and hold nothing else.
    pub fn reads(&self, facts: &Facts, values: &Values) -> bool {
        let held = facts.iter().count();
        let meant = values.iter().filter(|number| **number != NOTHING).count();
        let same = |(fact, column): (usize, &Column)| number_of(facts.get(*column)) == values[fact];
        held == meant && self.columns.iter().enumerate().all(same)
    }

    /// What an assignment of the library writes to `row`: the fact, if it is a known one, and the number.
    pub fn assigned(&self, assign: &Assign, row: &Facts, now: i64) -> (Option<usize>, i64) {
        let (Assign::Value(column, _) | Assign::Now(column) | Assign::Raise(column)) = assign;
        let number = match assign {
            Assign::Value(_, value) => number_of(value),
            Assign::Now(_) => now,
            Assign::Raise(column) => number_of(&raised(row.get(*column))),
        };
        (self.number(column.name), number)
    }
}

/// The number behind a value of the library. Kinds are not told apart here; declarations are compared for that.
fn number_of(value: &Value) -> i64 {
    match value {
        Value::Null => NOTHING,
        Value::Bool(yes) => i64::from(*yes),
        Value::Int(number) | Value::Time(number) => *number,
        Value::Id(id) => i64::try_from(*id).unwrap_or(i64::MAX),
        Value::Text(text) => text.get(1..).and_then(|n| n.parse().ok()).unwrap_or(i64::MAX),
    }
}

/// The reference's word for a kind.
pub fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::Int => "int",
        Kind::Id => "id",
        Kind::Text => "text",
        Kind::Time => "time",
    }
}

fn kind_called(word: &str) -> Option<Kind> {
    let kinds = [Kind::Bool, Kind::Int, Kind::Id, Kind::Text, Kind::Time];
    kinds.into_iter().find(|kind| kind_word(*kind) == word)
}
