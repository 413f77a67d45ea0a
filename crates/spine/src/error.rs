//! What can break on the way.

/// A fault of the spine. What a message means is never one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] store::Error),
    /// There is no workflow of that name.
    #[error("there is no workflow called {0:?}; it is missing from the table of workflows")]
    UnknownWorkflow(String),
    /// A state or a word could not be written as JSON.
    #[error("a workflow's state can't be written")]
    Unwritable(#[from] serde_json::Error),
    /// A part that runs until it is stopped has ended by itself, or panicked.
    #[error("{part} has {how}, though nobody stopped it")]
    Ended {
        /// Which.
        part: String,
        /// In a word.
        how: &'static str,
    },
    /// The broker or the engine that a process was told to use can't be reached, or does not do what it is asked.
    #[error("{engine} failed")]
    Engine {
        /// Which.
        engine: &'static str,
        /// What broke.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A timer's work failed.
    #[error("the timer {timer} failed")]
    Timer {
        /// Which.
        timer: &'static str,
        /// What broke.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// An error with all its causes, for a log.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
