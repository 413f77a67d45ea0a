//! The committed document is what the machines say of themselves. `BERTH_BLESS=1 cargo test -p
//! examples` rewrites it.

use std::path::PathBuf;

use examples::tables;
use lifecycle::{
    Check, Column, Kind, Lawful, Machine, Rule, StatusSpec, Test, codes, lawful, on, render,
    restful, terminal,
};

const HEAD: &str = "\
<!-- Generated from crates/examples/src; do not edit. Regenerate: BERTH_BLESS=1 cargo test -p examples diagrams -->

# The lifecycles of the worked examples

An arrow is a move; several events on one arrow stand one a line. Where there is no arrow, nothing happens: the
matrix says why. A star marks a cell that looks wrong and is kept because it was observed.
";

fn document() -> String {
    let mut text = HEAD.to_owned();
    for table in tables() {
        text.push('\n');
        text.push_str(&render::machine(table));
    }
    text
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("LIFECYCLES.md")
}

/// The document as it is committed.
pub(crate) fn committed() -> String {
    std::fs::read_to_string(path()).unwrap_or_default()
}

#[test]
fn the_committed_document_is_what_the_machines_say() {
    let rendered = document();
    if std::env::var_os("BERTH_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(path(), &rendered).unwrap();
    }
    let committed = committed();
    let differs = committed.lines().zip(rendered.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or(committed.lines().count().min(rendered.lines().count()));
    assert!(
        committed == rendered,
        "LIFECYCLES.md is out of date from line {}:\n  is     {:?}\n  should {:?}",
        line + 1,
        committed.lines().nth(line),
        rendered.lines().nth(line),
    );
}

codes! { enum Status { Shut = "shut", Open = "open", End = "end" } }
codes! { enum Event { Pushed = "door.pushed", Pulled = "door.pulled", Removed = "door.removed" } }

#[derive(Clone, Copy)]
struct Door;

const STUCK: Check = Check::new("stuck", Test::Present(Column::new("stuck_at", Kind::Time)));

#[rustfmt::skip]
impl Machine for Door {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "door";
    const INITIAL: Status = Status::Shut;
    const STATUSES: &'static [StatusSpec<Status, Event>] =
        &[restful(Status::Shut, ""), restful(Status::Open, ""), terminal(Status::End, "")];
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Event::Pushed).moves(&[Status::Shut], Status::Open).duplicate_in(&[Status::Open]).late_in(&[Status::End])
            .observed(&[Status::Shut], "it opens outwards"),
        on(Event::Pulled).moves(&[Status::Shut], Status::Open).duplicate_in(&[Status::Open]).late_in(&[Status::End])
            .needs(STUCK),
        on(Event::Removed).moves_by(&[Status::Open], STUCK, Status::Shut, Status::End)
            .late_in(&[Status::Shut]).duplicate_in(&[Status::End]),
    ];
}
lawful!(Door);

#[test]
fn parallel_events_share_an_arrow_and_a_cell_with_two_targets_has_two() {
    let diagram = render::diagram(Door::table());
    let arrows: Vec<_> =
        diagram.lines().filter(|line| line.contains("-->")).map(str::trim).collect();
    assert_eq!(
        arrows,
        [
            "[*] --> s0",
            "s0 --> s1: door.pushed *<br/>door.pulled",
            "s1 --> s0: door.removed (stuck)",
            "s1 --> s2: door.removed (not stuck)",
            "s2 --> [*]",
        ]
    );
}

#[test]
fn a_cell_whose_two_targets_are_one_has_one_plain_arrow() {
    let mut table = Door::table().clone();
    let (removed, open) = (table.event("door.removed").unwrap(), table.status("open").unwrap());
    let end = table.status("end").unwrap();
    table.cells[removed][open] = lifecycle::Cell::ByFact { check: STUCK, yes: end, no: end };
    let diagram = render::diagram(&table);
    let arrows: Vec<_> = diagram.lines().filter(|line| line.contains("s1 --> s2")).collect();
    assert_eq!(arrows, ["    s1 --> s2: door.removed"]);
}

#[test]
fn predicates_stand_in_the_table_below_and_not_on_the_arrows() {
    let table = Door::table();
    assert!(!render::diagram(table).contains("door.pulled ("));
    assert!(render::events(table).contains("`stuck`"));
}

#[test]
fn the_matrix_says_of_every_absent_cell_why_nothing_happens() {
    let matrix = render::matrix(Door::table());
    assert!(matrix.contains("| door.pushed | **open** * | _duplicate_ | _late_ |"), "{matrix}");
    assert!(
        matrix.contains("| door.removed | _late_ | **shut** / **end** | _duplicate_ |"),
        "{matrix}"
    );
}
