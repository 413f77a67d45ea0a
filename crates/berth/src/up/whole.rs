//! All parts of one process, started in order and stopped in the opposite one: agents, doors, spine, store.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use control::allocation::view;
use control::policies::Policies;
use control::{Assembled, Ctx, assemble};
use server::Server;
use server::outside::destination::System;
use server::outside::webhooks::Webhooks;
use spine::Clock;
use store::{Options, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wire::http::PAGE_MAX;

use super::Up;
use super::fleet::{self, Fleet};
use super::install::{self, Installed};
use super::place::{Place, Running, Taken};
use super::report::Report;
use super::signals::Signals;
use super::steps::Steps;
use super::till::Till;
use crate::context;
use crate::exit::{Done, Exit, Failure};
use crate::moment::{Stopwatch, now, pause};
use crate::words::count;

/// How long nodes may take to come; what is there by then is said.
const ARRIVAL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// What runs, and how to end it.
#[derive(Default)]
struct Parts {
    agents: JoinSet<()>,
    agents_stop: CancellationToken,
    doors: JoinSet<Done>,
    doors_stop: CancellationToken,
    spine: JoinSet<Done>,
    spine_stop: CancellationToken,
    store: Option<Store>,
}

/// Starts everything, says so, and runs until a signal or until a part has ended.
pub(super) async fn run(
    up: &Up,
    url: &str,
    taken: &Taken,
    place: &Place,
    steps: &mut Steps,
) -> Done {
    let mut signals = Signals::listen()?;
    let mut parts = Parts::default();
    let ended = tokio::select! {
        biased;
        () = signals.next() => Err(Failure::new(Exit::Interrupted, "it was stopped before it was ready")),
        started = start(up, url, place, &mut parts, steps) => started,
    };
    let ended = match ended {
        Ok((running, report)) => {
            taken.announce(&running)?;
            steps.ready(&report);
            tracing::info!(api = running.api, gateway = running.gateway, "everything is up");
            tokio::select! {
                () = signals.next() => Ok(()),
                ended = parts.first_to_end() => ended,
            }
        }
        Err(failure) => {
            steps.failed();
            Err(failure)
        }
    };
    taken.retract();
    tracing::info!("stopping");
    steps.pause();
    tokio::select! {
        () = parts.stop(steps) => {}
        // A second one is meant: Postgres and the journals of the agents lose nothing.
        () = signals.next() => std::process::exit(Exit::Interrupted as i32),
    }
    ended
}

async fn start(
    up: &Up,
    url: &str,
    place: &Place,
    parts: &mut Parts,
    steps: &mut Steps,
) -> Done<(Running, Report)> {
    steps.begin("Schema");
    Store::migrate(url).await.context("the database can't be migrated")?;
    let store = Store::open(url, Options::default()).await.context("the database can't be used")?;
    parts.store = Some(store.clone());
    steps.done("");
    steps.begin("Control plane");
    let Assembled { ctx, spine } = assemble(store, Clock::system(), Policies::default()).await?;
    // Somebody who tries it has their receiver on this machine.
    ctx.post.set(Arc::new(Webhooks::new(Arc::new(System), true)?));
    if up.database.is_none() {
        // The cluster is ours and the place is locked: nobody else is at work there.
        spine.take_over().await?;
    }
    let server = Server::bind(up.doors()).await.map_err(taken_port)?;
    let (api, gateway) =
        (server.api_addr.unwrap_or(up.api), server.gateway_addr.unwrap_or(up.gateway));
    let (api, gateway) = (reachable(api), reachable(gateway));
    let (api, gateway) = (format!("http://{api}"), format!("https://{gateway}"));
    let gateway = ctx.keys.gateway_url.get_or_init(|| gateway).clone();
    let till = Till::open(up.sandbox, &api).await?;
    let payments = till.said();
    ctx.payments.take_through(Arc::new(till.client()?));
    parts.doors.spawn(till.run(parts.doors_stop.clone()));
    let (doors_ctx, doors_stop) = (ctx.clone(), parts.doors_stop.clone());
    parts.doors.spawn(async move { Ok(server.run(doors_ctx, doors_stop).await?) });
    let spine_stop = parts.spine_stop.clone();
    parts.spine.spawn(async move { Ok(spine.run(spine_stop).await?) });
    steps.done("");
    steps.begin("Accounts");
    let installed = install::run(&ctx, place, &api).await?;
    steps.done("");
    let agents = (&mut parts.agents, &parts.agents_stop);
    let nodes = nodes(up, (&ctx, place, &installed), &gateway, agents, steps).await?;
    let running = Running {
        process: std::process::id(),
        api: api.clone(),
        gateway: gateway.clone(),
        since: now(),
    };
    let report = report(&ctx, place, installed, (api, gateway, nodes)).await?;
    Ok((running, Report { payments, ..report }))
}

/// Starts the simulated nodes, and waits until they are there, for a while; answers what is said of them.
pub(super) async fn nodes(
    up: &Up,
    (ctx, place, installed): (&Ctx, &Place, &Installed),
    gateway: &str,
    (agents, agents_stop): (&mut JoinSet<()>, &CancellationToken),
    steps: &mut Steps,
) -> Done<String> {
    steps.begin("Nodes");
    let (operator, ready) = (installed.operator.clone(), now());
    let fleet = Fleet {
        ctx: ctx.clone(),
        operator: operator.clone(),
        place: place.clone(),
        speed: up.speed,
        gateway: gateway.to_owned(),
    };
    let names = fleet.start(up.nodes, agents, agents_stop).await?;
    let watch = Stopwatch::start();
    let nodes = loop {
        let there = fleet::ready(ctx, &operator, &names, ready).await?;
        if there == names.len() || watch.elapsed() > ARRIVAL {
            break there;
        }
        steps.now(&format!("{there} of {} ready", names.len()));
        pause(LOOK).await;
    };
    steps.done(&format!("{nodes} of {} ready", names.len()));
    let simulated = count(nodes, "simulated node");
    Ok(match names.len() - nodes {
        0 => format!("{simulated} over mTLS"),
        missing => format!("{simulated} over mTLS ({missing} not heard of: see the log)"),
    })
}

pub(super) async fn report(
    ctx: &Ctx,
    place: &Place,
    installed: Installed,
    (api, gateway, nodes): (String, String, String),
) -> Done<Report> {
    let every = view::Filter::default();
    let had = view::list(ctx, &installed.demo, &every, Some(PAGE_MAX), None);
    let had = had.await.context("the allocations can't be read")?.items;
    let unused = |name: &String| had.iter().all(|allocation| allocation.name != *name);
    let name = (1..).map(|number| format!("try-{number}")).find(unused).unwrap_or_default();
    Ok(Report {
        api,
        gateway,
        nodes,
        payments: String::new(),
        folder: place.root().to_owned(),
        log: place.log(),
        credentials: place.credentials(),
        config: context::path()?,
        current: installed.current,
        name,
        usual: place.is_usual(),
        more: Vec::new(),
    })
}

/// Where somebody on this machine reaches what listens there.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let here = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        IpAddr::V4(_) | IpAddr::V6(_) => address.ip(),
    };
    SocketAddr::new(here, address.port())
}

