//! What one machine does: the agent of a node, the migration of a database, the completions of a shell.

use std::path::PathBuf;

use agent::{Config, CrashMode, SimulatedConfig};
use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::cli;
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::up::{log, signals};

/// `berth agent`
#[derive(Args)]
pub(crate) struct Agent {
    /// Where the agent keeps its key, its journal and everything else
    #[arg(long, default_value = "/var/lib/berth-agent")]
    directory: PathBuf,
    /// The join token; needed once, and not looked at again
    #[arg(long, env = "BERTH_JOIN", value_name = "TOKEN")]
    join: Option<String>,
    /// How many GPUs the simulated machine has
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i16).range(0..=1024))]
    gpus: i16,
    /// Over how many NUMA nodes they are spread
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i16).range(1..=64))]
    numa: i16,
    /// Their model
    #[arg(long, default_value = "H100-SXM-80GB")]
    model: String,
    /// An image the simulated machine has; may be repeated
    #[arg(long = "image", value_name = "NAME=SHA256", value_parser = image)]
    images: Vec<(String, String)>,
    /// What the simulated machine's durations are multiplied by; 0 is at once
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// What the simulated machine's durations and chance follow from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The host that tenants are sent to
    #[arg(long, default_value = "localhost")]
    host: String,
}

fn image(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, sum)| !name.is_empty() && sum.len() == 64);
    let (name, sum) = parts.ok_or("write it as name=sha256, with 64 hexadecimal digits")?;
    Ok((name.to_owned(), sum.to_owned()))
}

/// A factor for durations.
pub(crate) fn speed(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed >= 0.0);
    number.ok_or_else(|| "write a number that is not negative".to_owned())
}

impl Agent {
    pub(crate) fn run(self) -> Done {
        log::to_stderr();
        let machine = SimulatedConfig {
            images: self.images,
            speed: self.speed,
            seed: self.seed,
            host: self.host,
            ..SimulatedConfig::with_gpus(self.gpus, self.numa, &self.model)
        };
        let config = Config {
            join: self.join,
            crash: CrashMode::Abort,
            ..Config::simulated(self.directory, machine)
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let signals = signals::Signals::listen()?;
            let agent = agent::run(config, stop.clone());
            tokio::pin!(agent);
            let ended = tokio::select! {
                ended = &mut agent => ended,
                () = signals.first(&stop) => {
                    tracing::info!("stopping; work under way goes on with the next start");
                    agent.await
                }
            };
            ended.map_err(Failure::from)
        })
    }
}

/// `berth migrate`
#[derive(Args)]
pub(crate) struct Migrate {
    /// Which database
    #[arg(long, env = "DATABASE_URL", value_name = "URL")]
    database: String,
}

impl Migrate {
    pub(crate) async fn run(self) -> Done {
        Store::migrate(&self.database).await.context("the database was not migrated")?;
        say::note("The database is as this binary needs it.");
        Ok(())
    }
}

/// `berth completions`
#[derive(Args)]
pub(crate) struct Completions {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Done {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "berth", &mut script);
        let script =
            String::from_utf8(script).map_err(|_| Failure::new(Exit::Failed, "it is no text"))?;
        say::data(script.trim_end())
    }
}
