//! Allocations, as their tenant sees them.

pub(crate) mod create;
mod receipt;
mod release;
mod restart;
mod timeline;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::machines::allocation::Status;
use lifecycle::Code as _;
use wire::http::allocations::{Allocation, AllocationStatus};

use super::{explain, group};
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::resolve;
use crate::say;
use crate::table::Sheet;
use crate::words::{age, hourly, news, short};

pub(crate) use timeline::table as timeline_table;

/// `berth alloc …`
#[derive(Subcommand)]
pub(crate) enum AllocCommand {
    /// Asks for GPUs
    #[command(
        after_help = "Examples:\n  berth alloc create --sku h100.slice --gpus 2 --region eu-1 --name training --wait\n  berth alloc create --sku h100.metal --gpus 8 --region us-1 --no-wait --json"
    )]
    Create(create::Create),
    /// What you have
    #[command(
        after_help = "Examples:\n  berth alloc list\n  berth alloc list --status active --json\n  berth alloc list --group training"
    )]
    List(List),
    /// One allocation, with what it is doing
    #[command(after_help = "Example:\n  berth alloc show training")]
    Show(One),
    /// What happened to it, step by step
    #[command(after_help = "Example:\n  berth alloc timeline training --follow")]
    Timeline(timeline::Show),
    /// Restarts it: what runs is interrupted, and everything stays yours
    #[command(
        after_help = "Examples:\n  berth alloc restart training --wait\n  berth alloc restart training --yes"
    )]
    Restart(restart::Restart),
    /// Why it is as it is: what it waits for, who is next, what you may do
    #[command(after_help = "Example:\n  berth alloc explain training")]
    Explain(One),
    /// Gives it back: everything on it is erased, and billing stops; what is under way is called off
    #[command(
        visible_alias = "cancel",
        after_help = "Examples:\n  berth alloc release training --wait\n  berth alloc release training --yes"
    )]
    Release(release::Release),
    /// The signed proof that nothing was left behind
    #[command(after_help = "Example:\n  berth alloc receipt training --verify")]
    Receipt(receipt::Receipt),
    /// Logs in by SSH
    #[command(
        after_help = "Examples:\n  berth alloc ssh training\n  berth alloc ssh training --print"
    )]
    Ssh(receipt::Ssh),
}

/// `berth alloc list`
#[derive(Args)]
pub(crate) struct List {
    /// Only those in this status
    #[arg(long, value_parser = status)]
    status: Option<AllocationStatus>,
    /// Only the members of this group: a name, an id, or how an id begins
    #[arg(long)]
    group: Option<String>,
    #[command(flatten)]
    output: Json,
}

/// `berth alloc show`
#[derive(Args)]
pub(crate) struct One {
    /// Which: a name, an id, or how an id begins
    pub(crate) allocation: String,
    #[command(flatten)]
    pub(crate) output: Json,
}

/// A status by its word.
pub(crate) fn status(text: &str) -> Result<AllocationStatus, String> {
    Status::parse(text).map(Into::into).ok_or_else(|| {
        let known: Vec<&str> = Status::ALL.iter().map(|status| status.code()).collect();
        format!("there are {}", known.join(", "))
    })
}

impl AllocCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            AllocCommand::Create(create) => create.run(client).await,
            AllocCommand::List(list) => {
                let mut query = Vec::new();
                query.extend(list.status.map(|status| ("status", status.to_string())));
                if let Some(word) = &list.group {
                    query.push(("group", group::meant(client, word).await?.id.to_string()));
                }
                let all = client.allocations(&query).await?;
                if list.output.json {
                    return say::json(&all);
                }
                if all.is_empty() && !query.is_empty() {
                    teach("None of your allocations is like that. All of them:", "alloc list");
                    return Ok(());
                }
                if all.is_empty() {
                    teach(
                        "You have no allocations. To ask for one:",
                        "alloc create --sku h100.slice --gpus 1 --region eu-1",
                    );
                    return Ok(());
                }
                table(&all)
            }
            AllocCommand::Show(one) => {
                let allocation = resolve::allocation(client, &one.allocation).await?;
                if one.output.json { say::json(&allocation) } else { show(&allocation) }
            }
            AllocCommand::Timeline(timeline) => timeline.run(client).await,
            AllocCommand::Explain(one) => {
                let id = resolve::allocation(client, &one.allocation).await?.id;
                explain::allocation(client.explain(id).await?, one.output)
            }
            AllocCommand::Restart(restart) => restart.run(client).await,
            AllocCommand::Release(release) => release.run(client).await,
            AllocCommand::Receipt(receipt) => receipt.run(client).await,
            AllocCommand::Ssh(ssh) => ssh.run(client).await,
        }
    }
}

/// Allocations as a table on stdout.
pub(crate) fn table(all: &[Allocation]) -> Done {
    let mut sheet = Sheet::new(&["name", "id", "status", "gpus", "sku", "region", "price", "age"]);
    for each in all {
        sheet.row([
            Sheet::text(&each.name),
            Cell::new(short(each.id)),
            sheet.status(each.status.0.code(), news(each.status.0)),
            Sheet::number(each.gpus),
            Sheet::text(&each.sku),
            Sheet::text(&each.region),
            Sheet::number(hourly(each.price_micros_per_gpu_second, each.gpus, &each.currency)),
            Cell::new(age(now(), each.created_at)),
        ]);
    }
    sheet.show()
}

/// How one logs in, as a command.
pub(crate) fn ssh_command(allocation: &Allocation) -> Option<String> {
    let access = allocation.access.as_ref()?;
    Some(format!("ssh -p {} {}@{}", access.port, access.user, access.host))
}

/// One allocation on stdout.
pub(crate) fn show(allocation: &Allocation) -> Done {
    let at = |at: jiff::Timestamp| {
        format!("{} ({})", at.strftime("%Y-%m-%d %H:%M:%S UTC"), age(now(), at))
    };
    let mut sheet = Sheet::of_one();
    sheet.line("name", allocation.name.clone());
    sheet.line("id", allocation.id.to_string());
    let status = sheet.status(allocation.status.0.code(), news(allocation.status.0));
    sheet.row([Cell::new("status"), status]);
    sheet.line("", allocation.status_text.clone());
    sheet.line("reason", allocation.status_reason.clone());
    let (gpus, sku, region) = (allocation.gpus, &allocation.sku, &allocation.region);
    sheet.line("what", format!("{gpus} × {sku} in {region}"));
    sheet.line("image", allocation.image.clone());
    sheet.line("group", allocation.group_id.map(|group| group.to_string()));
    let slots: Vec<String> = allocation.slots.iter().map(ToString::to_string).collect();
    let slots =
        if slots.is_empty() { String::new() } else { format!(", GPUs {}", slots.join(" ")) };
    sheet.line("node", allocation.node.as_ref().map(|node| format!("{node}{slots}")));
    sheet.line("ssh", ssh_command(allocation));
    let price =
        hourly(allocation.price_micros_per_gpu_second, allocation.gpus, &allocation.currency);
    sheet.line("price", price);
    sheet.line("asked for", at(allocation.created_at));
    sheet.line("ready", allocation.active_at.map(at));
    sheet.line("given back", allocation.release_requested_at.map(at));
    sheet.line("ended", allocation.ended_at.map(at));
    let actions: Vec<String> = allocation.allowed_actions.iter().map(ToString::to_string).collect();
    sheet.line("you may", Some(actions.join(", ")).filter(|actions| !actions.is_empty()));
    sheet.show()
}