fn taken_port(error: server::Error) -> Failure {
    let in_use = match &error {
        server::Error::Bind { source, .. } => source.kind() == std::io::ErrorKind::AddrInUse,
        server::Error::Gateway(_) | server::Error::Outside(_) => false,
    };
    let failure = Failure::from(error);
    if in_use {
        failure.with("advice", "something else listens there: give --api and --gateway other ports")
    } else {
        failure
    }
}

impl Parts {
    /// Waits until a part has ended that should not have.
    async fn first_to_end(&mut self) -> Done {
        let (part, ended) = tokio::select! {
            Some(ended) = self.doors.join_next() => ("the server", ended),
            Some(ended) = self.spine.join_next() => ("the spine", ended),
        };
        let why = match ended {
            Ok(Ok(())) => "by itself".to_owned(),
            Ok(Err(failure)) => failure.sentence,
            Err(error) => error.to_string(),
        };
        tracing::error!(part, why, "a part has ended");
        Err(Failure::new(Exit::Failed, format!("{part} has ended: {why}")))
    }

    /// Ends everything, in the order in which nobody misses anything.
    async fn stop(&mut self, steps: &mut Steps) {
        steps.begin("Stopping the agents");
        self.agents_stop.cancel();
        while self.agents.join_next().await.is_some() {}
        steps.done("");
        steps.begin("Stopping the control plane");
        self.doors_stop.cancel();
        while self.doors.join_next().await.is_some() {}
        self.spine_stop.cancel();
        while self.spine.join_next().await.is_some() {}
        if let Some(store) = self.store.take() {
            store.close().await;
        }
        steps.done("");
    }
}
