//! Why a command ends otherwise than well: a number that scripts may rely on, and everything a person needs to go on.

use wire::problem::{Problem, ProblemCode};

use crate::{say, table};

/// The exit codes. They never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It failed, for a reason that has no number of its own.
    Failed = 1,
    /// It was asked for in the wrong way.
    Usage = 2,
    /// Whoever was asked has said no.
    Declined = 3,
    /// Nobody knows who asks.
    NotAuthenticated = 4,
    /// There is no such thing.
    NotFound = 5,
    /// Not in its present status.
    Conflict = 6,
    /// There is none left.
    NoCapacity = 7,
    /// It can't be paid for.
    InsufficientBalance = 8,
    /// What was waited for did not come in time.
    TimedOut = 9,
    /// What was waited for will not come.
    EndedBadly = 10,
    /// Ctrl-C.
    Interrupted = 130,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The number.
    pub(crate) exit: Exit,
    /// What went wrong, in a sentence.
    pub(crate) sentence: String,
    /// More about it: a word, and what it says.
    pub(crate) lines: Vec<(String, String)>,
    /// Whether it may be otherwise in a moment, so that who waits goes on waiting.
    pub(crate) passing: bool,
    /// The code of the problem that it is, if it is one.
    pub(crate) code: Option<ProblemCode>,
}

/// The word before a command that is of use.
const TRY: &str = "try";

/// How a command ends.
pub(crate) type Done<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with nothing more to say yet.
    pub(crate) fn new(exit: Exit, sentence: impl Into<String>) -> Failure {
        Failure { exit, sentence: sentence.into(), lines: Vec::new(), passing: false, code: None }
    }

    /// The same, for something that may be otherwise in a moment.
    pub(crate) fn passing(self) -> Failure {
        Failure { passing: true, ..self }
    }

    /// The same, with one more line.
    pub(crate) fn with(mut self, word: &str, text: impl Into<String>) -> Failure {
        self.lines.push((word.to_owned(), text.into()));
        self
    }

    /// The same, with a command that is of use now, written without the name of the program.
    pub(crate) fn next(self, command: &str) -> Failure {
        let command = format!("{} {command}", say::program());
        self.with(TRY, command)
    }

    /// The same, with another command than the one it had.
    pub(crate) fn next_instead(mut self, command: &str) -> Failure {
        self.lines.retain(|(word, _)| word != TRY);
        self.next(command)
    }

    /// The same; if it is how something stands that was in the way, with the command that shows how it stands.
    pub(crate) fn look_at(self, command: &str) -> Failure {
        match self.code {
            Some(ProblemCode::Conflict | ProblemCode::NotFound) => self.next_instead(command),
            Some(_) | None => self,
        }
    }

    /// What a problem says, with the number that its code has.
    pub(crate) fn of_problem(problem: Problem) -> Failure {
        let mut failure = Failure::new(exit_of(problem.code.0), problem.detail);
        failure.code = Some(problem.code.0);
        failure = failure.with("advice", problem.advice);
        for fit in problem.would_fit {
            let gpus = if fit.gpus == 1 { "GPU" } else { "GPUs" };
            let fit = format!("{} {gpus} of {} in {}", fit.gpus, fit.sku, fit.region);
            failure = failure.with("would fit", fit);
        }
        for narrowed in problem.narrowed.iter().filter(|narrowed| narrowed.removed > 0) {
            failure = failure.with("not these", narrowed.sentence.clone());
        }
        for fault in problem.errors {
            failure = failure.with(&fault.pointer, fault.detail);
        }
        if let Some(id) = problem.request_id {
            failure = failure.with("request_id", id.to_string());
        }
        match next_of(problem.code.0) {
            Some(command) => failure.next(command),
            None => failure,
        }
    }

    /// Says it all on stderr.
    pub(crate) fn tell(&self) {
        let sentence = say::clean(&self.sentence);
        match self.exit {
            // Who said so themselves knows that it is no error.
            Exit::Declined | Exit::Interrupted => say::note(sentence),
            Exit::Failed
            | Exit::Usage
            | Exit::NotAuthenticated
            | Exit::NotFound
            | Exit::Conflict
            | Exit::NoCapacity
            | Exit::InsufficientBalance
            | Exit::TimedOut
            | Exit::EndedBadly => say::note(format!("{} {sentence}", say::alarm("error:"))),
        }
        let lines = table::lines_for_stderr(&self.lines);
        if !lines.is_empty() {
            say::note(lines);
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(Exit::Failed, format!("{:#}", error.into()))
    }
}

const fn exit_of(code: ProblemCode) -> Exit {
    match code {
        ProblemCode::Unauthenticated => Exit::NotAuthenticated,
        ProblemCode::BalanceDepleted | ProblemCode::SpendingCapReached => Exit::InsufficientBalance,
        ProblemCode::NotFound => Exit::NotFound,
        ProblemCode::SkuUnavailable => Exit::NoCapacity,
        ProblemCode::Conflict
        | ProblemCode::IdempotencyInFlight
        | ProblemCode::IdempotencyMismatch
        | ProblemCode::PreconditionFailed => Exit::Conflict,
        ProblemCode::Invalid => Exit::Usage,
        ProblemCode::BadRequest
        | ProblemCode::IdempotencyKeyMissing
        | ProblemCode::Forbidden
        | ProblemCode::MethodNotAllowed
        | ProblemCode::RequestTimeout
        | ProblemCode::BodyTooLarge
        | ProblemCode::UnsupportedMediaType
        | ProblemCode::HeadersTooLarge
        | ProblemCode::TooManyRequests
        | ProblemCode::Internal
        | ProblemCode::Unavailable => Exit::Failed,
    }
}

/// The command that helps with most problems of the sort.
const fn next_of(code: ProblemCode) -> Option<&'static str> {
    match code {
        ProblemCode::Unauthenticated => Some("login"),
        ProblemCode::Forbidden => Some("context list"),
        ProblemCode::NotFound | ProblemCode::Conflict => Some("alloc list"),
        ProblemCode::SkuUnavailable => Some("sku list"),
        ProblemCode::BalanceDepleted | ProblemCode::SpendingCapReached => Some("balance"),
        ProblemCode::Unavailable | ProblemCode::Internal => Some("status"),
        ProblemCode::BadRequest
        | ProblemCode::IdempotencyKeyMissing
        | ProblemCode::MethodNotAllowed
        | ProblemCode::RequestTimeout
        | ProblemCode::IdempotencyInFlight
        | ProblemCode::PreconditionFailed
        | ProblemCode::BodyTooLarge
        | ProblemCode::UnsupportedMediaType
        | ProblemCode::Invalid
        | ProblemCode::IdempotencyMismatch
        | ProblemCode::HeadersTooLarge
        | ProblemCode::TooManyRequests => Some("--help"),
    }
}
