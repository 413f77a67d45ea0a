//! The oracle sees everything: the true tables agree with the reference, and no mutant does.

use lifecycle::{
    Check, Column, Guard, Kind, Machine, Rule, Source, Stamp, StatusSpec, Table, Test, codes, on,
    parked, restful, terminal,
};
use proofs::mutation::{self, Mutation};
use proofs::reference::Reference;

#[test]
fn every_machine_is_what_the_reference_says() {
    for (table, reference) in mutation::pairs().unwrap() {
        assert_eq!(mutation::differences(table, &reference), Vec::<String>::new());
    }
}

#[test]
fn no_mutant_of_any_machine_passes_for_the_truth() {
    let mutation = mutation::prove().unwrap();
    println!("{}", mutation.figures());
    assert_eq!(mutation.survivors, Vec::<String>::new(), "these mutants survived");
    assert!(mutation.total() > 1_000, "only {} mutants", mutation.total());
}

codes! { enum Status { Idle = "idle", Busy = "busy", Kept = "kept", Gone = "gone" } }
codes! { enum Event { Began = "began", Ended = "ended", Swept = "swept" } }

const PATH: Column = Column::new("path", Kind::Text);
const STOPPED: Column = Column::new("stopped", Kind::Bool);
const CLEAN: Column = Column::new("clean", Kind::Bool);
const TRIES: Column = Column::new("tries", Kind::Int);
const TRIES_MAX: Column = Column::new("tries_max", Kind::Int);
const SEEN_AT: Column = Column::new("seen_at", Kind::Time);
const HAS_PATH: Check = Check::new("has_path", Test::Present(PATH));

/// A machine that uses every word there is, also those that no machine of the product uses.
#[derive(Clone, Copy)]
struct Workshop;

impl Machine for Workshop {
    type Status = Status;
    type Event = Event;
    const NAME: &'static str = "workshop";
    const INITIAL: Status = Status::Idle;
    const BORN: &'static [&'static str] = &["workshop.opened", "workshop.listed"];
    const STATUSES: &'static [StatusSpec<Status, Event>] = &[
        restful(Status::Idle, ""),
        parked(Status::Busy, Source::User, 5, ""),
        restful(Status::Kept, "").entering(
            Stamp::now(SEEN_AT)
                .coming_from(&[Status::Busy])
                .when(Check::new("unseen", Test::Null(SEEN_AT))),
        ),
        terminal(Status::Gone, ""),
    ];
    const RULES: &'static [Rule<Status, Event>] = &[
        on(Event::Began)
            .needs(Check::new("not_stopped", Test::NotTrue(STOPPED)))
            .needs(Check::new("tries_left", Test::Below(TRIES, TRIES_MAX)))
            .stamps(Stamp::raise(TRIES))
            .moves(&[Status::Idle, Status::Kept], Status::Busy)
            .duplicate_in(&[Status::Busy])
            .bug_in(&[Status::Gone]),
        on(Event::Ended)
            .same_operation()
            .moves_by(&[Status::Busy], HAS_PATH, Status::Kept, Status::Idle)
            .stamps(Stamp::clear(PATH).when(Check::new("is_clean", Test::True(CLEAN))))
            .publishes("workshop.ended")
            .moves(&[Status::Idle], Status::Kept)
            .late_in(&[Status::Kept, Status::Gone]),
        on(Event::Swept)
            .by(&[Source::Operator, Source::Timer])
            .guarded(Guard("nobody_inside"))
            .needs(Check::new("no_path", Test::Null(PATH)))
            .moves(&[Status::Idle, Status::Kept], Status::Gone)
            .late_in(&[Status::Busy])
            .duplicate_in(&[Status::Gone]),
    ];
}

const WORKSHOP: &str = "
machine workshop
facts   operation_id:id path:text stopped:bool clean:bool tries:int tries_max:int seen_at:time
born    idle workshop.opened workshop.listed
status idle restful
status busy parked user 5
status kept restful
status gone terminal
enter  kept seen_at = now from busy when unseen: seen_at is empty
matrix    idle busy      kept gone
row began busy D         busy B
row ended kept kept/idle L    L
row swept gone L         gone D
event began
  check not_stopped: stopped is not-true
  check tries_left: tries < tries_max
  stamp tries = one more
event ended
  carries operation_id
  settles
  check same_operation: operation_id = @operation_id
  fork  has_path: path is there
  stamp path = nothing when is_clean: clean is true
  publish workshop.ended
event swept
  by operator timer
  check no_path: path is empty
  guard nobody_inside
";

#[test]
fn the_oracle_knows_every_word_of_the_tables() {
    let (table, reference) = (Table::of::<Workshop>(), Reference::read(WORKSHOP).unwrap());
    let mut mutation = Mutation::default();
    mutation.try_machine(&table, &reference);
    assert_eq!(mutation.differences, Vec::<String>::new());
    assert_eq!(mutation.survivors, Vec::<String>::new(), "these mutants survived");
}

#[test]
fn a_reference_with_a_slip_of_the_pen_is_not_read() {
    for (line, problem) in [
        ("row began busy D busy", "every row needs a cell for every status"),
        ("row began busy D bussy B", "bussy is no status"),
        ("status busy parked user soon", "an owner and a number of seconds are missing"),
        ("  guards nobody_inside", "guards is not understood"),
        ("  by operator tmier", "tmier is no source"),
        ("  stamp tires = one more", "tires is no fact"),
    ] {
        let first = line.split_whitespace().take(if line.starts_with(' ') { 1 } else { 2 });
        let first: Vec<&str> = first.collect();
        let changed: Vec<&str> = WORKSHOP
            .lines()
            .map(|old| {
                let words: Vec<&str> = old.split_whitespace().collect();
                let key = if first[0] == "guards" { vec!["guard"] } else { first.clone() };
                if words.starts_with(&key) { line } else { old }
            })
            .collect();
        let text: &'static str = Box::leak(changed.join("\n").into_boxed_str());
        let error = Reference::read(text).unwrap_err();
        assert!(error.contains(problem), "{line}: {error}");
    }
}
