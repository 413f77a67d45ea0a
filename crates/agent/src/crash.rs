//! Dying on purpose, so that tests and demonstrations can show what a death leaves behind; and going down with the
//! machine.

use tokio_util::sync::CancellationToken;

use crate::Error;

/// What the fault `crash` does to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrashMode {
    /// [`run`](crate::run) ends with [`Error::Crashed`], and nothing is tidied up: for many agents
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
    down: CancellationToken,
}

impl Crash {
    /// A death that has not happened.
    pub(crate) fn new(mode: CrashMode) -> Crash {
        Crash { mode, struck: CancellationToken::new(), down: CancellationToken::new() }
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

    /// Goes down with the machine. Whoever calls this does not go on.
    pub(crate) async fn go_down(&self) {
        self.down.cancel();
        std::future::pending::<()>().await;
    }

    /// Returns once it has happened, with what the agent ends with.
    pub(crate) async fn happened(&self) -> Error {
        tokio::select! {
            biased;
            () = self.struck.cancelled() => Error::Crashed,
            () = self.down.cancelled() => Error::Rebooting,
        }
    }
}
