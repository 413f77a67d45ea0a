//! What one machine does: the agent of a node, the migration of a database, the completions of a shell.

use agent::Arguments;
use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::cli;
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::settings::Configured;
use crate::up::{log, signals};

/// `berth agent`
#[derive(Args)]
pub(crate) struct Agent {
    #[command(flatten)]
    arguments: Arguments,
}

impl Agent {
    pub(crate) fn run(self) -> Done {
        log::to_stderr();
        let config = self.arguments.config();
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
    /// Which database, instead of the one that is configured
    #[arg(long, env = "DATABASE_URL", value_name = "URL")]
    database: Option<String>,
    #[command(flatten)]
    configured: Configured,
}

impl Migrate {
    pub(crate) async fn run(self) -> Done {
        let url = match self.database {
            Some(url) => url,
            // Its roles are all one to the database.
            None => self.configured.settings(Some("relay"))?.database,
        };
        Store::migrate(&url).await.context("the database was not migrated")?;
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
