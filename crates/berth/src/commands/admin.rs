//! What operators do: everybody's allocations, the fleet, dead letters.

mod money;
mod payments;
mod policies;
mod recovery;
mod stuck;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::machines::node::Status;
use lifecycle::Code as _;
use uuid::Uuid;
use wire::http::admin::{Because, FreshNode, NewNode, Node};
use wire::http::allocation_groups::GroupStatus;
use wire::http::allocations::{AllocationStatus, ForceRelease};

use super::{alloc, explain, group};
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::pick;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, short};

/// `berth admin …`
#[derive(Subcommand)]
pub(crate) enum AdminCommand {
    /// Everybody's allocations
    #[command(
        after_help = "Example:\n  berth --context operator admin allocations --status release_failed"
    )]
    Allocations {
        /// Only those in this status
        #[arg(long, value_parser = alloc::status)]
        status: Option<AllocationStatus>,
        #[command(flatten)]
        output: Json,
    },
    /// Restarts somebody's allocation
    #[command(after_help = "Example:\n  berth --context operator admin restart training")]
    Restart(alloc::One),
    /// Takes somebody's allocation back
    #[command(
        after_help = "Example:\n  berth --context operator admin force-release training --reason \"broken\""
    )]
    ForceRelease {
        /// Which: a name, an id, or how an id begins
        allocation: String,
        /// Why; the tenant is told
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        output: Json,
    },
    /// What happened to an allocation, with who did it and on which machine
    #[command(after_help = "Example:\n  berth --context operator admin timeline training")]
    Timeline(alloc::One),
    /// Everybody's groups
    #[command(
        after_help = "Example:\n  berth --context operator admin groups --status release_failed"
    )]
    Groups {
        /// Only those in this status
        #[arg(long, value_parser = group::status)]
        status: Option<GroupStatus>,
        #[command(flatten)]
        output: Json,
    },
    /// Why an allocation or a group is as it is, with its workflows and its machine
    #[command(after_help = "Example:\n  berth --context operator admin explain training")]
    Explain(explain::Explain),
    /// The fleet
    #[command(subcommand, after_help = "Example:\n  berth --context operator admin nodes list")]
    Nodes(NodesCommand),
    #[command(flatten)]
    Money(money::MoneyCommand),
    #[command(flatten)]
    Recovery(recovery::RecoveryCommand),
    /// Messages that could not be handled
    #[command(
        subcommand,
        after_help = "Example:\n  berth --context operator admin dead-letters list"
    )]
    DeadLetters(DeadLettersCommand),
    /// What stands longer than it may: why, who owns the next step, what to do
    #[command(
        after_help = "Examples:\n  berth --context operator admin stuck\n  berth --context operator admin stuck --check"
    )]
    Stuck(stuck::StuckList),
    /// Checkouts that were not paid or do not add up, and the way out
    #[command(
        subcommand,
        after_help = "Example:\n  berth --context operator admin payments list --stuck"
    )]
    Payments(payments::PaymentsCommand),
    /// What can be turned: deadlines, attempts, lifetimes
    #[command(after_help = "Example:\n  berth --context operator admin policies")]
    Policies(policies::Policies),
}

