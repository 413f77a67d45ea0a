//! What a writer answers. A no-op is a value, never an error: errors are for things that are broken.

use std::fmt;

use crate::code::Code;
use crate::machine::Lawful;
use crate::rule::{Source, Why};

/// Why a report changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no such row.
    NotFound,
    /// A check says that a newer truth is in place.
    Superseded(&'static str),
    /// The matrix says that the event leads nowhere from here: late, or a bug.
    Illegal(Why),
    /// A condition on other rows does not hold. Asking again does not help until they change.
    Guard(&'static str),
    /// Somebody else was faster. Load again and report again.
    Conflict,
}

impl Reason {
    /// One word for counters and records.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::NotFound => "not_found",
            Reason::Superseded(_) => "superseded",
            Reason::Illegal(Why::Late) => "late",
            Reason::Illegal(Why::Bug) => "bug",
            Reason::Illegal(Why::Duplicate) => "duplicate",
            Reason::Guard(_) => "guard",
            Reason::Conflict => "conflict",
        }
    }

    /// The name of the check or guard behind it, if there is one.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Reason::Superseded(name) | Reason::Guard(name) => Some(name),
            Reason::NotFound | Reason::Illegal(_) | Reason::Conflict => None,
        }
    }
}

/// A report that changed nothing, and all there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal<S> {
    /// The machine.
    pub machine: &'static str,
    /// The event that was reported.
    pub event: &'static str,
    /// The status the row is in, where there is a row.
    pub status: Option<S>,
    /// Why.
    pub reason: Reason,
    /// Who said it without being one of those who may.
    pub stranger: Option<Source>,
}

impl<S: Code> Refusal<S> {
    /// The refusal of what `source` says of a row in `status`.
    pub fn new<M: Lawful<Status = S>>(
        event: M::Event,
        source: Source,
        status: Option<S>,
        reason: Reason,
    ) -> Self {
        let known = M::table().events[event.index()].may_be_reported_by(source);
        let stranger = (!known && status.is_some()).then_some(source);
        Self { machine: M::NAME, event: event.code(), status, reason, stranger }
    }
}

impl<S: Code> fmt::Display for Refusal<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { machine, event, status, reason, stranger } = self;
        let place = status.map_or_else(String::new, |status| format!(" in status {status}"));
        match reason {
            Reason::NotFound => write!(f, "{event}: there is no such {machine}"),
            Reason::Superseded(check) => {
                write!(f, "{event} is superseded for this {machine}{place}: {check} does not hold")
            }
            Reason::Illegal(Why::Late) => {
                write!(f, "{event} comes too late for this {machine}{place}")
            }
            Reason::Illegal(_) => match stranger {
                Some(source) => write!(
                    f,
                    "{event} may not be reported of this {machine} in the role of {source}"
                ),
                None => write!(f, "{event} must not be reported of this {machine}{place}"),
            },
            Reason::Guard(guard) => {
                write!(f, "{event} has to wait for this {machine}{place}: {guard} does not hold")
            }
            Reason::Conflict => {
                write!(f, "{event}: this {machine}{place} was changed by somebody else meanwhile")
            }
        }
    }
}

impl<S: Code> std::error::Error for Refusal<S> {}

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<S> {
    /// Its status.
    pub status: S,
    /// The number of its last transition; a birth is 1.
    pub seq: i64,
}

/// What became of a report.
#[must_use = "a report that changed nothing says so only here"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<S> {
    /// It moved the row.
    Applied {
        /// From here.
        from: S,
        /// To there.
        to: S,
        /// As transition number.
        seq: i64,
    },
    /// It was so already, or this very report was applied before. The row stands as it says.
    Duplicate(Standing<S>),
    /// It changed nothing.
    Refused(Refusal<S>),
}

impl<S: Code> Outcome<S> {
    /// Whether this report moved the row to `status`. What must be true together with a move hangs on this.
    pub fn landed_on(&self, status: S) -> bool {
        matches!(self, Outcome::Applied { to, .. } if *to == status)
    }

    /// Whether this report moved the row.
    pub fn is_applied(&self) -> bool {
        matches!(self, Outcome::Applied { .. })
    }

    /// The reason of a refusal.
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Outcome::Refused(refusal) => Some(&refusal.reason),
            Outcome::Applied { .. } | Outcome::Duplicate(_) => None,
        }
    }

    /// Whether the same report should be made again. To a broker, everything else is settled and acknowledged: a
    /// refusal that will never change must not block what is behind it.
    pub fn is_retryable(&self) -> bool {
        self.reason() == Some(&Reason::Conflict)
    }

    /// For a caller to whom a refusal is the requester's mistake. Saying again what is already so is none.
    ///
    /// # Errors
    /// The refusal, with everything there is to say about it.
    pub fn require(self) -> Result<Standing<S>, Refusal<S>> {
        match self {
            Outcome::Applied { to, seq, .. } => Ok(Standing { status: to, seq }),
            Outcome::Duplicate(standing) => Ok(standing),
            Outcome::Refused(refusal) => Err(refusal),
        }
    }
}
