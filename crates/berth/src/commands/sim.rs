//! What can be done to the simulated nodes of `berth up`: faults, written where their agents look before every phase, and
//! what an operator does by hand in front of a machine.

use std::path::PathBuf;

use agent::drivers::simulated;
use agent::faults::{self, Direction, Fault, FaultKind};
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use lifecycle::Code;
use wire::node::{FailureReason, Phase, TaskKind};

use crate::exit::{Done, Exit, Failure};
use crate::say;
use crate::up::place::Placed;
use crate::words::count;

/// `berth sim …`
#[derive(Subcommand)]
pub(crate) enum SimCommand {
    /// Makes something go wrong from now on
    #[command(after_help = "fail          the phase fails, with --reason or with its own\n\
            hang          the phase never ends\n\
            crash         the agent dies, before the phase or --after it; a task that kills three agents in one phase is given up\n\
            slow          the phase takes ten times as long\n\
            network_loss  the line is cut for --seconds, in both directions or in one\n\
            residue       a clean-up leaves traces behind\n\
            hard_stop     what is to be stopped has to be killed\n\
            no_return     a machine that reboots does not come back until `berth sim clear` switches it on\n\
            same_boot     a machine that reboots comes back in the same boot: it has not rebooted\n\n\
            Examples:\n  berth sim fault --node eu-1-h100-1 --fault fail --phase ssh_reachable --times 1\n  \
            berth sim fault --fault residue --times 2\n  \
            berth sim fault --node eu-1-metal-1 --fault no_return\n  \
            berth sim fault --fault network_loss --direction out --seconds 120 --phase vm_started")]
    Fault(FaultArgs),
    /// Lets all go well again, and switches machines on that did not come back
    #[command(after_help = "Example:\n  berth sim clear")]
    Clear(Nodes),
    /// Removes guests and traces of tenants by hand, as an operator does before a slot is cleared
    #[command(
        after_help = "Examples:\n  berth sim wipe eu-1-h100-1 --slot 3\n  berth sim wipe eu-1-metal-1"
    )]
    Wipe(WipeArgs),
    /// The faults that are left
    #[command(after_help = "Example:\n  berth sim list")]
    List(Nodes),
}

/// Which simulated nodes.
#[derive(Args)]
pub(crate) struct Nodes {
    /// The node, may be repeated; all of them when nobody says
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    #[command(flatten)]
    placed: Placed,
}

/// `berth sim wipe`
#[derive(Args)]
pub(crate) struct WipeArgs {
    /// The node
    #[arg(value_name = "NAME")]
    node: String,
    /// Only this slot, by its number; the whole machine when nobody says
    #[arg(long, value_name = "NUMBER")]
    slot: Option<i16>,
    #[command(flatten)]
    placed: Placed,
}

/// `berth sim fault`
#[derive(Args)]
pub(crate) struct FaultArgs {
    #[command(flatten)]
    nodes: Nodes,
    /// What goes wrong
    #[arg(long, value_parser = one_of::<FaultKind>())]
    fault: String,
    /// In which phase; in any when nobody says
    #[arg(long, value_parser = one_of::<Phase>())]
    phase: Option<String>,
    /// With which reason a phase fails; each phase has its own
    #[arg(long, value_parser = one_of::<FailureReason>())]
    reason: Option<String>,
    /// For which kind of task; for any when nobody says
    #[arg(long, value_parser = one_of::<TaskKind>())]
    kind: Option<String>,
    /// How often; for ever when nobody says
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    times: Option<u32>,
    /// How likely each time, from 0 to 1; always when nobody says
    #[arg(long, value_parser = probability)]
    probability: Option<f64>,
    /// For how many seconds the network is lost
    #[arg(long)]
    seconds: Option<u32>,
    /// Which half of the network is lost: what the agent says (out), or what it is answered (in); both when nobody says
    #[arg(long, value_parser = one_of::<Direction>())]
    direction: Option<String>,
    /// A crash strikes after the phase had its effect, instead of before it
    #[arg(long)]
    after: bool,
}

