//! The tables, literally: whoever changes a cell, a check, a guard or a stamp changes it here as
//! well.

use examples::{environment_v1, environment_v2, tables, thread_v1, thread_v2};
use lifecycle::{Cell, Lawful, Set, StampEntry, Table, Why};

const THREAD_V1: &str = "
event                   created      provisioning idle         active error
turn.started            active*      active       active       dup    active
turn.completed          idle*        idle*        dup          idle   idle
turn.failed             error        error        error*       error  dup
turn.interrupted        idle         idle         dup          idle   idle
runtime.exited          error        error        error*       error  dup
turn.dispatched         late         late         active       dup    active*
reprovision.started     late         dup          provisioning late   provisioning*
start.succeeded         active       active       active       dup    active
command.failed          error        error        error        error  dup
provision.failed        error*       error        error*       error* dup
workspace.lost          error        error        error        error  dup
stop.completed          idle*        idle         dup          idle   late
session.lost            error        error        late         error  dup
runtime.observed-active active       active       active       dup    active
";

const ENVIRONMENT_V1: &str = "
event               provisioning ready        error        destroying      destroyed
provision.requested dup          provisioning provisioning provisioning*   provisioning*
provision.succeeded ready        dup          ready*       ready*          ready*
provision.failed    error        error*       dup          error*          late
provision.cancelled ready/error  bug          bug          bug             bug
destroy.dispatched  late         destroying   late         dup             late
destroy.succeeded   late         late         late         destroyed       dup
destroy.failed      late         late         late         ready/error     late
destroy.lost        late         late         late         ready/destroyed late
cleanup.completed   late         destroyed    destroyed    destroyed*      dup
";

const THREAD_V2: &str = "
event          idle     starting active   stopping error
run.preparing  starting late     late     late     starting
run.started    late     active   dup      late     late
run.succeeded  dup      idle     idle     idle     idle
run.failed     late     error    error    error    dup
stop.requested dup      stopping stopping dup      late
stop.settled   dup      bug      bug      idle     idle
";

const ENVIRONMENT_V2: &str = "
event               provisioning ready        error        retiring   destroying destroyed
provision.requested dup          provisioning provisioning late       late       late
provision.succeeded ready        dup          late         late       late       late
provision.failed    error        late         dup          late       late       late
provision.cancelled ready/error  late         late         late       late       late
retire.requested    late         retiring     retiring     dup        dup        dup
destroy.dispatched  late         late         late         destroying late       late
destroy.succeeded   late         late         destroyed    late       destroyed  dup
destroy.failed      late         late         late         dup        retiring   late
destroy.lost        late         late         dup          late       error      late
cleanup.completed   late         late         late         destroyed  late       dup
";

fn cell_text(table: &Table, event: usize, status: usize) -> String {
    let name = |number: usize| table.statuses[number].code;
    let star = if table.notes[event][status].is_some_and(|note| note.observed) { "*" } else { "" };
    match table.cells[event][status] {
        Cell::To(to) => format!("{}{star}", name(to)),
        Cell::ByFact { yes, no, check } => {
            assert_eq!(check.name, "workspacePathPresent");
            format!("{}/{}{star}", name(yes), name(no))
        }
        Cell::Absent(Why::Duplicate) => "dup".to_owned(),
        Cell::Absent(Why::Late) => "late".to_owned(),
        Cell::Absent(Why::Bug) => "bug".to_owned(),
        Cell::Undecided => "?".to_owned(),
    }
}

#[track_caller]
fn assert_copy(table: &Table, literal: &str) {
    let mut lines = literal.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let head: Vec<_> = table.statuses.iter().map(|status| status.code).collect();
    assert_eq!(lines.next().unwrap()[1..], head);
    for (event, entry) in table.events.iter().enumerate() {
        let cells = (0..head.len()).map(|status| cell_text(table, event, status));
        let line: Vec<_> = std::iter::once(entry.code.to_owned()).chain(cells).collect();
        assert_eq!(lines.next().unwrap(), line);
    }
    assert_eq!(lines.next(), None);
}

/// Cells that lead somewhere, edges, pairs.
fn size(table: &Table) -> (usize, usize, usize) {
    let cells = table.cells.iter().flatten().filter(|cell| !cell.targets().is_empty()).count();
    (cells, table.edges().len(), table.pairs().len())
}

/// What each event checks, in order; events that check nothing are left out.
fn checks(table: &Table) -> Vec<String> {
    let line = |event: &lifecycle::EventEntry| {
        let names: Vec<_> = event.checks.iter().map(|check| check.name).collect();
        (!names.is_empty()).then(|| format!("{}: {}", event.code, names.join(", ")))
    };
    table.events.iter().filter_map(line).collect()
}

fn guards(table: &Table) -> Vec<(&str, &str)> {
    let of = |event: &lifecycle::EventEntry| {
        let code = event.code;
        event.guards.iter().map(move |guard| (code, guard.0)).collect::<Vec<_>>()
    };
    table.events.iter().flat_map(of).collect()
}

