//! Pictures and tables of a machine, in Markdown and Mermaid. Always in order of declaration, so that a changed rule is
//! a small, readable difference.

use std::fmt::Write as _;

use crate::fact::Column;
use crate::rule::{Rest, Set, Why};
use crate::table::{Cell, EventEntry, StampEntry, Table};

/// Everything about one machine: diagram, statuses, matrix, events, remarks. Begins with a heading of level two.
pub fn machine(table: &Table) -> String {
    let cells = table.cells.iter().flatten().filter(|cell| !cell.targets().is_empty()).count();
    let size = table.statuses.len() * table.events.len();
    let mut page = format!("## {}\n\n", title(table.name));
    let _ = writeln!(
        page,
        "{} statuses, {} events; {cells} of {size} cells lead somewhere, as {} edges between {} pairs of statuses.",
        table.statuses.len(),
        table.events.len(),
        table.edges().len(),
        table.pairs().len(),
    );
    if !table.born.is_empty() {
        let _ = writeln!(page, "A birth is published as `{}`.", table.born.join("`, `"));
    }
    let _ = write!(
        page,
        "\n{}\n{}\n{}\n{}",
        diagram(table),
        statuses(table),
        matrix(table),
        events(table)
    );
    let remarks = remarks(table);
    if !remarks.is_empty() {
        let _ = write!(page, "\n{remarks}");
    }
    page
}

fn title(name: &str) -> String {
    let mut words = name.replace('_', " ");
    if let Some(first) = words.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    words
}

/// A Mermaid state diagram. Edges between the same two statuses are one arrow, one event a line; cells that are kept
/// although they look wrong are marked with a star.
pub fn diagram(table: &Table) -> String {
    let mut text = String::from("```mermaid\nstateDiagram-v2\n");
    for (number, status) in table.statuses.iter().enumerate() {
        // An alias, because a code may be a word of Mermaid's own ("end") or hold a dot or a hyphen.
        let _ = writeln!(text, "    state \"{}\" as s{number}", escape(status.code));
    }
    let _ = writeln!(text, "    [*] --> s{}", table.initial);
    for (from, to) in table.pairs() {
        let labels: Vec<String> =
            (0..table.events.len()).filter_map(|event| label(table, event, from, to)).collect();
        let _ = writeln!(text, "    s{from} --> s{to}: {}", labels.join("<br/>"));
    }
    for (number, _) in table.statuses.iter().enumerate().filter(|(n, _)| table.is_terminal(*n)) {
        let _ = writeln!(text, "    s{number} --> [*]");
    }
    text.push_str("```\n");
    text
}

fn label(table: &Table, event: usize, from: usize, to: usize) -> Option<String> {
    let cell = table.cells[event][from];
    if !cell.targets().contains(&to) {
        return None;
    }
    let condition = match cell {
        Cell::ByFact { check, yes, no } if yes != no && to == yes => format!(" ({})", check.name),
        Cell::ByFact { check, yes, no } if yes != no => format!(" (not {})", check.name),
        Cell::ByFact { .. } | Cell::To(_) | Cell::Absent(_) | Cell::Undecided => String::new(),
    };
    let star = if table.notes[event][from].is_some_and(|note| note.observed) { " *" } else { "" };
    Some(format!("{}{condition}{star}", escape(table.events[event].code)))
}

fn escape(code: &str) -> String {
    code.replace('"', "#quot;")
}

/// What each status means, who leaves it and by when.
pub fn statuses(table: &Table) -> String {
    let mut text = String::from(
        "| status | meaning | who leaves it | deadline | when it has passed | reaching it stamps |\n|---|---|---|---|---|---|\n",
    );
    for status in &table.statuses {
        let (owner, deadline, then) = match status.rest {
            Rest::Terminal => ("nobody: terminal".to_owned(), String::new(), String::new()),
            Rest::Restful => ("whoever asks: restful".to_owned(), String::new(), String::new()),
            Rest::Derived => ("what it follows: derived".to_owned(), String::new(), String::new()),
            Rest::Parked { owner, seconds } => {
                (format!("{owner}: parked"), duration(seconds), "stuck list".to_owned())
            }
            Rest::Transient { owner, seconds, time_out } => {
                (owner.to_string(), duration(seconds), format!("`{}`", table.events[time_out].code))
            }
        };
        let stamps = stamps(table, &status.stamps);
        let _ = writeln!(
            text,
            "| {} | {} | {owner} | {deadline} | {then} | {stamps} |",
            status.code, status.meaning
        );
    }
    text
}

