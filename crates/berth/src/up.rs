//! `berth up`: Postgres, the control plane and simulated nodes in one process, or `--scaled` in many. Everything that must last
//! is in Postgres and in one folder, so that a start goes on where the last one ended, however that was.

pub(crate) mod detach;
pub(crate) mod down;
mod fleet;
mod install;
pub(crate) mod log;
pub(crate) mod place;
mod postgres;
mod report;
mod scaled;
pub(crate) mod signals;
pub(crate) mod status;
mod steps;
mod till;
mod whole;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use agent::arguments::speed;
use clap::Args;
use server::Limits;

use crate::exit::Done;
use place::Placed;
use postgres::Postgres;
use steps::Steps;

/// How long what still runs may take when everything else has ended.
const LEFTOVERS: Duration = Duration::from_secs(2);

/// `berth up`
#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    placed: Placed,
    /// Where people come in; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:7717", value_name = "ADDRESS")]
    api: SocketAddr,
    /// Where agents come in
    #[arg(long, default_value = "127.0.0.1:7718", value_name = "ADDRESS")]
    gateway: SocketAddr,
    /// Where people pay, with nothing: the payment sandbox; another port is taken when somebody has this one
    #[arg(long, default_value = "127.0.0.1:7719", value_name = "ADDRESS")]
    sandbox: SocketAddr,
    /// How many simulated nodes
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(..=500))]
    nodes: u16,
    /// What their durations are multiplied by: 1 is as slow as real machines, 0 is at once
    #[arg(long, default_value_t = 0.03, value_parser = speed)]
    speed: f64,
    /// How often a token may be used in a minute; 0 is as often as it likes
    #[arg(long, default_value_t = 600, value_name = "COUNT")]
    requests_per_minute: u32,
    /// Runs it as on many machines: NATS, Temporal, and two processes of each role
    #[arg(long)]
    scaled: bool,
    /// Goes on without the terminal once everything is there
    #[arg(long)]
    detach: bool,
    /// Uses this Postgres instead of one of its own
    #[arg(long, env = "DATABASE_URL", value_name = "URL")]
    database: Option<String>,
}

impl Up {
    /// Where its doors are, and what they let through.
    fn doors(&self) -> server::Config {
        let most = NonZeroU32::new(self.requests_per_minute).unwrap_or(NonZeroU32::MAX);
        let burst = NonZeroU32::new(most.get() / 3).unwrap_or(most);
        let limits = Limits { token_per_minute: most, token_burst: burst, ..Limits::default() };
        let mut doors = server::Config {
            api: Some(self.api),
            gateway: Some(self.gateway),
            limits,
            ..server::Config::default()
        };
        if self.requests_per_minute == 0 {
            doors.gateway_limits.enrolments_per_peer_per_minute = most;
        }
        doors
    }

    /// Runs until it is told to end.
    pub(crate) fn run(self) -> Done {
        let place = self.placed.place()?;
        place.prepare()?;
        let child = detach::is_child();
        if self.detach && !child {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            return runtime.block_on(detach::run(&place));
        }
        if child {
            detach::settle()?;
        }
        let taken = place.take()?;
        log::to_file(&place)?;
        // Whoever came first may have set it; either will do.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut steps = Steps::new(child);
        let postgres = match self.database {
            Some(_) => None,
            None => Some(Postgres::start(&place, &mut steps)?),
        };
        let url = match (&postgres, self.database.clone()) {
            (Some(postgres), _) => postgres.url().to_owned(),
            (None, given) => given.unwrap_or_default(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let ended = runtime.block_on(async {
            match self.scaled {
                true => scaled::run(&self, &url, &taken, &place, &mut steps).await,
                false => whole::run(&self, &url, &taken, &place, &mut steps).await,
            }
        });
        taken.retract();
        runtime.shutdown_timeout(LEFTOVERS);
        // Before the place is free: who waits for that finds everything told.
        trace::finish();
        if let Some(postgres) = postgres {
            postgres.stop(&mut steps);
        }
        ended.map_err(|failure| failure.with("log", place.log().display().to_string()))
    }
}