fn one_of<C: Code>() -> PossibleValuesParser {
    PossibleValuesParser::new(C::ALL.iter().map(|each| each.code()))
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "write a number from 0 to 1".to_owned())
}

impl SimCommand {
    pub(crate) fn run(self) -> Done {
        match self {
            SimCommand::Fault(args) => {
                let fault = args.fault()?;
                let directories = args.nodes.directories()?;
                for (_, directory) in &directories {
                    let mut all = faults::read(directory)?;
                    // What was used up is of no interest any more.
                    all.retain(|each| each.times != Some(0));
                    all.push(fault.clone());
                    faults::write(directory, &all)?;
                }
                say::note(format!("{} will see it.", count(directories.len(), "node")));
                Ok(())
            }
            SimCommand::Clear(nodes) => {
                let directories = nodes.directories()?;
                for (name, directory) in &directories {
                    faults::write(directory, &[])?;
                    if simulated::power_on(directory)? {
                        say::note(format!("{} is switched on.", say::clean(name)));
                    }
                }
                say::note(format!("All goes well again on {}.", count(directories.len(), "node")));
                Ok(())
            }
            SimCommand::Wipe(args) => args.run(),
            SimCommand::List(nodes) => {
                let mut left = serde_json::Map::new();
                for (name, directory) in nodes.directories()? {
                    let faults = faults::read(&directory)?;
                    left.insert(name, serde_json::to_value(faults).context("it is no JSON")?);
                }
                say::json(&left)
            }
        }
    }
}

impl WipeArgs {
    fn run(self) -> Done {
        let nodes = Nodes { nodes: vec![self.node], placed: self.placed };
        for (name, directory) in nodes.directories()? {
            let wiped = simulated::wipe(&directory, self.slot)?;
            if wiped.guests.is_empty() && wiped.places.is_empty() {
                say::note(format!("There was nothing of anybody on {}.", say::clean(&name)));
            }
            for allocation in &wiped.guests {
                say::note(format!("The guest of allocation {allocation} is gone."));
            }
            for place in &wiped.places {
                say::note(format!("What was left on {place} is wiped."));
            }
        }
        Ok(())
    }
}

impl FaultArgs {
    fn fault(&self) -> Done<Fault> {
        let unknown = || Failure::new(Exit::Usage, "there is no such fault");
        let kind = FaultKind::parse(&self.fault).ok_or_else(unknown)?;
        Ok(Fault {
            phase: self.phase.as_deref().and_then(Phase::parse).map(Into::into),
            reason: self.reason.as_deref().and_then(FailureReason::parse).map(Into::into),
            kind: self.kind.as_deref().and_then(TaskKind::parse).map(Into::into),
            times: self.times,
            probability: self.probability,
            seconds: self.seconds,
            direction: self.direction.as_deref().and_then(Direction::parse).map(Into::into),
            after: self.after,
            ..Fault::new(kind)
        })
    }
}

impl Nodes {
    /// The nodes that are meant, with their directories.
    fn directories(&self) -> Done<Vec<(String, PathBuf)>> {
        let folder = self.placed.place()?.nodes();
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.path().is_dir());
        let mut there: Vec<String> =
            named.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        there.sort();
        if there.is_empty() {
            let sentence = format!("there are no simulated nodes in {}", folder.display());
            return Err(Failure::new(Exit::NotFound, sentence).next("up --detach"));
        }
        if let Some(stranger) = self.nodes.iter().find(|name| !there.contains(name)) {
            return Err(Failure::new(
                Exit::NotFound,
                format!("there is no simulated node `{stranger}`"),
            )
            .with("there are", there.join(", ")));
        }
        let meant = if self.nodes.is_empty() { &there } else { &self.nodes };
        Ok(meant.iter().map(|name| (name.clone(), folder.join(name))).collect())
    }
}