fn duration(seconds: u32) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3_600 == 0 => format!("{} h", s / 3_600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// The full matrix: the target of each cell, or in italics the reason why there is none.
pub fn matrix(table: &Table) -> String {
    let codes: Vec<&str> = table.statuses.iter().map(|status| status.code).collect();
    let mut text = format!("| event \\ from | {} |\n", codes.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(codes.len()));
    for (event, row) in table.cells.iter().enumerate() {
        let cells: Vec<String> = (0..row.len()).map(|status| cell(table, event, status)).collect();
        let _ = writeln!(text, "| {} | {} |", table.events[event].code, cells.join(" | "));
    }
    text
}

fn cell(table: &Table, event: usize, status: usize) -> String {
    let star = if table.notes[event][status].is_some_and(|note| note.observed) { " *" } else { "" };
    let name = |number: usize| table.statuses[number].code;
    match table.cells[event][status] {
        Cell::To(to) => format!("**{}**{star}", name(to)),
        Cell::ByFact { yes, no, .. } => format!("**{}** / **{}**{star}", name(yes), name(no)),
        Cell::Absent(Why::Duplicate) => "_duplicate_".to_owned(),
        Cell::Absent(Why::Late) => "_late_".to_owned(),
        Cell::Absent(Why::Bug) => "_bug_".to_owned(),
        Cell::Undecided => "?".to_owned(),
    }
}

/// What goes with each event.
pub fn events(table: &Table) -> String {
    let mut text = String::from(
        "| event | reported by | carries | superseded unless | waits for | stamps | publishes |\n|---|---|---|---|---|---|---|\n",
    );
    for event in &table.events {
        let EventEntry { code, reporters, carries, checks, guards, publishes, .. } = event;
        let by: Vec<String> = reporters.iter().map(ToString::to_string).collect();
        let by = if by.is_empty() { "anybody".to_owned() } else { by.join(", ") };
        let fields = list(carries.iter().map(|field: &Column| field.name));
        let checks = list(checks.iter().map(|check| check.name));
        let guards = list(guards.iter().map(|guard| guard.0));
        let topics = list(publishes.iter().copied());
        let stamps = stamps(table, &event.stamps);
        let _ = writeln!(
            text,
            "| {code} | {by} | {fields} | {checks} | {guards} | {stamps} | {topics} |"
        );
    }
    text
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn stamps(table: &Table, stamps: &[StampEntry]) -> String {
    let text = |stamp: &StampEntry| {
        let value = match stamp.set {
            Set::Now => "now".to_owned(),
            Set::Field(field) if field.name == stamp.column.name => "as reported".to_owned(),
            Set::Field(field) => format!("`{}` as reported", field.name),
            Set::Clear => "empty".to_owned(),
            Set::Raise => "one more".to_owned(),
        };
        let from = stamp.from.iter().map(|status| table.statuses[*status].code).collect::<Vec<_>>();
        let from =
            if from.is_empty() { String::new() } else { format!(" from {}", from.join(", ")) };
        let when = stamp.when.map_or_else(String::new, |check| format!(" when {}", check.name));
        format!("`{}`: {value}{from}{when}", stamp.column.name)
    };
    stamps.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The remarks on single cells.
pub fn remarks(table: &Table) -> String {
    let mut text = String::new();
    for (event, row) in table.notes.iter().enumerate() {
        for (status, note) in row.iter().enumerate() {
            if let Some(note) = note {
                let kept = if note.observed { " * kept as observed:" } else { ":" };
                let (event, status) = (table.events[event].code, table.statuses[status].code);
                let _ = writeln!(text, "- `{event}` in `{status}`{kept} {}", note.text);
            }
        }
    }
    text
}
