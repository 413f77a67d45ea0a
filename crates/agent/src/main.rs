//! The agent of one node, as a process.

use std::error::Error as _;
use std::path::PathBuf;
use std::process::ExitCode;

use agent::{Config, CrashMode, SimulatedConfig};
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Runs one node of Berth: dials out to the control plane, and does the tasks it has signed.
#[derive(Parser)]
#[command(name = "berth-agent", version)]
struct Arguments {
    /// Where the agent keeps its key, its journal and everything else.
    #[arg(long, default_value = "/var/lib/berth-agent")]
    directory: PathBuf,

    /// The join token; needed once, and not looked at again.
    #[arg(long, env = "BERTH_JOIN", hide_env_values = true)]
    join: Option<String>,

    /// What touches the machine.
    #[arg(long, value_enum, default_value_t = Driver::Simulated)]
    driver: Driver,

    /// How many GPUs the simulated machine has.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i16).range(0..=1024))]
    gpus: i16,

    /// Over how many NUMA nodes they are spread.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i16).range(1..=64))]
    numa: i16,

    /// Their model.
    #[arg(long, default_value = "H100-SXM-80GB")]
    model: String,

    /// An image the simulated machine has; may be repeated.
    #[arg(long = "image", value_name = "NAME=SHA256", value_parser = image)]
    images: Vec<(String, String)>,

    /// What the simulated machine's durations are multiplied by; 0 is at once.
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    speed: f64,

    /// What the simulated machine's durations and chance follow from.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// The host that tenants are sent to.
    #[arg(long, default_value = "localhost")]
    host: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Driver {
    /// A machine that does not exist.
    Simulated,
}

fn image(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, sha256)) if sha256.len() == 64 && !name.is_empty() => {
            Ok((name.to_owned(), sha256.to_owned()))
        }
        _ => Err("write it as name=sha256, with 64 hexadecimal digits".to_owned()),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed >= 0.0 => Ok(speed),
        _ => Err("write a number that is not negative".to_owned()),
    }
}

impl Arguments {
    fn config(self) -> Config {
        let machine = match self.driver {
            Driver::Simulated => SimulatedConfig {
                images: self.images,
                speed: self.speed,
                seed: self.seed,
                host: self.host,
                ..SimulatedConfig::with_gpus(self.gpus, self.numa, &self.model)
            },
        };
        Config {
            join: self.join,
            crash: CrashMode::Abort,
            ..Config::simulated(self.directory, machine)
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    let config = Arguments::parse().config();
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
