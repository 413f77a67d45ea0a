//! The engines in Postgres itself, held to what every engine does.

mod bus {
    conformance::bus_conformance!(postgres by conformance::bed::postgres);
}
mod bus_failures {
    conformance::bus_failures!(postgres by conformance::bed::postgres);
}
mod workflows {
    conformance::workflow_conformance!(embedded by conformance::bed::embedded);
}
mod workflow_faults {
    conformance::workflow_faults!(embedded by conformance::bed::embedded);
}
mod alone {
    conformance::held_to!(embedded by conformance::bed::embedded: workflow_faults:
        what_a_dead_process_had_in_hand_is_taken_over_at_once_by_one_that_is_alone,
    );
}
