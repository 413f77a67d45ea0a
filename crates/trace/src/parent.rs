//! A place in a trace, as it travels: the `traceparent` of W3C's Trace Context.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};

/// How long one of version 00 is.
const CHARS: usize = 55;

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl Parent {
    /// The place that `text` names, if it is one.
    pub fn parse(text: &str) -> Option<Parent> {
        let bytes = text.as_bytes();
        // A newer version may say more behind what this one says.
        let ends = bytes.len() == CHARS || bytes.get(CHARS) == Some(&b'-');
        if !ends || (text.starts_with("00") && bytes.len() != CHARS) || text.starts_with("ff") {
            return None;
        }
        let mut parts = text.splitn(5, '-');
        let mut hex = |digits: usize| {
            let lower = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            parts.next().filter(|part| part.len() == digits && part.chars().all(lower))
        };
        let (_version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let parent = Parent {
            trace: TraceId::from_hex(trace).ok()?,
            span: SpanId::from_hex(span).ok()?,
            flags: TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED,
        };
        (parent.trace != TraceId::INVALID && parent.span != SpanId::INVALID).then_some(parent)
    }

    /// Where the work that is being done now stands.
    pub(crate) fn current() -> Option<Parent> {
        let (trace, span, flags) =
            crate::entered().map(|at| (at.trace_id(), at.span_id(), at.trace_flags()))?;
        Some(Parent { trace, span, flags: flags & TraceFlags::SAMPLED })
    }

    pub(crate) fn context(self) -> Context {
        let remote =
            SpanContext::new(self.trace, self.span, self.flags, true, TraceState::default());
        Context::new().with_remote_span_context(remote)
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, self.flags.to_u8())
    }
}

#[cfg(test)]
mod tests {
    use super::Parent;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_read_is_written_the_same() {
        for text in [GOOD, &GOOD.replace("-01", "-00")] {
            assert_eq!(Parent::parse(text).expect("it is one").to_string(), text);
        }
    }

    #[test]
    fn flags_and_versions_to_come_are_read_as_far_as_they_are_known() {
        let flags = Parent::parse(&GOOD.replace("-01", "-ff")).expect("it is one");
        assert_eq!(flags.to_string(), GOOD);
        let newer = format!("{}-more", GOOD.replacen("00", "01", 1));
        assert_eq!(Parent::parse(&newer).expect("it is one").to_string(), GOOD);
    }

    #[test]
    fn what_names_no_place_is_none() {
        let long = format!("{GOOD}-more");
        let zero = |from: usize, to: usize| {
            let mut text = GOOD.to_owned();
            text.replace_range(from..to, &"0".repeat(to - from));
            text
        };
        for bad in [
            "",
            "00",
            &GOOD.to_uppercase(),
            &long,
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replace('-', "_"),
            &GOOD.replacen("4b", "4é", 1),
            &zero(3, 35),
            &zero(36, 52),
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad:?}");
        }
    }
}