impl AdminCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            AdminCommand::Allocations { status, output } => {
                let all = client.all_allocations(status).await?;
                if output.json {
                    return say::json(&all);
                }
                if all.is_empty() {
                    teach("There are none. To see what there is to give:", "admin nodes list");
                    return Ok(());
                }
                alloc::table(&all)
            }
            AdminCommand::Restart(one) => {
                let id = allocation_id(client, &one.allocation).await?;
                let restarting = client.restart(id).await?;
                if one.output.json { say::json(&restarting) } else { alloc::show(&restarting) }
            }
            AdminCommand::ForceRelease { allocation, reason, output } => {
                let id = allocation_id(client, &allocation).await?;
                let releasing = client.force_release(id, &ForceRelease { reason }).await?;
                if output.json { say::json(&releasing) } else { alloc::show(&releasing) }
            }
            AdminCommand::Timeline(one) => {
                let id = allocation_id(client, &one.allocation).await?;
                let timeline = client.operator_timeline(id).await?;
                if one.output.json {
                    say::json(&timeline)
                } else {
                    alloc::timeline_table(&timeline)
                }
            }
            AdminCommand::Groups { status, output } => {
                let all = client.all_groups(status).await?;
                if output.json {
                    return say::json(&all);
                }
                if all.is_empty() {
                    teach("There are none. What is there, one by one:", "admin allocations");
                    return Ok(());
                }
                group::table(&all)
            }
            AdminCommand::Explain(explain) => explain.run_as_operator(client).await,
            AdminCommand::Nodes(command) => command.run(client).await,
            AdminCommand::Money(command) => command.run(client).await,
            AdminCommand::Recovery(command) => command.run(client).await,
            AdminCommand::Payments(command) => command.run(client).await,
            AdminCommand::DeadLetters(command) => command.run(client).await,
            AdminCommand::Stuck(stuck) => stuck.run(client).await,
            AdminCommand::Policies(policies) => policies.run(client).await,
        }
    }
}

async fn allocation_id(client: &Client, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    let all = client.all_allocations(None).await?;
    pick(word, "allocation", &all, "admin allocations").map(|allocation| allocation.id)
}

/// `berth admin nodes …`
#[derive(Subcommand)]
pub(crate) enum NodesCommand {
    /// All nodes, with how they are and what is free on them
    #[command(after_help = "Example:\n  berth --context operator admin nodes list")]
    List(Json),
    /// One node, slot by slot
    #[command(after_help = "Example:\n  berth --context operator admin nodes show eu-1-h100-1")]
    Show(Which),
    /// Adds a node; its join token is printed once, alone on stdout
    #[command(
        after_help = "Example:\n  berth --context operator admin nodes create rack1 --region eu-1 --sku h100.slice --slots 0,0,0,0,1,1,1,1"
    )]
    Create {
        /// What it is called
        name: String,
        /// Where it stands
        #[arg(long)]
        region: String,
        /// What it is sold as
        #[arg(long)]
        sku: String,
        /// The NUMA node of each GPU, in order
        #[arg(long, value_delimiter = ',', required = true)]
        slots: Vec<i16>,
        #[command(flatten)]
        output: Json,
    },
    /// A new join token; the ones before it can't be used any more
    #[command(after_help = "Example:\n  berth --context operator admin nodes join-token rack1")]
    JoinToken(Which),
    /// Cuts the agent of a node off, at once
    #[command(
        after_help = "Example:\n  berth --context operator admin nodes revoke rack1 --reason stolen"
    )]
    Revoke(WhichAndWhy),
    /// Lets a node run empty: it takes no placements, and is in maintenance when nothing is left on it
    #[command(
        after_help = "Example:\n  berth --context operator admin nodes drain rack1 --reason broken-fan"
    )]
    Drain(WhichAndWhy),
    /// Lets a node that was in maintenance take placements again
    #[command(
        after_help = "Example:\n  berth --context operator admin nodes resume rack1 --reason repaired"
    )]
    Resume(WhichAndWhy),
    /// Takes a node out of the fleet for good, once nothing is left on it
    #[command(
        after_help = "Example:\n  berth --context operator admin nodes retire rack1 --reason sold"
    )]
    Retire(WhichAndWhy),
}

/// One node, and why.
#[derive(Args)]
pub(crate) struct WhichAndWhy {
    #[command(flatten)]
    which: Which,
    /// Why
    #[arg(long)]
    reason: String,
}

/// One node.
#[derive(Args)]
pub(crate) struct Which {
    /// Which: a name, an id, or how an id begins
    node: String,
    #[command(flatten)]
    output: Json,
}

