//! `make bench`: what the product costs, as ratios of what Postgres itself does in the same run where there is such a thing.
//! One JSON line a figure; the exit code says whether every figure that must be met is.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the figures are its product")]

mod agents;
mod beside;
mod charging;
mod client;
mod crashes;
mod create;
mod crowd;
mod falls;
mod figure;
mod flat;
mod fleet;
mod footprint;
mod load;
mod machine;
mod null;
mod open;
mod outbox;
mod overload;
mod packing;
mod peer;
mod peers;
mod product;
mod raw;
mod reconnect;
mod recovery;
mod release;
mod replicas;
mod scaled;
mod stage;
mod stories;
mod table;
mod writer;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use store::cluster::{Cluster, Durability};

use figure::Figure;
use stories::Line;

/// How long and how often.
#[derive(Clone, Copy)]
struct Plan {
    /// Whether nobody has time.
    quick: bool,
    rounds: usize,
    round: Duration,
    /// Allocations that come and go.
    runs: usize,
    agents: usize,
    /// Of a storm.
    requests: usize,
    /// Of billing, beside which people ask.
    minutes: usize,
}

const QUICK: Plan = Plan {
    quick: true,
    rounds: 3,
    round: Duration::from_secs(1),
    runs: 50,
    agents: 200,
    requests: 2_000,
    minutes: 1,
};

const FULL: Plan = Plan {
    quick: false,
    rounds: 3,
    round: Duration::from_secs(4),
    runs: 500,
    agents: 10_000,
    requests: 10_000,
    minutes: 5,
};

/// A part of a run, and the goals that it measures.
struct Part {
    name: &'static str,
    goals: &'static [&'static str],
    when: When,
}

/// Which runs have a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// Those that have time.
    Full,
    /// Those that are asked for what others have made: it is installed, and takes minutes to start.
    Peers,
}

