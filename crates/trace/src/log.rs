//! The lines of the log, with the ids of the span they were written in: JSON for programs, text for people.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, Full, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A JSON object, for programs.
    Json,
    /// Text, for people.
    Text,
}

/// A line of that format, and the ids at its end.
pub(crate) struct Lines<F>(F);

impl Lines<format::Format<Json>> {
    pub(crate) fn json() -> Self {
        Lines(format::format().json())
    }
}

impl Lines<format::Format<Full>> {
    pub(crate) fn text() -> Self {
        Lines(format::format())
    }
}

impl<S, N, F> FormatEvent<S, N> for Lines<F>
where
    F: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(at) = crate::entered() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        let (trace_id, span_id) = (at.trace_id(), at.span_id());
        let line = line.trim_end();
        match line.strip_suffix('}').filter(|_| line.starts_with('{')) {
            Some(open) => {
                writeln!(writer, r#"{open},"trace_id":"{trace_id}","span_id":"{span_id}"}}"#)
            }
            None => writeln!(writer, "{line} trace_id={trace_id} span_id={span_id}"),
        }
    }
}
