//! The agent of one node, as a process.

use std::error::Error as _;
use std::process::ExitCode;

use agent::{Arguments, Config};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use trace::{Format, Process};

/// Runs one node of Berth: dials out to the control plane, and does the tasks it has signed.
#[derive(Parser)]
#[command(name = "berth-agent", version)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

#[tokio::main]
async fn main() -> ExitCode {
    let process = Process { service: "berth-agent", log: "info" };
    trace::start(process, Format::Json, std::io::stderr);
    let config = Command::parse().arguments.config();
    let ended = run(config).await;
    let code = match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(cause, "{error}");
            ExitCode::FAILURE
        }
    };
    // It waits for the collector, which is nothing for a thread of the runtime.
    let _ = tokio::task::spawn_blocking(trace::finish).await;
    code
}

async fn run(config: Config) -> Result<(), agent::Error> {
    let stop = CancellationToken::new();
    let path = config.directory.clone();
    let failed = |source| agent::Error::File { path, source };
    let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
    let agent = agent::run(config, stop.clone());
    tokio::pin!(agent);
    tokio::select! {
        ended = &mut agent => return ended,
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
    tracing::info!("stopping; work under way goes on with the next start");
    stop.cancel();
    agent.await
}