const fn part(name: &'static str, goals: &'static [&'static str], quick: bool) -> Part {
    Part { name, goals, when: if quick { When::Always } else { When::Full } }
}

const fn peer(name: &'static str, goals: &'static [&'static str]) -> Part {
    Part { name, goals, when: When::Peers }
}

/// All of them, in their order: those that take longest are the last.
const PARTS: &[Part] = &[
    part("create", &["P1", "P2", "P3"], true),
    part("writer", &["P8"], true),
    part("to_active", &["P12"], true),
    part("release", &["P7"], false),
    part("outbox", &["P13"], false),
    part("charging", &["P14", "P15"], true),
    part("recovery", &["P21"], false),
    part("footprint", &["P20"], true),
    peer("placement", &["P4"]),
    peer("slurm", &["P5"]),
    peer("queue", &["P9"]),
    peer("temporal", &["P12"]),
    peer("restate", &["P12"]),
    part("packing", &[], false),
    part("replicas", &["P9"], false),
    part("overload", &["R34"], false),
    part("flat", &["P6"], false),
    part("beside", &["P16"], false),
    part("agents", &["P9", "P10", "P11", "P17", "P18"], false),
    part("reconnect", &["P19"], false),
    part("storm", &[], false),
];

/// What a run has come to.
#[derive(Default)]
struct Report {
    figures: Vec<Figure>,
    /// Goals that could not be measured, and why.
    failed: Vec<(&'static str, String)>,
    missed: bool,
}

fn main() -> ExitCode {
    let quick = is_asked("QUICK");
    match run(if quick { QUICK } else { FULL }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_asked(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

fn given(name: &str, default: u32) -> anyhow::Result<u32> {
    std::env::var(name).map_or(Ok(default), |text| text.parse().with_context(|| name.to_owned()))
}

/// All of it, or only the parts that ONLY names, with commas between them; `every` is each of them, however little time there is.
fn run(mut plan: Plan) -> anyhow::Result<bool> {
    plan.agents = usize::try_from(given("AGENTS", u32::try_from(plan.agents)?)?)?;
    let only = std::env::var("ONLY").unwrap_or_default();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if let Some(path) = fleet::crew() {
        runtime.block_on(fleet::run(&path))?;
        return Ok(true);
    }
    if let Some(path) = crowd::order() {
        println!("{}", runtime.block_on(crowd::run(&path))?);
        return Ok(true);
    }
    if let Some(line) = long(&runtime, &only)? {
        println!("{}", line.text);
        return Ok(line.met);
    }
    let wanted = |part: &&Part| match (only.as_str(), part.when) {
        ("", When::Always) => true,
        ("", When::Full) => !plan.quick,
        ("", When::Peers) => is_asked("PEERS"),
        ("every", When::Always | When::Full | When::Peers) => true,
        (only, When::Always | When::Full | When::Peers) => {
            only.split(',').any(|one| one == part.name)
        }
    };
    let parts: Vec<&Part> = PARTS.iter().filter(wanted).collect();
    anyhow::ensure!(!parts.is_empty(), "there is no part {only}");
    let mut report = Report::default();
    for part in parts {
        eprintln!("== {}", part.name);
        if let Err(error) = take(&runtime, part, plan, &mut report) {
            // The others are worth knowing nevertheless.
            eprintln!("{}: {error:#}", part.name);
            report.missed = true;
            for goal in part.goals {
                let why = format!("{error:#}");
                println!("{}", json!({ "goal": goal, "part": part.name, "not_measured": why }));
                report.failed.push((goal, why));
            }
        }
        // After every part: a run that is broken off has said what it knows.
        if let Some(path) = std::env::var_os("TABLE") {
            table::write(path.as_ref(), &report)?;
        }
    }
    Ok(!report.missed)
}

/// The runs that take minutes, and so are only for who asks for them.
fn long(runtime: &tokio::runtime::Runtime, only: &str) -> anyhow::Result<Option<Line>> {
    let seed = u64::from(given("SEED", std::process::id())?);
    // Whoever asks for a number of crashes wants nothing else.
    if let Ok(kills) = std::env::var("CRASHES") {
        return Ok(Some(runtime.block_on(crashes::run(kills.parse()?))?));
    }
    Ok(match only {
        "scaled" => {
            let minutes = u64::from(given("MINUTES", 10)?);
            Some(runtime.block_on(scaled::run(minutes, seed))?)
        }
        "falls" => Some(runtime.block_on(falls::run(given("FALLS", 40)?, seed))?),
        _ => None,
    })
}

/// Takes one part, and says its figures.
fn take(
    runtime: &tokio::runtime::Runtime,
    part: &Part,
    plan: Plan,
    report: &mut Report,
) -> anyhow::Result<()> {
    let lines = match part.name {
        "storm" => runtime.block_on(Box::pin(stories::storms(plan.requests)))?,
        "packing" => {
            let seed = u64::from(given("SEED", 1)?);
            runtime.block_on(Box::pin(packing::run(plan.quick, seed)))?
        }
        _ => Vec::new(),
    };
    for line in &lines {
        println!("{}", line.text);
        report.missed |= !line.met;
    }
    if !lines.is_empty() {
        return Ok(());
    }
    for figure in runtime.block_on(Box::pin(figures(part.name, plan)))? {
        println!("{}", figure.line());
        report.missed |= !figure.is_met();
        report.figures.push(figure);
    }
    Ok(())
}

async fn figures(part: &str, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    match part {
        "create" => Box::pin(create::figures(plan)).await,
        "flat" => Box::pin(flat::figures(plan)).await,
        "recovery" => Box::pin(recovery::figures(plan)).await,
        "release" => Box::pin(release::figures(plan)).await,
        "writer" => on_a_cluster(async |cluster| writer::figures(cluster, plan).await).await,
        "to_active" => Box::pin(stories::figures(plan)).await,
        "outbox" => Box::pin(outbox::figures(plan)).await,
        "charging" => on_a_cluster(async |cluster| charging::figures(cluster, plan).await).await,
        "beside" => Box::pin(beside::figures(plan)).await,
        "agents" => Box::pin(agents::figures(plan)).await,
        "replicas" => Box::pin(replicas::figures(plan)).await,
        "reconnect" => Box::pin(reconnect::figures(plan)).await,
        "overload" => Box::pin(overload::figures(plan)).await,
        "footprint" => Box::pin(footprint::figures(plan)).await,
        "placement" => on_a_cluster(async |theirs| peers::placement(theirs, plan).await).await,
        "slurm" => Box::pin(peers::slurm(plan)).await,
        "queue" => on_a_cluster(async |theirs| peers::queue(theirs, plan).await).await,
        "temporal" => Box::pin(peers::temporal(plan)).await,
        "restate" => Box::pin(peers::restate(plan)).await,
        other => anyhow::bail!("there is no part {other}"),
    }
}

/// Figures that are taken on a Postgres of their own, with durability on.
async fn on_a_cluster(
    take: impl AsyncFnOnce(&Cluster) -> anyhow::Result<Vec<Figure>>,
) -> anyhow::Result<Vec<Figure>> {
    let directory = std::env::temp_dir().join(format!("berth-bench-{}", std::process::id()));
    // What a killed run of the same number left is not ours to measure on.
    let _ = std::fs::remove_dir_all(&directory);
    let cluster = Cluster::start(&directory, Durability::Full)?;
    let figures = Box::pin(take(&cluster)).await;
    drop(cluster);
    let _ = std::fs::remove_dir_all(&directory);
    figures
}
