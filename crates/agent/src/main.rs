//! The agent of one node, as a process.

use std::error::Error as _;
use std::process::ExitCode;

use agent::{Arguments, Config};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Runs one node of Berth: dials out to the control plane, and does the tasks it has signed.
#[derive(Parser)]
#[command(name = "berth-agent", version)]
struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    let config = Command::parse().arguments.config();
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(cause, "{error}");
            ExitCode::FAILURE
        }
    }
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