fn stamp_text(table: &Table, stamp: &StampEntry) -> String {
    let set = match stamp.set {
        Set::Now => "now",
        Set::Field(field) => field.name,
        Set::Clear => "empty",
        Set::Raise => "+1",
    };
    let from: Vec<_> = stamp.from.iter().map(|from| table.statuses[*from].code).collect();
    let from = if from.is_empty() { String::new() } else { format!(" from {}", from.join("|")) };
    let when = stamp.when.map_or_else(String::new, |check| format!(" when {}", check.name));
    format!("{}={set}{from}{when}", stamp.column.name)
}

/// What each event and each status stamps, the moment of the move left out, which all but the
/// initial write.
fn stamps(table: &Table) -> Vec<String> {
    let of_events = table.events.iter().map(|event| (event.code, &event.stamps));
    let of_statuses = table.statuses.iter().map(|status| (status.code, &status.stamps));
    let mut lines = Vec::new();
    for (code, stamps) in of_events.chain(of_statuses) {
        let texts = stamps.iter().map(|stamp| stamp_text(table, stamp));
        lines.extend(texts.filter(|s| s != "updated_at=now").map(|s| format!("{code}: {s}")));
    }
    lines
}

#[test]
fn the_first_thread_machine_has_fifty_of_seventy_cells_just_these() {
    let table = thread_v1::Thread::table();
    assert_copy(table, THREAD_V1);
    assert_eq!(size(table), (50, 50, 14));
    assert_eq!(table.statuses[table.initial].code, "created");
}

#[test]
fn the_first_environment_machine_has_nineteen_of_forty_five_cells_as_twenty_two_edges() {
    let table = environment_v1::Environment::table();
    assert_copy(table, ENVIRONMENT_V1);
    assert_eq!(size(table), (19, 22, 15));
    assert_eq!(table.statuses[table.initial].code, "provisioning");
}

#[test]
fn the_redesigned_thread_machine_has_thirteen_cells_and_the_one_that_had_to_come_back() {
    let table = thread_v2::Thread::table();
    assert_copy(table, THREAD_V2);
    assert_eq!(size(table).0, 13 + 1);
    assert_eq!(table.statuses[table.initial].code, "idle");
}

#[test]
fn the_redesigned_environment_machine_has_twelve_cells_and_the_late_proof() {
    let table = environment_v2::Environment::table();
    assert_copy(table, ENVIRONMENT_V2);
    assert_eq!(size(table).0, 12 + 1);
    assert_eq!(table.statuses[table.initial].code, "provisioning");
}

#[test]
fn the_columns_of_cells_add_up_as_counted_in_the_first_machines() {
    let count = |table: &Table| -> Vec<usize> {
        let led = |s: usize| table.cells.iter().filter(|row| !row[s].targets().is_empty()).count();
        (0..table.statuses.len()).map(led).collect()
    };
    assert_eq!(count(thread_v1::Thread::table()), [12, 12, 10, 9, 7]);
    assert_eq!(count(environment_v1::Environment::table()), [3, 4, 3, 7, 2]);
}

#[test]
fn nothing_enters_created_and_nothing_stands_still() {
    let table = thread_v1::Thread::table();
    let created = table.status("created").unwrap();
    assert!(table.edges().iter().all(|(_, _, to)| *to != created));
    for table in tables() {
        assert!(table.edges().iter().all(|(_, from, to)| from != to), "{}", table.name);
    }
}

#[test]
fn the_first_machines_check_just_this_in_this_order() {
    assert_eq!(
        checks(thread_v1::Thread::table()),
        [
            "turn.started: notStopRequested",
            "turn.failed: notStopRequested",
            "runtime.exited: notStopRequested",
            "start.succeeded: notDeleted, notArchived, notStopRequested",
            "command.failed: notDeleted",
            "provision.failed: notDeleted",
            "workspace.lost: notDeleted, notArchived",
            "runtime.observed-active: notDeleted, notStopRequested",
        ]
    );
    assert_eq!(
        checks(environment_v1::Environment::table()),
        [
            "destroy.dispatched: managed, cleanupRequested, workspacePathPresent",
            "destroy.failed: matchingDestroyAttempt",
            "destroy.lost: cleanupRequested",
            "cleanup.completed: managed, cleanupRequested, workspacePathAbsent",
        ]
    );
}

#[test]
fn the_redesigned_machines_check_just_this_in_this_order() {
    assert_eq!(
        checks(thread_v2::Thread::table()),
        [
            "run.preparing: notDeleted, notArchived",
            "run.started: same_operation",
            "run.succeeded: same_operation",
            "run.failed: same_operation",
            "stop.settled: same_operation",
        ]
    );
    assert_eq!(
        checks(environment_v2::Environment::table()),
        [
            "provision.succeeded: same_operation",
            "provision.failed: same_operation",
            "provision.cancelled: same_operation",
            "retire.requested: managed",
            "destroy.dispatched: workspacePathPresent",
            "destroy.succeeded: same_operation",
            "destroy.failed: same_operation",
            "destroy.lost: same_operation",
            "cleanup.completed: workspacePathAbsent",
        ]
    );
}

