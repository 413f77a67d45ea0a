//! A process that exports nothing pays for no span.

use std::cell::Cell;

use trace::{Format, Process, TARGET};

#[test]
fn where_nothing_is_exported_a_span_is_never_made_and_its_words_are_not_put_together() {
    trace::start(Process { service: "test", log: "info" }, Format::Json, std::io::sink);
    let asked = Cell::new(false);
    let word = || {
        asked.set(true);
        "a word".to_owned()
    };
    let span = tracing::trace_span!(target: TARGET, "step", otel.name = word());
    assert!(span.is_disabled(), "nobody looks at it");
    assert!(!asked.get(), "what nobody looks at is not put together");
    trace::follow(&span, Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    let inside = span.in_scope(|| (trace::is_on(), trace::current()));
    assert_eq!(inside, (false, None), "nothing is kept with what follows");
    trace::finish();
}