impl NodesCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            NodesCommand::List(output) => list_nodes(client, output).await,
            NodesCommand::Show(which) => {
                let node = client.node(node_id(client, &which.node).await?).await?;
                if which.output.json { say::json(&node) } else { show_node(&node) }
            }
            NodesCommand::Create { name, region, sku, slots, output } => {
                let fresh = client.create_node(&NewNode { name, region, sku, slots }).await?;
                show_join(&fresh, output)
            }
            NodesCommand::JoinToken(which) => {
                let id = node_id(client, &which.node).await?;
                show_join(&client.reissue_join_token(id).await?, which.output)
            }
            NodesCommand::Revoke(WhichAndWhy { which, reason }) => {
                let id = node_id(client, &which.node).await?;
                let node = client.revoke_node(id, &Because { reason }).await?;
                if which.output.json {
                    return say::json(&node);
                }
                say::note(format!("The agent of {} is cut off.", say::clean(&node.name)));
                teach(
                    "To let it in again:",
                    &format!("admin nodes join-token {}", say::clean(&node.name)),
                );
                Ok(())
            }
            NodesCommand::Drain(WhichAndWhy { which, reason }) => {
                let id = node_id(client, &which.node).await?;
                moved(client.drain_node(id, &Because { reason }).await, &which)
            }
            NodesCommand::Resume(WhichAndWhy { which, reason }) => {
                let id = node_id(client, &which.node).await?;
                moved(client.resume_node(id, &Because { reason }).await, &which)
            }
            NodesCommand::Retire(WhichAndWhy { which, reason }) => {
                let id = node_id(client, &which.node).await?;
                moved(client.retire_node(id, &Because { reason }).await, &which)
            }
        }
    }
}

/// How a node stands after what was done to it, and what comes next.
fn moved(answer: Done<Node>, which: &Which) -> Done {
    let show = format!("admin nodes show {}", which.node);
    let node = answer.map_err(|failure| failure.look_at(&show))?;
    if which.output.json {
        return say::json(&node);
    }
    let name = say::clean(&node.name);
    say::note(format!("{name} is {}.", node.status));
    match node.status.0 {
        Status::Draining => {
            teach(
                "It is in maintenance when it is empty. What is left:",
                &format!("admin nodes show {name}"),
            );
        }
        Status::Maintenance => {
            teach(
                "To let it take placements again:",
                &format!("admin nodes resume {name} --reason WHY"),
            );
        }
        Status::Enrolling | Status::Ready | Status::Offline | Status::Retired => {}
    }
    Ok(())
}

async fn node_id(client: &Client, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    pick(word, "node", &client.nodes().await?, "admin nodes list").map(|node| node.id)
}

const fn news(status: Status) -> News {
    match status {
        Status::Ready => News::Good,
        Status::Enrolling | Status::Draining | Status::Maintenance => News::Pending,
        Status::Offline => News::Bad,
        Status::Retired => News::Past,
    }
}

async fn list_nodes(client: &Client, output: Json) -> Done {
    let nodes = client.nodes().await?;
    if output.json {
        return say::json(&nodes);
    }
    if nodes.is_empty() {
        teach(
            "There are no nodes yet. To add one:",
            "admin nodes create rack1 --region eu-1 --sku h100.slice --slots 0,0,0,0,1,1,1,1",
        );
        return Ok(());
    }
    let mut sheet =
        Sheet::new(&["name", "status", "region", "sku", "free", "slots", "heard of", "reason"]);
    for node in &nodes {
        sheet.row([
            Sheet::text(&node.name),
            sheet.status(node.status.0.code(), news(node.status.0)),
            Sheet::text(&node.region),
            Sheet::text(&node.sku),
            Sheet::number(node.free_slots),
            Cell::new(map(node)),
            Cell::new(node.heartbeat_at.map_or_else(|| "never".to_owned(), |at| age(now(), at))),
            Sheet::text(node.reason.clone().unwrap_or_default()),
        ]);
    }
    sheet.show()?;
    say::note("Slots: . free, r reserved, H held, c cleaning, ! stuck or set aside");
    Ok(())
}

/// A node's slots, a letter each.
fn map(node: &Node) -> String {
    use domain::machines::claim;
    let letter = |status: claim::Status| match status {
        claim::Status::Reserved => 'r',
        claim::Status::Held => 'H',
        claim::Status::Cleaning => 'c',
        claim::Status::Stuck | claim::Status::Quarantined => '!',
        claim::Status::Freed => '.',
    };
    let slot = |slot: &wire::http::admin::Slot| {
        let claim = slot.claim.as_ref().or(node.claim.as_ref());
        claim.map_or('.', |claim| letter(claim.status.0))
    };
    node.slots.iter().map(slot).collect()
}

