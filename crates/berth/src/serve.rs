//! `berth serve`: one process of a scaled-out installation, with the roles it is given. It shares nothing with the others but
//! the database and what carries word of it, so that there may be any number of each, and any of them may die at any time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use control::policies::Policies;
use control::{Assembled, assemble};
use engines::nats::Nats;
use engines::temporal::Temporal;
use server::Server;
use server::outside::destination::System;
use server::outside::stripe::Stripe;
use server::outside::webhooks::Webhooks;
use spine::{Clock, Duties, Spine};
use store::{Options, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::exit::{Done, Exit, Failure};
use crate::settings::{Configured, Role, Settings};
use crate::up::log;
use crate::up::signals::Signals;

/// How long what still runs may take when everything else has ended.
const LEFTOVERS: Duration = Duration::from_secs(2);

/// `berth serve`
#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    configured: Configured,
    /// What this process does: api, gateway, relay, worker, billing, notifier; commas between them
    #[arg(long, env = "BERTH_ROLES", value_name = "ROLES")]
    roles: Option<String>,
}

impl Serve {
    /// Runs until it is told to end.
    pub(crate) fn run(self) -> Done {
        let settings = self.configured.settings(self.roles.as_deref())?;
        log::to_stderr_as(settings.log);
        // Whoever came first may have set it; either will do.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let ended = runtime.block_on(process(&settings));
        runtime.shutdown_timeout(LEFTOVERS);
        ended
    }
}

/// The parts of one process, until a signal or until one of them has ended.
async fn process(settings: &Settings) -> Done {
    let mut signals = Signals::listen()?;
    for note in &settings.notes {
        tracing::warn!(note, "about the configuration");
    }
    let started = tokio::select! {
        biased;
        () = signals.next() => return Err(Failure::new(Exit::Interrupted, "it was stopped before it was ready")),
        started = Parts::start(settings) => started?,
    };
    started.run(signals).await
}

/// What runs, and how to end it.
struct Parts {
    running: JoinSet<(&'static str, Done)>,
    doors_stop: CancellationToken,
    spine_stop: CancellationToken,
    store: Store,
}

impl Parts {
    async fn start(settings: &Settings) -> Done<Parts> {
        let options = Options { connections_max: settings.connections_max, ..Options::default() };
        let store = Store::open(&settings.database, options).await;
        let store = store
            .context("the database can't be used")
            .map_err(|error| Failure::from(error).next("config check"))?;
        let assembled = assemble(store.clone(), Clock::system(), Policies::default()).await?;
        let Assembled { ctx, mut spine } = assembled;
        if let Some(url) = &settings.gateway_url {
            ctx.keys.gateway_url.get_or_init(|| url.clone());
        }
        ctx.post.set(Arc::new(Webhooks::new(Arc::new(System), settings.webhooks_allow_private)?));
        if let Some(options) = settings.payments.clone() {
            let stripe = Stripe::new(options).context("Stripe can't be used")?;
            ctx.payments.take_through(Arc::new(stripe));
        }
        equip(&mut spine, settings).await?;
        let server = Server::bind(settings.doors).await.map_err(|error| {
            Failure::from(error).with(
                "advice",
                "something else listens there, or the address is not this machine's",
            )
        })?;
        let shown =
            |address: Option<std::net::SocketAddr>| address.map(|address| address.to_string());
        let roles: Vec<&str> = settings.roles.iter().map(|role| role.name()).collect();
        let (api, gateway) = (shown(server.api_addr), shown(server.gateway_addr));
        let health = shown(server.health_addr);
        let (doors_stop, spine_stop) = (CancellationToken::new(), CancellationToken::new());
        let mut running = JoinSet::new();
        let stop = doors_stop.clone();
        running.spawn(
            async move { ("the server", server.run(ctx, stop).await.map_err(Failure::from)) },
        );
        let stop = spine_stop.clone();
        running.spawn(async move { ("the spine", spine.run(stop).await.map_err(Failure::from)) });
        tracing::info!(roles = roles.join(","), api, gateway, health, "serving");
        Ok(Parts { running, doors_stop, spine_stop, store })
    }

    async fn run(mut self, mut signals: Signals) -> Done {
        let ended = tokio::select! {
            () = signals.next() => Ok(()),
            Some(ended) = self.running.join_next() => Err(failed(ended)),
        };
        tokio::select! {
            () = self.stop() => {}
            // A second one is meant: nothing that was answered is lost.
            () = signals.next() => std::process::exit(Exit::Interrupted as i32),
        }
        ended
    }

    /// Nobody comes in any more before what moves by itself is stopped: who is still inside may wait for it.
    async fn stop(&mut self) {
        tracing::info!("stopping");
        self.doors_stop.cancel();
        let mut first = self.running.join_next().await;
        self.spine_stop.cancel();
        while let Some(ended) = first {
            if let Ok((part, Err(failure))) = ended {
                tracing::warn!(part, why = failure.sentence, "a part did not end well");
            }
            first = self.running.join_next().await;
        }
        self.store.close().await;
        tracing::info!("stopped");
    }
}

fn failed(ended: Result<(&'static str, Done), tokio::task::JoinError>) -> Failure {
    let (part, why) = match ended {
        Ok((part, Ok(()))) => (part, "by itself".to_owned()),
        Ok((part, Err(failure))) => (part, failure.sentence),
        Err(error) => ("a part", error.to_string()),
    };
    tracing::error!(part, why, "a part has ended");
    Failure::new(Exit::Failed, format!("{part} has ended: {why}"))
}

/// Gives the spine its engines and its duties.
async fn equip(spine: &mut Spine, settings: &Settings) -> Done {
    let part = |role: Role, part: &'static [&'static str]| {
        part.iter().copied().filter(move |_| settings.has(role))
    };
    let billing = part(Role::Billing, control::doors::BILLING);
    let notifier = part(Role::Notifier, control::doors::NOTIFIER);
    spine.duties = Duties {
        relay: settings.has(Role::Relay),
        worker: settings.has(Role::Worker),
        parts: billing.chain(notifier).collect(),
    };
    // Who neither tells nor listens needs no connection.
    let Duties { relay, worker, parts } = &spine.duties;
    let busy = *relay || *worker || !parts.is_empty();
    if let Some(options) = settings.nats.clone().filter(|_| busy) {
        let nats = Nats::connect(options).await.context("NATS can't be used")?;
        spine.broker = Some(Arc::new(nats));
    }
    if let Some(options) = settings.temporal.clone().filter(|_| spine.duties.worker) {
        spine.driver = Some(Arc::new(Temporal::new(options)));
    }
    Ok(())
}
