//! Reads the text of a reference. Everything that is not understood is an error with its line: a slip of the pen in a
//! reference must not become a machine.

use super::{
    Cell, Condition, Event, FACTS_MAX, Fact, Ink, Question, Reference, SOURCES, Status, Writing,
};

type Words<'a> = &'a [&'static str];

/// Reads a whole text: names first, because rows and events speak of statuses and facts.
pub(super) fn read(text: &'static str) -> Result<Reference, String> {
    let mut reader = Reader::default();
    let lines: Vec<(usize, Vec<&'static str>)> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with('#') && !line.trim().is_empty())
        .map(|(number, line)| (number + 1, line.split_whitespace().collect()))
        .collect();
    for pass in [Reader::names, Reader::rules] {
        for (number, words) in &lines {
            let read = pass(&mut reader, words[0], &words[1..]);
            read.map_err(|problem| format!("{}, line {number}: {problem}", reader.machine.name))?;
        }
    }
    reader.finish()
}

struct Reader {
    machine: Reference,
    rows: Vec<Vec<Cell>>,
    event: Option<usize>,
}

impl Default for Reader {
    fn default() -> Self {
        let machine = Reference {
            name: "",
            initial: 0,
            born: Vec::new(),
            facts: Vec::new(),
            statuses: Vec::new(),
            events: Vec::new(),
            matrix: Vec::new(),
        };
        Self { machine, rows: Vec::new(), event: None }
    }
}

impl Reader {
    fn names(&mut self, first: &'static str, rest: Words<'_>) -> Result<(), String> {
        match (first, rest) {
            ("machine", [name]) => self.machine.name = name,
            ("facts", facts) => {
                for fact in facts {
                    let (name, kind) = fact.split_once(':').ok_or("a fact is name:kind")?;
                    self.machine.facts.push(Fact { name, kind });
                }
                if self.machine.facts.len() > FACTS_MAX {
                    return Err("too many facts".to_owned());
                }
            }
            ("status", [name, rest @ ..]) => {
                let status = Status { name, rest: rest.join(" "), enter: Vec::new() };
                self.machine.statuses.push(status);
            }
            ("row", [name, ..]) => {
                self.machine.events.push(blank(name));
                self.rows.push(Vec::new());
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(&mut self, first: &'static str, rest: Words<'_>) -> Result<(), String> {
        match (first, rest) {
            ("machine", [_]) | ("facts", _) => {}
            ("status", [_, rest @ ..]) => self.check_rest(rest)?,
            ("born", [status, topics @ ..]) => {
                self.machine.initial = self.status(status)?;
                self.machine.born = topics.to_vec();
            }
            ("enter", [status, writing @ ..]) => {
                let writing = self.writing(writing)?;
                let status = self.status(status)?;
                self.machine.statuses[status].enter.push(writing);
            }
            ("matrix", names) => {
                if names != self.machine.statuses.iter().map(|s| s.name).collect::<Vec<_>>() {
                    return Err("the matrix must name every status, in order".to_owned());
                }
            }
            ("row", [event, cells @ ..]) => {
                let event = self.event_called(event)?;
                let cells: Result<Vec<_>, _> = cells.iter().map(|cell| self.cell(cell)).collect();
                self.rows[event] = cells?;
            }
            ("event", [name]) => self.event = Some(self.event_called(name)?),
            (word, rest) => self.of_event(word, rest)?,
        }
        Ok(())
    }

    fn of_event(&mut self, word: &str, rest: Words<'_>) -> Result<(), String> {
        let number = self.event.ok_or("this belongs to no event")?;
        match (word, rest) {
            ("by", sources) => {
                for source in sources {
                    let bit = SOURCES.iter().position(|known| known == source);
                    let bit = bit.ok_or_else(|| format!("{source} is no source"))?;
                    self.machine.events[number].by |= 1 << bit;
                }
            }
            ("settles", []) => self.machine.events[number].settles = true,
            ("carries", fields) => {
                let fields: Result<Vec<_>, _> =
                    fields.iter().map(|field| self.fact(field)).collect();
                self.machine.events[number].carries = fields?;
            }
            ("check", condition) => {
                let condition = self.condition(condition)?;
                self.machine.events[number].checks.push(condition);
            }
            ("fork", condition) => {
                self.machine.events[number].fork = Some(self.condition(condition)?);
            }
            ("guard", [name]) => self.machine.events[number].guards.push(name),
            ("stamp", writing) => {
                let writing = self.writing(writing)?;
                self.machine.events[number].stamps.push(writing);
            }
            ("publish", [topic]) => self.machine.events[number].topics.push(topic),
            (word, _) => return Err(format!("{word} is not understood")),
        }
        Ok(())
    }

    fn check_rest(&self, rest: Words<'_>) -> Result<(), String> {
        let (owner, seconds) = match rest {
            ["terminal" | "restful" | "derived"] => return Ok(()),
            ["parked", owner, seconds] => (owner, seconds),
            ["transient", owner, seconds, time_out] => {
                self.event_called(time_out)?;
                (owner, seconds)
            }
            _ => {
                return Err(
                    "a status is terminal, restful, derived, parked or transient".to_owned()
                );
            }
        };
        if !SOURCES.contains(owner) || seconds.parse::<u32>().is_err() {
            return Err("an owner and a number of seconds are missing".to_owned());
        }
        Ok(())
    }

    /// `a`, `a/b` (see `fork`), `D`, `L` or `B`.
    fn cell(&self, text: &str) -> Result<Cell, String> {
        Ok(match text {
            "D" => Cell::Duplicate,
            "L" => Cell::Late,
            "B" => Cell::Bug,
            name => match name.split_once('/') {
                Some((yes, no)) => Cell::Fork(self.status(yes)?, self.status(no)?),
                None => Cell::Status(self.status(name)?),
            },
        })
    }

    /// `name: fact = @field`, `name: fact < fact`, or `name: fact is empty|there|true|not-true`.
    fn condition(&self, words: Words<'_>) -> Result<Condition, String> {
        let [name, fact, verb, object] = words else {
            return Err("a condition is four words".to_owned());
        };
        let name = name.strip_suffix(':').ok_or("a condition begins with its name and a colon")?;
        let fact = self.fact(fact)?;
        let question = match (*verb, *object) {
            ("is", "empty") => Question::Empty(fact),
            ("is", "there") => Question::There(fact),
            ("is", "true") => Question::Yes(fact),
            ("is", "not-true") => Question::NotYes(fact),
            ("=", field) => Question::Told(fact, self.field(field)?),
            ("<", other) => Question::Less(fact, self.fact(other)?),
            (verb, object) => return Err(format!("{verb} {object} is no question")),
        };
        Ok(Condition { name, question })
    }

    /// `fact = now|nothing|one more|@field`, then `from` statuses, then `when` a condition.
    fn writing(&self, words: Words<'_>) -> Result<Writing, String> {
        let [fact, "=", rest @ ..] = words else {
            return Err("a stamp is fact = something".to_owned());
        };
        let (ink, mut rest) = match rest {
            ["now", rest @ ..] => (Ink::Now, rest),
            ["nothing", rest @ ..] => (Ink::Nothing, rest),
            ["one", "more", rest @ ..] => (Ink::OneMore, rest),
            [field, rest @ ..] => (Ink::Told(self.field(field)?), rest),
            [] => return Err("a stamp writes something".to_owned()),
        };
        let mut from = u32::MAX;
        if let ["from", tail @ ..] = rest {
            let end = tail.iter().position(|word| *word == "when").unwrap_or(tail.len());
            from = 0;
            for status in &tail[..end] {
                from |= 1 << self.status(status)?;
            }
            rest = &tail[end..];
        }
        let when = match rest {
            [] => None,
            ["when", condition @ ..] => Some(self.condition(condition)?),
            _ => return Err("after a stamp come from and when, in this order".to_owned()),
        };
        Ok(Writing { fact: self.fact(fact)?, ink, from, when })
    }

    fn field(&self, word: &str) -> Result<usize, String> {
        self.fact(word.strip_prefix('@').ok_or_else(|| format!("{word} is no @field"))?)
    }

    fn fact(&self, name: &str) -> Result<usize, String> {
        let found = self.machine.facts.iter().position(|fact| fact.name == name);
        found.ok_or_else(|| format!("{name} is no fact"))
    }

    fn status(&self, name: &str) -> Result<usize, String> {
        let found = self.machine.statuses.iter().position(|status| status.name == name);
        found.ok_or_else(|| format!("{name} is no status"))
    }

    fn event_called(&self, name: &str) -> Result<usize, String> {
        let found = self.machine.events.iter().position(|event| event.name == name);
        found.ok_or_else(|| format!("{name} is no event"))
    }

    fn finish(mut self) -> Result<Reference, String> {
        let name = self.machine.name;
        let width = self.machine.statuses.len();
        if self.rows.is_empty() || self.rows.iter().any(|row| row.len() != width) {
            return Err(format!("{name}: every row needs a cell for every status"));
        }
        // Nobody listed would mean nobody may; the contract means everybody then.
        for event in self.machine.events.iter_mut().filter(|event| event.by == 0) {
            event.by = (1 << SOURCES.len()) - 1;
        }
        self.machine.matrix = self.rows.concat();
        Ok(self.machine)
    }
}

fn blank(name: &'static str) -> Event {
    Event {
        name,
        by: 0,
        settles: false,
        carries: Vec::new(),
        checks: Vec::new(),
        fork: None,
        guards: Vec::new(),
        stamps: Vec::new(),
        topics: Vec::new(),
    }
}
