//! Dying on purpose, so that tests and demonstrations can show what a death leaves behind.

use tokio_util::sync::CancellationToken;

/// What the fault `crash` does to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrashMode {
    /// [`run`](crate::run) ends with [`Error::Crashed`](crate::Error::Crashed), and nothing is tidied up: for many agents
    /// in one process.
    #[default]
    Return,
    /// The process kills itself with SIGKILL.
    Abort,
}

/// The death of one agent.
#[derive(Clone, Debug)]
pub(crate) struct Crash {
    mode: CrashMode,
    struck: CancellationToken,
}

impl Crash {
    /// A death that has not happened.
    pub(crate) fn new(mode: CrashMode) -> Crash {
        Crash { mode, struck: CancellationToken::new() }
    }

    /// Dies. Whoever calls this does not go on.
    pub(crate) async fn strike(&self) {
        match self.mode {
            CrashMode::Return => self.struck.cancel(),
            CrashMode::Abort => {
                let me = rustix::process::getpid();
                if let Err(error) = rustix::process::kill_process(me, rustix::process::Signal::KILL)
                {
                    tracing::error!(%error, "the process could not kill itself");
                }
            }
        }
        std::future::pending::<()>().await;
    }

    /// Returns once it has happened.
    pub(crate) async fn happened(&self) {
        self.struck.cancelled().await;
    }
}
