//! What was given, and where: defaults, a file, the environment, flags; who comes later wins. Whatever is wrong with it is
//! gathered, so that somebody mends all of it at once.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::str::FromStr;

use super::keys::{self, Key, TABLE, nearest};
use crate::exit::{Done, Exit, Failure};

/// Where a value is from. A later one wins over an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File,
    /// A variable of the environment.
    Variable(String),
    /// The command line.
    Flag,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File => f.write_str("file"),
            Origin::Variable(name) => f.write_str(name),
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// See the module. Values may be secrets, and so it has no `Debug`.
#[derive(Default)]
pub(crate) struct Given {
    values: BTreeMap<&'static str, (String, Origin)>,
    /// What is wrong, by key.
    pub(crate) faults: Vec<(String, String)>,
}

impl Given {
    /// What these say, on top of the defaults.
    pub(crate) fn gather(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Done<Given> {
        let mut given = Given::default();
        for key in TABLE {
            if let Some(default) = key.default {
                given.values.insert(key.name, (default.to_owned(), Origin::Default));
            }
        }
        if let Some(path) = file {
            given.read(path)?;
        }
        given.listen_to(environment);
        for (name, value) in flags {
            given.values.insert(name, (value, Origin::Flag));
        }
        Ok(given)
    }

    fn read(&mut self, path: &Path) -> Done {
        let unusable = |why: String| {
            Failure::new(Exit::Usage, format!("the file {} can't be used: {why}", path.display()))
                .with("advice", "mend it, or give another one: --config")
        };
        let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| {
            // What the parser says may quote the line, and the line may hold a password.
            let at = error.span().map_or(0, |span| span.start);
            let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
            unusable(format!("line {line} is not as TOML has it"))
        })?;
        for (name, value) in table {
            let Some(section) = value.as_table() else {
                self.take(&name, &value);
                continue;
            };
            for (inner, value) in section {
                self.take(&format!("{name}.{inner}"), value);
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str, value: &toml::Value) {
        let Some(key) = keys::find(name) else {
            let near = nearest(name, TABLE.iter().map(|key| key.name.to_owned()));
            return self.fault(name, format!("there is no such key; the nearest is {near}"));
        };
        match text_of(value) {
            Some(text) => {
                self.values.insert(key.name, (text, Origin::File));
            }
            None => {
                self.fault(name, "a text, a number, true, false or a list of texts is expected")
            }
        }
    }

    fn listen_to(&mut self, environment: impl IntoIterator<Item = (String, String)>) {
        let known: BTreeMap<String, &Key> = TABLE.iter().map(|key| (key.variable(), key)).collect();
        for (variable, value) in environment {
            if value.is_empty() {
                continue;
            }
            if let Some(key) = known.get(&variable) {
                self.values.insert(key.name, (value, Origin::Variable(variable)));
            } else if keys::resembles(&variable) {
                let near = nearest(&variable, known.keys().cloned());
                let what = format!("there is no such variable; the nearest is {near}");
                self.fault(&variable, what);
            } else if variable == "DATABASE_URL" {
                // The name that everybody knows, for who has not said it by ours.
                let ours = self.origin("database.url") > Origin::File;
                if !ours {
                    let origin = Origin::Variable(variable);
                    self.values.insert("database.url", (value, origin));
                }
            }
        }
    }

    /// Something is wrong with a key.
    pub(crate) fn fault(&mut self, key: &str, what: impl Into<String>) {
        self.faults.push((key.to_owned(), what.into()));
    }

    /// Where its value is from.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.values.get(name).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// What it says, if anything.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(text, _)| text.trim()).filter(|text| !text.is_empty())
    }

    /// What it says as something else; a fault, and nothing, if it is none. `expected` ends the sentence that says so.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Option<T> {
        let text = self.text(name)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let what = format!("`{text}` is not {expected}");
            self.fault(name, what);
        }
        parsed
    }

    /// One of a few words; the first of them if it is none, which is a fault.
    pub(crate) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> T {
        let text = self.text(name).unwrap_or_default().to_owned();
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meant)) => *meant,
            None => {
                let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                self.fault(name, format!("`{text}` is none of: {}", all.join(", ")));
                words[0].1
            }
        }
    }

    /// A whole number in a range.
    pub(crate) fn number(&mut self, name: &str, range: std::ops::RangeInclusive<u32>) -> u32 {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let Some(number) = self.parsed::<u32>(name, &expected) else { return *range.start() };
        if !range.contains(&number) {
            self.fault(name, format!("{number} is not {expected}"));
        }
        number
    }
}

fn text_of(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(yes) => Some(yes.to_string()),
        toml::Value::Array(all) => {
            let texts: Option<Vec<&str>> = all.iter().map(toml::Value::as_str).collect();
            Some(texts?.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}
