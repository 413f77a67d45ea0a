//! Giving an allocation back: said plainly beforehand, and proven afterwards.

use clap::Args;
use domain::machines::allocation::Status;
use wire::http::allocations::Allocation;

use super::create::Waiting;
use super::show;
use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::progress::View;
use crate::resolve;
use crate::say;
use crate::watch::{Ended, Goal, interrupted, missed, timed_out, wait};

/// `berth alloc release`
#[derive(Args)]
pub(crate) struct Release {
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

impl Release {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        if !self.yes {
            confirm(&allocation)?;
        }
        let releasing = client.release(allocation.id).await?;
        if let Some(called_off) = called_off(allocation.status.0, &releasing) {
            say::note(called_off);
        }
        if !self.waiting.wanted() {
            return finish(&releasing, self.output);
        }
        let mut view = View::fitting(self.output.json).since(releasing.status_at);
        let patience = self.waiting.patience();
        let ended = wait(client, allocation.id, Goal::Released, patience, &mut view).await?;
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
            Ended::TimedOut => Err(timed_out(&releasing, patience)),
            Ended::Interrupted => {
                let sentence = format!(
                    "{name} is being released, with or without us; you are not charged for it any more"
                );
                Err(interrupted(sentence).next(&format!("alloc timeline {name} --watch")))
            }
        }
    }
}

/// What a release has called off, if anything was under way.
fn called_off(before: Status, releasing: &Allocation) -> Option<String> {
    let name = say::clean(&releasing.name);
    match before {
        // It may have become ready between the look and the release.
        Status::Requested | Status::Provisioning if releasing.active_at.is_none() => Some(format!(
            "The preparation of {name} was called off: it was never ready, so it is not charged."
        )),
        Status::Restarting => {
            Some(format!("The restart of {name} was called off: it is erased instead."))
        }
        Status::Requested
        | Status::Provisioning
        | Status::Active
        | Status::RestartFailed
        | Status::Releasing
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => None,
    }
}

fn finish(allocation: &Allocation, output: Json) -> Done {
    if output.json {
        return say::json(allocation);
    }
    show(allocation)?;
    let name = say::clean(&allocation.name);
    let next = if allocation.ended_at.is_some() { "receipt" } else { "timeline" };
    say::note(format!("Next: {} alloc {next} {name}", say::program()));
    Ok(())
}

/// Says what will happen, and takes the name as a yes.
fn confirm(allocation: &Allocation) -> Done {
    let name = say::clean(&allocation.name);
    if !say::can_ask() {
        let sentence = format!("there is nobody to ask whether {name} may be erased: give --yes");
        return Err(Failure::new(Exit::Usage, sentence));
    }
    let (gpus, sku, region) = (allocation.gpus, &allocation.sku, &allocation.region);
    say::note(format!(
        "Release {}? ({gpus} × {sku} in {region})\n\
         The machine and its local disk are erased and cannot be recovered.\n\
         Billing for the GPUs stops when you confirm.",
        say::strong(&name)
    ));
    let answer = say::ask(&format!("Type {} to confirm:", say::strong(&name)))?;
    if answer == allocation.name {
        return Ok(());
    }
    Err(Failure::new(Exit::Declined, format!("{name} was not released; nothing was changed")))
}
