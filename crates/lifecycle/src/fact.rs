//! Facts: what a rule may know of a row and of a report, and the checks it may make on them.
//! Checks are data, so that one declaration gives the evaluation, the SQL, the label and the document.

use std::borrow::Cow;

/// What a column or a payload field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number.
    Int,
    /// A 128-bit identifier.
    Id,
    /// A short text.
    Text,
    /// A moment, in microseconds since 1970.
    Time,
}

/// A named column of a row, or the field of the same shape that a report carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    /// Its name in the store.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

impl Column {
    /// A column of the given name and kind.
    pub const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, kind }
    }
}

/// The operation (a provision, a restart, a release, …) that a row is busy with, or that a report is about.
pub const OPERATION_ID: Column = Column::new("operation_id", Kind::Id);

/// The value of one column or field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing there.
    Null,
    /// See [`Kind::Bool`].
    Bool(bool),
    /// See [`Kind::Int`].
    Int(i64),
    /// See [`Kind::Id`].
    Id(u128),
    /// See [`Kind::Text`].
    Text(Cow<'static, str>),
    /// See [`Kind::Time`].
    Time(i64),
}

impl Value {
    /// Whether nothing is there.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

/// A few named values. A name that was never set reads as [`Value::Null`].
#[derive(Clone, Debug, Default)]
pub struct Facts(Vec<(&'static str, Value)>);

impl Facts {
    /// No facts.
    pub const NONE: Facts = Facts(Vec::new());

    /// These facts and one more; the later of two with one name wins.
    #[must_use]
    pub fn with(mut self, column: Column, value: Value) -> Self {
        self.set(column, value);
        self
    }

    /// Sets one fact.
    pub fn set(&mut self, column: Column, value: Value) {
        match self.0.iter_mut().find(|(name, _)| *name == column.name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((column.name, value)),
        }
    }

    /// The value of one fact.
    pub fn get(&self, column: Column) -> &Value {
        self.0.iter().find(|(name, _)| *name == column.name).map_or(&Value::Null, |(_, v)| v)
    }

    /// Every fact that is not null, in the order in which it was first set.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (*name, value))
    }
}

/// Two sets of facts are equal when they say the same, in whatever order.
impl PartialEq for Facts {
    fn eq(&self, other: &Self) -> bool {
        let within = |a: &Facts, b: &Facts| {
            a.iter().all(|(name, value)| b.iter().any(|(n, v)| n == name && v == value))
        };
        within(self, other) && within(other, self)
    }
}

/// What a [`Check`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// The column is empty.
    Null(Column),
    /// The column is not empty.
    Present(Column),
    /// The column is true.
    True(Column),
    /// The column is not true.
    NotTrue(Column),
    /// The row's column and the report's field are the same (two nulls are).
    Same(Column, Column),
    /// The first column is a smaller number than the second.
    Below(Column, Column),
}

/// A named predicate on one row and one report. A report that fails one is superseded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, as refusals and documents give it.
    pub name: &'static str,
    /// What it compares.
    pub test: Test,
}

/// The check that makes an answer to an earlier operation harmless.
pub const SAME_OPERATION: Check =
    Check::new("same_operation", Test::Same(OPERATION_ID, OPERATION_ID));

impl Check {
    /// A check of the given name.
    pub const fn new(name: &'static str, test: Test) -> Self {
        Self { name, test }
    }

    /// Whether a row with `row` facts and a report with `payload` passes.
    pub fn holds(&self, row: &Facts, payload: &Facts) -> bool {
        match self.test {
            Test::Null(column) => row.get(column).is_null(),
            Test::Present(column) => !row.get(column).is_null(),
            Test::True(column) => *row.get(column) == Value::Bool(true),
            Test::NotTrue(column) => *row.get(column) != Value::Bool(true),
            Test::Same(column, field) => row.get(column) == payload.get(field),
            Test::Below(low, high) => match (row.get(low), row.get(high)) {
                (Value::Int(low), Value::Int(high)) => low < high,
                // An unknown number is below nothing, as in SQL.
                _ => false,
            },
        }
    }

    /// The columns of the row that this check reads.
    pub fn columns(&self) -> Vec<Column> {
        match self.test {
            Test::Null(c)
            | Test::Present(c)
            | Test::True(c)
            | Test::NotTrue(c)
            | Test::Same(c, _) => vec![c],
            Test::Below(low, high) => vec![low, high],
        }
    }

    /// The field of the report that this check reads, if it reads one.
    pub fn field(&self) -> Option<Column> {
        match self.test {
            Test::Same(_, field) => Some(field),
            Test::Null(_)
            | Test::Present(_)
            | Test::True(_)
            | Test::NotTrue(_)
            | Test::Below(..) => None,
        }
    }
}

/// A named condition on other rows. Only a store can answer it, and only after it holds the row's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard(pub &'static str);
