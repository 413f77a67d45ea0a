//! What stops the build, said at run time: every breach that [`lifecycle::lawful!`] can find. That it really does not
//! compile is shown by the `compile_fail` examples of the `examples` crate.

use lifecycle::shape::Shape;

/// One event from 0 to 1, which is terminal; nothing is wrong with it.
fn sound() -> Shape {
    Shape::new(2, 1, 0)
        .status(0, false)
        .status(1, true)
        .rule(0, false, false)
        .edge(0, 0, 1)
        .absence(0, 1)
}

#[test]
fn a_sound_machine_has_no_breach() {
    assert_eq!(sound().breach(), None);
    sound().assert_lawful();
}

#[test]
#[should_panic(expected = "a cell is decided twice")]
fn a_breach_stops_the_build_by_its_name() {
    sound().absence(0, 1).assert_lawful();
}

#[test]
fn every_breach_is_named() {
    let bare = || Shape::new(2, 1, 0).status(0, false).status(1, true);
    let ruled = || bare().rule(0, false, false);
    let undecided = "a cell is undecided: say where the event leads, or duplicate, late or bug";
    let unrecognised = "the result of an operation does not check which operation it answers";
    let breaches = [
        (Shape::new(2, 1, 0).status(0, false), "a status has no entry in STATUSES"),
        (sound().status(1, true), "a status has two entries in STATUSES"),
        (bare(), "an event has no rule"),
        (sound().rule(0, false, false), "an event has two rules"),
        (ruled().edge(0, 0, 1), undecided),
        (sound().edge(0, 1, 0), "a cell is decided twice"),
        (ruled().edge(0, 0, 0).absence(0, 1), "an event leads from a status to itself"),
        (
            ruled().edge(0, 0, 1).second_edge(0, 0, 0).absence(0, 1),
            "an event leads from a status to itself",
        ),
        (ruled().edge(0, 0, 1).edge(0, 1, 0), "a terminal status has an exit"),
        (ruled().absence(0, 0).absence(0, 1), "an event leads nowhere"),
        (
            Shape::new(2, 1, 1)
                .status(0, false)
                .status(1, false)
                .rule(0, false, false)
                .edge(0, 0, 1)
                .absence(0, 1),
            "a status can't be reached",
        ),
        (bare().rule(0, true, false).edge(0, 0, 1).absence(0, 1), unrecognised),
    ];
    for (shape, breach) in breaches {
        assert_eq!(shape.breach(), Some(breach));
    }
}

#[test]
fn an_observed_cell_may_leave_a_terminal_status() {
    let kept = Shape::new(2, 1, 0).status(0, false).status(1, true).rule(0, false, false);
    assert_eq!(kept.edge(0, 0, 1).edge(0, 1, 0).observed(0, 1).breach(), None);
}
