//! The configuration of a process: what can be set, what is, and whether it would work here.

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use engines::nats::Nats;
use engines::temporal::Temporal;
use serde::Serialize;
use server::Server;
use store::{Options, Store};
use tokio::time::timeout;

use crate::cli::Json;
use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::settings::{Configured, Settings, Shown, keys};
use crate::table::Sheet;
use crate::words::{News, count, span};

/// How long the database may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// `berth config …`
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Shows every value with where it is from, and tries everything that a process would need
    #[command(
        after_help = "Example:\n  berth config check --config berth.toml --roles api,gateway"
    )]
    Check(Check),
    /// Lists every key with its default, its variable and what it means
    #[command(after_help = "Example:\n  berth config keys")]
    Keys(Json),
}

/// `berth config check`
#[derive(Args)]
pub(crate) struct Check {
    #[command(flatten)]
    configured: Configured,
    /// The roles to check for, instead of those that are configured
    #[arg(long, env = "BERTH_ROLES", value_name = "ROLES")]
    roles: Option<String>,
    #[command(flatten)]
    output: Json,
}

/// One thing that was tried.
#[derive(Serialize)]
struct Tried {
    what: &'static str,
    ok: bool,
    says: String,
}

#[derive(Serialize)]
struct Checked<'a> {
    ok: bool,
    values: &'a [Shown],
    notes: &'a [String],
    tried: &'a [Tried],
}

impl ConfigCommand {
    pub(crate) async fn run(self) -> Done {
        match self {
            ConfigCommand::Check(check) => check.run().await,
            ConfigCommand::Keys(json) => list(json),
        }
    }
}

impl Check {
    async fn run(self) -> Done {
        let settings = self.configured.settings(self.roles.as_deref())?;
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let tried = vec![
            database(&settings).await,
            nats(&settings).await,
            temporal(&settings).await,
            addresses(&settings).await,
        ];
        let wrong = tried.iter().filter(|each| !each.ok).count();
        if self.output.json {
            let (values, notes) = (&settings.shown[..], &settings.notes[..]);
            say::json(&Checked { ok: wrong == 0, values, notes, tried: &tried })?;
        } else {
            show(&settings, &tried)?;
        }
        if wrong == 0 {
            return Ok(());
        }
        let failure = Failure::new(Exit::Failed, format!("{} found", count(wrong, "obstacle")));
        let wrong = tried.into_iter().filter(|each| !each.ok);
        Err(wrong.fold(failure, |failure, each| failure.with(each.what, each.says)))
    }
}

fn show(settings: &Settings, tried: &[Tried]) -> Done {
    let mut sheet = Sheet::new(&["key", "value", "from"]);
    for Shown { key, value, from, .. } in &settings.shown {
        sheet.row([Cell::new(key), Sheet::text(value), Sheet::text(from)]);
    }
    sheet.show()?;
    for note in &settings.notes {
        say::note(format!("Note: {note}."));
    }
    say::data("")?;
    let mut sheet = Sheet::new(&["tried", "", "it says"]);
    for each in tried {
        let (word, news) = if each.ok { ("ok", News::Good) } else { ("no", News::Bad) };
        let word = sheet.status(word, news);
        sheet.row([Cell::new(each.what), word, Sheet::text(&each.says)]);
    }
    sheet.show()
}

fn list(Json { json }: Json) -> Done {
    if json {
        let all = keys::TABLE.iter().map(|key| {
            serde_json::json!({ "key": key.name, "default": key.default, "variable": key.variable(), "means": key.means })
        });
        return say::json(&all.collect::<Vec<_>>());
    }
    let mut sheet = Sheet::new(&["key", "default", "variable", "means"]);
    for key in keys::TABLE {
        let default = key.default.filter(|default| !default.is_empty()).unwrap_or("-");
        sheet.row([
            Cell::new(key.name),
            Cell::new(default),
            Cell::new(key.variable()),
            Cell::new(key.means),
        ]);
    }
    sheet.show()
}

fn fine(what: &'static str, says: impl Into<String>) -> Tried {
    Tried { what, ok: true, says: says.into() }
}

fn broken(what: &'static str, error: impl Into<anyhow::Error>) -> Tried {
    Tried { what, ok: false, says: format!("{:#}", error.into()) }
}

async fn database(settings: &Settings) -> Tried {
    const WHAT: &str = "database";
    let open =
        Store::open(&settings.database, Options { connections_max: 1, ..Options::default() });
    match timeout(ANSWER_MAX, open).await {
        Ok(Ok(store)) => {
            store.close().await;
            fine(WHAT, "it answers, and is migrated")
        }
        Ok(Err(error)) => broken(WHAT, error),
        Err(_) => broken(WHAT, anyhow::anyhow!("it does not answer within {}", span(ANSWER_MAX))),
    }
}

async fn nats(settings: &Settings) -> Tried {
    const WHAT: &str = "bus";
    let Some(options) = &settings.nats else { return fine(WHAT, "the database carries it") };
    match Nats::reach(options).await {
        Ok(()) => fine(WHAT, "NATS answers, and has JetStream"),
        Err(error) => broken(WHAT, error),
    }
}

async fn temporal(settings: &Settings) -> Tried {
    const WHAT: &str = "workflows";
    let Some(options) = &settings.temporal else { return fine(WHAT, "the database carries them") };
    match Temporal::new(options.clone()).reach().await {
        Ok(()) => {
            fine(WHAT, format!("Temporal answers, and has the namespace {}", options.namespace))
        }
        Err(error) => broken(WHAT, error),
    }
}

async fn addresses(settings: &Settings) -> Tried {
    const WHAT: &str = "addresses";
    match Server::bind(settings.doors).await {
        Ok(server) => {
            let all = [server.api_addr, server.gateway_addr, server.health_addr];
            let all: Vec<String> = all.into_iter().flatten().map(|each| each.to_string()).collect();
            let says = if all.is_empty() { "none is needed".to_owned() } else { all.join(", ") };
            fine(WHAT, says)
        }
        Err(error) => broken(WHAT, error),
    }
}
