//! What an agent is told on a command line; shared by every program that runs one.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{Config, CrashMode, SimulatedConfig};

/// See the module.
#[derive(Args, Clone)]
pub struct Arguments {
    /// Where the agent keeps its key, its journal and everything else.
    #[arg(long, default_value = "/var/lib/berth-agent")]
    pub directory: PathBuf,

    /// The join token; needed once, and not looked at again.
    #[arg(long, env = "BERTH_JOIN", hide_env_values = true)]
    pub join: Option<String>,

    /// What touches the machine.
    #[arg(long, value_enum, default_value_t = Driver::Simulated)]
    pub driver: Driver,

    /// How many GPUs the simulated machine has.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(i16).range(0..=1024))]
    pub gpus: i16,

    /// Over how many NUMA nodes they are spread.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i16).range(1..=64))]
    pub numa: i16,

    /// Their model.
    #[arg(long, default_value = "H100-SXM-80GB")]
    pub model: String,

    /// An image the simulated machine has; may be repeated.
    #[arg(long = "image", value_name = "NAME=SHA256", value_parser = image)]
    pub images: Vec<(String, String)>,

    /// What the simulated machine's durations are multiplied by; 0 is at once.
    #[arg(long, default_value_t = 1.0, value_parser = speed)]
    pub speed: f64,

    /// What the simulated machine's durations and chance follow from.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// The host that tenants are sent to.
    #[arg(long, default_value = "localhost")]
    pub host: String,
}

/// What touches the machine.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Driver {
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

/// A factor for durations.
///
/// # Errors
/// What to write instead.
pub fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed >= 0.0 => Ok(speed),
        _ => Err("write a number that is not negative".to_owned()),
    }
}

impl Arguments {
    /// What they come to. A crash that is ordered ends the process.
    pub fn config(self) -> Config {
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
