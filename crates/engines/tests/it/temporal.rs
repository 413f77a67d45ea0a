//! Workflows whose runs Temporal brings to those who step them.

mod suite {
    conformance::workflow_conformance!(temporal by crate::bed::temporal);
}
mod faults {
    // Not the one about a step that comes back after its lease: here nothing keeps the slow engine from taking the run again.
    conformance::held_to!(temporal by crate::bed::temporal: workflow_faults:
        a_step_that_fails_is_tried_again_with_the_same_word_further_and_further_apart,
        an_engine_survives_a_step_that_panics,
        a_run_whose_engine_died_is_taken_over_when_its_lease_is_over,
    );
}
