//! Restarting an allocation: what it interrupts is said beforehand, and how far it is meanwhile.

use clap::Args;
use wire::http::allocations::Allocation;

use super::create::Waiting;
use super::{show, ssh_command};
use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::progress::View;
use crate::resolve;
use crate::say;
use crate::watch::{Ended, Goal, interrupted, missed, timed_out, wait};

/// `berth alloc restart`
#[derive(Args)]
pub(crate) struct Restart {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Does not ask whether you are sure
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    waiting: Waiting,
    #[command(flatten)]
    output: Json,
}

impl Restart {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        if !self.yes {
            confirm(&allocation)?;
        }
        let restarting = client.restart(allocation.id).await?;
        if !self.waiting.wanted() {
            return finish(&restarting, self.output);
        }
        let mut view = View::fitting(self.output.json).since(restarting.status_at);
        let patience = self.waiting.patience();
        let ended = wait(client, allocation.id, Goal::Active, patience, &mut view).await?;
        let name = say::clean(&allocation.name);
        match ended {
            Ended::Reached => finish(&client.allocation(allocation.id).await?, self.output),
            Ended::Missed(timeline) => {
                let now = client.allocation(allocation.id).await?;
                if self.output.json {
                    say::json(&now)?;
                }
                Err(missed(&now, &timeline))
            }
            Ended::TimedOut => Err(timed_out(&restarting, patience)),
            Ended::Interrupted => {
                let sentence = format!("{name} restarts, with or without us; it stays yours");
                Err(interrupted(sentence).next(&format!("alloc timeline {name} --watch")))
            }
        }
    }
}

fn finish(allocation: &Allocation, output: Json) -> Done {
    if output.json {
        return say::json(allocation);
    }
    show(allocation)?;
    let name = say::clean(&allocation.name);
    let back = allocation.status.0 == domain::machines::allocation::Status::Active;
    let next = match ssh_command(allocation).filter(|_| back) {
        Some(_) => format!("alloc ssh {name}"),
        None => format!("alloc timeline {name} --watch"),
    };
    say::note(format!("Next: {} {next}", say::program()));
    Ok(())
}

/// Says what will happen, and takes a yes.
fn confirm(allocation: &Allocation) -> Done {
    let name = say::clean(&allocation.name);
    if !say::can_ask() {
        let sentence =
            format!("there is nobody to ask whether {name} may be interrupted: give --yes");
        return Err(Failure::new(Exit::Usage, sentence));
    }
    let (gpus, sku, region) = (allocation.gpus, &allocation.sku, &allocation.region);
    say::note(format!(
        "Restart {}? ({gpus} × {sku} in {region})\n\
         SSH and browser terminals disconnect, and running processes are interrupted.\n\
         Attached storage stays attached, and the allocation stays yours. Billing continues.",
        say::strong(&name)
    ));
    let answer = say::ask("Restart it? [y/N]")?;
    if ["y", "yes"].contains(&answer.to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::new(Exit::Declined, format!("{name} was not restarted; nothing was changed")))
}