fn show_node(node: &Node) -> Done {
    let ago = |at: jiff::Timestamp| age(now(), at);
    let mut sheet = Sheet::of_one();
    sheet.line("name", node.name.clone());
    sheet.line("id", node.id.to_string());
    let status = sheet.status(node.status.0.code(), news(node.status.0));
    sheet.row([Cell::new("status"), status]);
    sheet.line("since", ago(node.status_at));
    sheet.line("reason", node.reason.clone());
    sheet.line("what", format!("{} in {}", node.sku, node.region));
    sheet.line("heard of", node.heartbeat_at.map(ago));
    sheet.line("agent", node.agent_version.clone());
    sheet.line("certificate ends", node.certificate_expires_at.map(ago));
    if let Some(claim) = &node.claim {
        sheet.line("whole machine", format!("{} for {}", claim.status, claim.allocation_id));
    }
    for slot in &node.slots {
        let claim = slot.claim.as_ref().map_or_else(
            || "free".to_owned(),
            |claim| {
                let reason =
                    claim.reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
                format!("{} for {}{reason}", claim.status, claim.allocation_id)
            },
        );
        sheet.line(&format!("slot {}, NUMA {}", slot.index, slot.numa), claim);
    }
    sheet.show()
}

fn show_join(fresh: &FreshNode, output: Json) -> Done {
    if output.json {
        return say::json(fresh);
    }
    say::note(format!(
        "{} waits for its agent. The token works once, until {}, and is shown this once:",
        say::clean(&fresh.node.name),
        fresh.join_token_expires_at.strftime("%H:%M UTC")
    ));
    say::data(&fresh.join_token)?;
    teach("On the machine:", "agent --directory /var/lib/berth-agent --join TOKEN");
    Ok(())
}

/// `berth admin dead-letters …`
#[derive(Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// What could not be handled, and why
    #[command(after_help = "Example:\n  berth --context operator admin dead-letters list")]
    List(Json),
    /// Hands one out once more
    #[command(
        after_help = "Example:\n  berth --context operator admin dead-letters redrive provisioning 0198c0de"
    )]
    Redrive {
        /// Who could not handle it
        consumer: String,
        /// Which: its id, or how that begins
        event: String,
    },
}

impl DeadLettersCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let letters = client.dead_letters().await?;
        match self {
            DeadLettersCommand::List(output) if output.json => say::json(&letters),
            DeadLettersCommand::List(_) if letters.is_empty() => {
                teach(
                    "There are no dead letters: every message was handled. To check the rest:",
                    "audit",
                );
                Ok(())
            }
            DeadLettersCommand::List(_) => {
                let mut sheet =
                    Sheet::new(&["consumer", "event", "subject", "tries", "dead", "reason"]);
                for letter in letters {
                    sheet.row([
                        Sheet::text(letter.consumer),
                        Cell::new(short(letter.event_id)),
                        Sheet::text(letter.subject),
                        Sheet::number(letter.attempts),
                        Cell::new(age(now(), letter.dead_at)),
                        Sheet::text(letter.reason),
                    ]);
                }
                sheet.show()
            }
            DeadLettersCommand::Redrive { consumer, event } => {
                let meant = |letter: &&wire::http::admin::DeadLetter| {
                    letter.consumer == consumer && letter.event_id.to_string().starts_with(&event)
                };
                let found: Vec<_> = letters.iter().filter(meant).collect();
                let [letter] = found.as_slice() else {
                    let sentence =
                        format!("{} dead letters of {consumer} begin with `{event}`", found.len());
                    let exit = if found.is_empty() { Exit::NotFound } else { Exit::Usage };
                    return Err(Failure::new(exit, sentence).next("admin dead-letters list"));
                };
                client.redrive(&letter.consumer, letter.event_id).await?;
                say::note(format!("{} is on its way again.", letter.event_id));
                Ok(())
            }
        }
    }
}