#[test]
fn only_the_claim_for_a_destroy_looks_at_other_rows() {
    assert!(guards(thread_v1::Thread::table()).is_empty());
    assert!(guards(thread_v2::Thread::table()).is_empty());
    assert_eq!(
        guards(environment_v1::Environment::table()),
        [("destroy.dispatched", "noLiveThread"), ("destroy.dispatched", "noPendingStop")]
    );
    assert_eq!(
        guards(environment_v2::Environment::table()),
        [("destroy.dispatched", "noLiveThread"), ("destroy.dispatched", "noStoppingThread")]
    );
}

#[test]
fn the_machines_stamp_just_these_columns() {
    assert_eq!(
        stamps(thread_v1::Thread::table()),
        [
            "idle: attention_at=now from active when rootThread",
            "error: attention_at=now from active|provisioning",
        ]
    );
    assert_eq!(
        stamps(environment_v1::Environment::table()),
        [
            "destroy.dispatched: destroy_attempt_id=destroy_attempt_id",
            "destroy.failed: destroy_attempt_id=empty",
            "destroy.lost: destroy_attempt_id=empty",
            "destroyed: destroy_attempt_id=empty",
            "destroyed: cleanup_requested_at=empty",
            "destroyed: cleanup_mode=empty",
        ]
    );
    assert_eq!(
        stamps(thread_v2::Thread::table()),
        [
            "run.preparing: operation_id=operation_id",
            "idle: attention_at=now from active when rootThread",
            "error: attention_at=now from active|starting",
        ]
    );
    assert_eq!(
        stamps(environment_v2::Environment::table()),
        [
            "provision.requested: operation_id=operation_id",
            "provision.succeeded: path=path",
            "destroy.dispatched: operation_id=operation_id",
            "provisioning: retiring_since=empty",
            "retiring: retiring_since=now from ready|error",
            "destroyed: path=empty",
            "destroyed: retiring_since=empty",
        ]
    );
}

#[test]
fn every_move_stamps_its_moment_and_is_published() {
    for table in tables() {
        for (_, _, to) in table.edges() {
            let status = &table.statuses[to];
            let moment = |stamp: &StampEntry| stamp_text(table, stamp) == "updated_at=now";
            assert!(status.stamps.iter().any(moment), "{} {}", table.name, status.code);
        }
        for event in &table.events {
            assert!(event.publishes[0].ends_with(".status-changed"), "{}", event.code);
        }
    }
    let table = environment_v1::Environment::table();
    let metadata = |event: &&lifecycle::EventEntry| event.publishes.len() == 2;
    let told: Vec<_> = table.events.iter().filter(metadata).map(|event| event.code).collect();
    assert_eq!(told, ["destroy.succeeded", "destroy.lost", "cleanup.completed"]);
}

#[test]
fn only_reports_with_a_field_are_checked_against_one() {
    for table in tables() {
        for event in &table.events {
            for field in event.checks.iter().filter_map(|check| check.field()) {
                assert!(event.carries.contains(&field), "{} {}", table.name, event.code);
            }
        }
    }
    let table = environment_v1::Environment::table();
    let carrying: Vec<_> =
        table.events.iter().filter(|e| !e.carries.is_empty()).map(|e| e.code).collect();
    assert_eq!(carrying, ["destroy.dispatched", "destroy.failed"]);
}

// An absent cell is a guarantee. These are the ones the redesign was made for.
#[test]
fn the_redesign_guarantees_what_must_not_happen_by_leaving_cells_out() {
    let absent = |table: &Table, event: &str, status: &str| {
        let cell = table.cells[table.event(event).unwrap()][table.status(status).unwrap()];
        matches!(cell, Cell::Absent(_))
    };
    let thread = thread_v2::Thread::table();
    assert!(absent(thread, "run.preparing", "stopping"), "no new work while stopping");
    assert!(absent(thread, "run.started", "stopping"), "a late start does not undo a stop");
    assert!(absent(thread, "run.started", "idle"), "what never was handed out does not run");
    assert!(
        absent(thread, "run.started", "error"),
        "a start does not undo a failure that overtook it"
    );
    let environment = environment_v2::Environment::table();
    for status in ["retiring", "destroying", "destroyed"] {
        assert!(absent(environment, "provision.requested", status), "no way back from {status}");
        assert!(absent(environment, "provision.succeeded", status), "nothing revives {status}");
    }
    assert!(
        absent(environment, "provision.failed", "ready"),
        "a late failure leaves a settled one alone"
    );
    assert!(absent(environment, "destroy.dispatched", "ready"), "nothing is destroyed unasked");
}
