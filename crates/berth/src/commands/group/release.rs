//! Giving a whole group back.

use clap::Args;
use wire::http::allocation_groups::AllocationGroup;

use super::wait::{self, Ended, Goal, wait};
use super::{meant, show};
use crate::cli::Json;
use crate::client::Client;
use crate::commands::alloc::create::Waiting;
use crate::exit::{Done, Exit, Failure};
use crate::say;

/// `berth group release`
#[derive(Args)]
pub(crate) struct Release {
    /// Which: a name, an id, or how an id begins
    group: String,
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
        let group = meant(client, &self.group).await?;
        if !self.yes {
            confirm(&group)?;
        }
        let releasing = client.release_group(group.id).await?;
        if !self.waiting.wanted() {
            return finish(&releasing, self.output);
        }
        let patience = self.waiting.patience();
        let (ended, now) =
            wait(client, &releasing, Goal::Released, (patience, self.output)).await?;
        let name = say::clean(&group.name);
        match ended {
            Ended::Reached => finish(&now, self.output),
            Ended::Missed | Ended::TimedOut => {
                if self.output.json {
                    say::json(&now)?;
                }
                Err(wait::failure(ended, &now, patience))
            }
            Ended::Interrupted => {
                let sentence = format!(
                    "{name} is being released, with or without us; you are not charged for it any more"
                );
                Err(Failure::new(Exit::Interrupted, sentence).next(&format!("group show {name}")))
            }
        }
    }
}

fn finish(group: &AllocationGroup, output: Json) -> Done {
    if output.json { say::json(group) } else { show(group) }
}

/// Says what will happen, and takes the name as a yes.
fn confirm(group: &AllocationGroup) -> Done {
    let name = say::clean(&group.name);
    if !say::can_ask() {
        let sentence = format!("there is nobody to ask whether {name} may be erased: give --yes");
        return Err(Failure::new(Exit::Usage, sentence));
    }
    let count = group.members.len();
    say::note(format!(
        "Release {}? ({count} members)\n\
         The machines of all members and their local disks are erased and cannot be recovered.\n\
         Billing for the GPUs stops when you confirm.",
        say::strong(&name)
    ));
    let answer = say::ask(&format!("Type {} to confirm:", say::strong(&name)))?;
    if answer == group.name {
        return Ok(());
    }
    Err(Failure::new(Exit::Declined, format!("{name} was not released; nothing was changed")))
}
