//! Groups of allocations: had all together or not at all, and given back together.

mod create;
mod release;
mod wait;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::derived::allocation_group::Status;
use lifecycle::Code as _;
use uuid::Uuid;
use wire::http::allocation_groups::{AllocationGroup, GroupMember, GroupStatus};

use super::explain;
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::resolve::{Named, pick};
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, hourly, news, short};

/// `berth group …`
#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// Asks for several allocations at once: all of them or none
    #[command(
        after_help = "Examples:\n  berth group create --name training --member h100.slice:8:2@eu-1 --optional h100.slice:1@eu-1 --wait\n  berth group create --region eu-1 --member h100.slice:4:2 --no-wait --json"
    )]
    Create(create::Create),
    /// The groups you have
    #[command(
        after_help = "Examples:\n  berth group list\n  berth group list --status active --json"
    )]
    List(List),
    /// One group with its members
    #[command(after_help = "Example:\n  berth group show training")]
    Show(One),
    /// Why it is as it is: which members it waits for, who is next, what you may do
    #[command(after_help = "Example:\n  berth group explain training")]
    Explain(One),
    /// Gives all of it back: everything on its members is erased, and billing stops
    #[command(
        after_help = "Examples:\n  berth group release training --wait\n  berth group release training --yes"
    )]
    Release(release::Release),
}

/// `berth group list`
#[derive(Args)]
pub(crate) struct List {
    /// Only those in this status
    #[arg(long, value_parser = status)]
    status: Option<GroupStatus>,
    #[command(flatten)]
    output: Json,
}

/// `berth group show`
#[derive(Args)]
pub(crate) struct One {
    /// Which: a name, an id, or how an id begins
    group: String,
    #[command(flatten)]
    output: Json,
}

/// A status by its word.
pub(crate) fn status(text: &str) -> Result<GroupStatus, String> {
    Status::parse(text).map(Into::into).ok_or_else(|| {
        let known: Vec<&str> = Status::ALL.iter().map(|status| status.code()).collect();
        format!("there are {}", known.join(", "))
    })
}

impl Named for AllocationGroup {
    fn id(&self) -> Uuid {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_current(&self) -> bool {
        self.ended_at.is_none()
    }
}

impl GroupCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            GroupCommand::Create(create) => create.run(client).await,
            GroupCommand::List(list) => {
                let all = client.groups(list.status).await?;
                if list.output.json {
                    return say::json(&all);
                }
                if all.is_empty() {
                    teach(
                        "You have no groups. A group is had all together or not at all; to ask for one:",
                        "group create --name training --member h100.slice:2:2@eu-1",
                    );
                    return Ok(());
                }
                table(&all)
            }
            GroupCommand::Show(one) => {
                let group = meant(client, &one.group).await?;
                if one.output.json { say::json(&group) } else { show(&group) }
            }
            GroupCommand::Explain(one) => {
                let id = meant(client, &one.group).await?.id;
                explain::group(client.explain_group(id).await?, one.output)
            }
            GroupCommand::Release(release) => release.run(client).await,
        }
    }
}

/// The group that is meant: by its id without a look at the others.
pub(crate) async fn meant(client: &Client, word: &str) -> Done<AllocationGroup> {
    match Uuid::try_parse(word) {
        Ok(id) => client.group(id).await,
        Err(_) => {
            let all = client.groups(None).await?;
            pick(word, "group", &all, "group list").cloned()
        }
    }
}

/// What sort of news a group's status is.
const fn news_of(status: Status) -> News {
    match status {
        Status::Active => News::Good,
        Status::Requested | Status::Provisioning | Status::Releasing => News::Pending,
        Status::Degraded | Status::ReleaseFailed | Status::Failed => News::Bad,
        Status::Released => News::Past,
    }
}

/// What all members cost together, while they are of one currency.
fn price(members: &[GroupMember]) -> Option<String> {
    let currency = &members.first()?.currency;
    if members.iter().any(|member| member.currency != *currency) {
        return None;
    }
    let second = |member: &GroupMember| member.price_micros_per_gpu_second * i64::from(member.gpus);
    Some(hourly(members.iter().map(second).sum(), 1, currency))
}

/// Groups as a table on stdout.
pub(crate) fn table(all: &[AllocationGroup]) -> Done {
    let mut sheet = Sheet::new(&["name", "id", "status", "members", "gpus", "price", "age"]);
    for each in all {
        let gpus: i32 = each.members.iter().map(|member| i32::from(member.gpus)).sum();
        sheet.row([
            Sheet::text(&each.name),
            Cell::new(short(each.id)),
            sheet.status(each.status.0.code(), news_of(each.status.0)),
            Sheet::number(each.members.len()),
            Sheet::number(gpus),
            Sheet::number(price(&each.members).unwrap_or_default()),
            Cell::new(age(now(), each.created_at)),
        ]);
    }
    sheet.show()
}

/// One group on stdout.
fn show(group: &AllocationGroup) -> Done {
    let mut sheet = Sheet::of_one();
    sheet.line("name", group.name.clone());
    sheet.line("id", group.id.to_string());
    let status = sheet.status(group.status.0.code(), news_of(group.status.0));
    sheet.row([Cell::new("status"), status]);
    sheet.line("", group.status_text.clone());
    sheet.line("price", price(&group.members));
    sheet.line("asked for", age(now(), group.created_at));
    sheet.line("given back", group.release_requested_at.map(|at| age(now(), at)));
    sheet.line("ended", group.ended_at.map(|at| age(now(), at)));
    let actions: Vec<String> = group.allowed_actions.iter().map(ToString::to_string).collect();
    sheet.line("you may", Some(actions.join(", ")).filter(|actions| !actions.is_empty()));
    sheet.show()?;
    say::data("")?;
    let mut sheet = Sheet::new(&["member", "id", "status", "needed", "what", "node", "ssh"]);
    for each in &group.members {
        let access = each.access.as_ref();
        let ssh = access.map(|at| format!("ssh -p {} {}@{}", at.port, at.user, at.host));
        sheet.row([
            Sheet::text(&each.name),
            Cell::new(short(each.id)),
            sheet.status(each.status.0.code(), news(each.status.0)),
            Cell::new(if each.required { "yes" } else { "no" }),
            Sheet::text(format!("{} × {} in {}", each.gpus, each.sku, each.region)),
            Sheet::text(each.node.as_deref().unwrap_or("–")),
            Sheet::text(ssh.as_deref().unwrap_or("–")),
        ]);
    }
    sheet.show()
}
