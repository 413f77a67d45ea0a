//! How a process tells what it does: its log, and its part of one trace through all of them. A span is a
//! `tracing::trace_span!` with the target [`TARGET`]; where nothing is exported it costs one load of a flag.

mod log;
mod parent;
mod start;

use std::sync::OnceLock;
use std::time::SystemTime;

use opentelemetry::trace::{SpanKind, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

pub use log::Format;
pub use parent::Parent;
pub use start::{Process, finish, start};

/// What is exported, and nothing else is: no event of the log, and no span of a library.
pub const TARGET: &str = "berth::trace";

/// The header that carries a trace's context from one process to the next, as W3C names it.
pub const HEADER: &str = "traceparent";

struct Exporting {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

static EXPORTING: OnceLock<Exporting> = OnceLock::new();

/// Whether this process exports spans.
pub fn is_on() -> bool {
    EXPORTING.get().is_some()
}

/// Where the work that is being done now stands in its trace, to be kept with what follows from it. None outside any.
pub fn current() -> Option<String> {
    is_on().then(Parent::current)?.map(|parent| parent.to_string())
}

/// Makes a span that has not begun go on in the trace that `traceparent` names; one that can't be read is none.
pub fn follow(span: &tracing::Span, traceparent: Option<&str>) {
    if !is_on() || span.is_disabled() {
        return;
    }
    if let Some(parent) = traceparent.and_then(Parent::parse) {
        // A span that has begun keeps its parent: that would be a mistake of ours, and no reason to fail.
        let _ = span.set_parent(parent.context());
    }
}

/// Says something of the span that is entered. Ids and words of ours alone: never what a caller or a node has written.
pub fn note(key: &'static str, value: impl ToString) {
    if is_on() {
        Context::map_current(|context| {
            context.span().set_attribute(KeyValue::new(key, value.to_string()));
        });
    }
}

/// Something that was over before it could be told: it began at `since`, and ends now.
#[derive(Clone, Debug)]
pub struct Past<'a> {
    /// What it is called.
    pub name: String,
    /// The trace it belongs to.
    pub traceparent: &'a str,
    /// When it began.
    pub since: SystemTime,
    /// What there is to say of it.
    pub attributes: Vec<(&'static str, String)>,
}

/// Tells of something that was over before it could be told.
pub fn past(past: Past<'_>) {
    let (Some(exporting), Some(parent)) = (EXPORTING.get(), Parent::parse(past.traceparent)) else {
        return;
    };
    let attributes = past.attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
    let told = exporting.tracer.span_builder(past.name);
    let told = told.with_kind(SpanKind::Producer).with_start_time(past.since);
    let told = told.with_attributes(attributes);
    // Ends when it is dropped.
    let _ = exporting.tracer.build_with_context(told, &parent.context());
}

/// The ids of the span that is entered, if there is one.
fn entered() -> Option<opentelemetry::trace::SpanContext> {
    Context::map_current(|context| {
        let there = context.has_active_span().then(|| context.span().span_context().clone())?;
        there.is_valid().then_some(there)
    })
}
