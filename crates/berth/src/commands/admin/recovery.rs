//! What operators do when something did not end well: abandoned releases, clean-ups, claims that are stuck or set aside.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use domain::machines::claim::Status;
use lifecycle::Code as _;
use uuid::Uuid;
use wire::http::admin::{Because, ClaimStatus};
use wire::http::claims::Claim;

use super::allocation_id;
use crate::cli::{Json, teach};
use crate::client::Client;
use crate::commands::alloc;
use crate::commands::explain::place;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::say;
use crate::table::Sheet;
use crate::words::{News, age, short};

/// `berth admin abandon`, `clean`, `claims`, `quarantine`, `clear`
#[derive(Subcommand)]
pub(crate) enum RecoveryCommand {
    /// Ends a release that gave up; what it held is set aside until it is cleared
    #[command(
        after_help = "Example:\n  berth --context operator admin abandon training --reason shredded"
    )]
    Abandon(OneAllocation),
    /// Has the node clean up once more after an allocation that failed
    #[command(
        after_help = "Example:\n  berth --context operator admin clean training --reason repaired"
    )]
    Clean(OneAllocation),
    /// What is stuck or set aside, and what to do about it
    #[command(after_help = "Example:\n  berth --context operator admin claims --status stuck")]
    Claims {
        /// Only those in this status: stuck or quarantined
        #[arg(long, value_parser = status)]
        status: Option<ClaimStatus>,
        #[command(flatten)]
        output: Json,
    },
    /// Sets aside what could not be cleaned
    #[command(
        after_help = "Example:\n  berth --context operator admin quarantine 0198c0de --reason broken"
    )]
    Quarantine(OneClaim),
    /// Gives back what was set aside
    #[command(
        after_help = "Example:\n  berth --context operator admin clear 0198c0de --reason wiped"
    )]
    Clear(OneClaim),
}

/// An allocation, and why.
#[derive(Args)]
pub(crate) struct OneAllocation {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Why; it stays in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    output: Json,
}

/// A claim, and why.
#[derive(Args)]
pub(crate) struct OneClaim {
    /// Which: its id, or how that begins
    claim: String,
    /// Why; it stays with the claim and in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    output: Json,
}

/// Shows how claims stand.
const CLAIMS: &str = "admin claims";

/// Shows how an allocation stands.
fn explained(id: Uuid) -> String {
    format!("admin explain {id}")
}

fn status(text: &str) -> Result<ClaimStatus, String> {
    let waits = [Status::Stuck, Status::Quarantined];
    let found = waits.into_iter().find(|status| status.code() == text);
    found.map(Into::into).ok_or_else(|| "claims wait when stuck or quarantined".to_owned())
}

impl RecoveryCommand {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self {
            RecoveryCommand::Abandon(OneAllocation { allocation, reason, output }) => {
                let id = allocation_id(client, &allocation).await?;
                let ended = client.abandon(id, &Because { reason }).await;
                let ended = ended.map_err(|failure| failure.look_at(&explained(id)))?;
                if output.json {
                    return say::json(&ended);
                }
                alloc::show(&ended)?;
                teach("What it held is set aside:", "admin claims --status quarantined");
                Ok(())
            }
            RecoveryCommand::Clean(OneAllocation { allocation, reason, output }) => {
                let id = allocation_id(client, &allocation).await?;
                let asked = client.clean(id, &Because { reason }).await;
                let asked = asked.map_err(|failure| failure.look_at(&explained(id)))?;
                if output.json {
                    return say::json(&asked);
                }
                say::note(format!(
                    "The node is told to clean up after {}.",
                    say::clean(&asked.name)
                ));
                teach("To see whether it could:", "admin claims");
                Ok(())
            }
            RecoveryCommand::Claims { status, output } => {
                let claims = client.claims(status).await?;
                if output.json { say::json(&claims) } else { table(&claims) }
            }
            RecoveryCommand::Quarantine(OneClaim { claim, reason, output }) => {
                let id = claim_id(client, &claim).await?;
                let claim = client.quarantine(id, &Because { reason }).await;
                let claim = claim.map_err(|failure| failure.look_at(CLAIMS))?;
                if output.json { say::json(&claim) } else { table(&[claim]) }
            }
            RecoveryCommand::Clear(OneClaim { claim, reason, output }) => {
                let id = claim_id(client, &claim).await?;
                let claim = client.clear(id, &Because { reason }).await;
                let claim = claim.map_err(|failure| failure.look_at(CLAIMS))?;
                if output.json {
                    return say::json(&claim);
                }
                say::note(format!("{} is free.", place(&claim)));
                Ok(())
            }
        }
    }
}

async fn claim_id(client: &Client, word: &str) -> Done<Uuid> {
    if let Ok(id) = Uuid::try_parse(word) {
        return Ok(id);
    }
    let claims = client.claims(None).await?;
    let found: Vec<&Claim> =
        claims.iter().filter(|claim| claim.id.to_string().starts_with(word)).collect();
    let [claim] = found.as_slice() else {
        let sentence = format!("{} claims that wait begin with `{word}`", found.len());
        let exit = if found.is_empty() { Exit::NotFound } else { Exit::Usage };
        return Err(Failure::new(exit, sentence).next(CLAIMS));
    };
    Ok(claim.id)
}

fn table(claims: &[Claim]) -> Done {
    if claims.is_empty() {
        teach("Nothing is stuck or set aside. To check the rest:", "audit");
        return Ok(());
    }
    let mut sheet = Sheet::new(&["claim", "status", "where", "allocation", "since", "reason"]);
    for claim in claims {
        let news = match claim.status.0 {
            Status::Stuck | Status::Quarantined => News::Bad,
            Status::Reserved | Status::Held | Status::Cleaning => News::Pending,
            Status::Freed => News::Past,
        };
        sheet.row([
            Cell::new(claim.id),
            sheet.status(claim.status.0.code(), news),
            Sheet::text(place(claim)),
            Cell::new(format!("{} ({})", short(claim.allocation_id), claim.allocation_status)),
            Cell::new(age(now(), claim.status_at)),
            Sheet::text(claim.reason.clone().unwrap_or_default()),
        ]);
    }
    sheet.show()?;
    let waiting = claims.iter().filter(|claim| claim.status.0 != Status::Freed);
    let mut said: Vec<(&str, Vec<&String>)> = Vec::new();
    for claim in waiting {
        match said.iter_mut().find(|(advice, _)| *advice == claim.advice) {
            Some((_, commands)) => commands.extend(&claim.commands),
            None => said.push((&claim.advice, claim.commands.iter().collect())),
        }
    }
    for (advice, mut commands) in said {
        say::note(say::clean(advice));
        let mut seen = std::collections::BTreeSet::new();
        commands.retain(|command| seen.insert(*command));
        for command in commands {
            say::note(format!("  {}", say::typed(command)));
        }
    }
    Ok(())
}
