//! What operators may turn.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use wire::http::policies::{NewPolicy, Policy};

use crate::cli::{Json, teach};
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::say;
use crate::table::Sheet;
use crate::words::age;

/// `berth admin policies`
#[derive(Args)]
pub(crate) struct Policies {
    #[command(subcommand)]
    command: Option<PoliciesCommand>,
    #[command(flatten)]
    output: Json,
}

/// `berth admin policies …`
#[derive(Subcommand)]
pub(crate) enum PoliciesCommand {
    /// Turns one; it holds at once
    #[command(
        after_help = "Example:\n  berth --context operator admin policies set restart.timeout_seconds 1200 --reason \"slow\""
    )]
    Set {
        /// Which
        key: String,
        /// What it is to stand at
        value: i64,
        /// Why; it is kept in the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        output: Json,
    },
    /// Turns one back to its default
    #[command(
        after_help = "Example:\n  berth --context operator admin policies reset restart.timeout_seconds"
    )]
    Reset {
        /// Which
        key: String,
        #[command(flatten)]
        output: Json,
    },
}

impl Policies {
    pub(crate) async fn run(self, client: &Client) -> Done {
        match self.command {
            None => list(client, self.output).await,
            Some(PoliciesCommand::Set { key, value, reason, output }) => {
                told(&client.set_policy(&key, &NewPolicy { value, reason }).await?, output)
            }
            Some(PoliciesCommand::Reset { key, output }) => {
                told(&client.reset_policy(&key).await?, output)
            }
        }
    }
}

async fn list(client: &Client, output: Json) -> Done {
    let policies = client.policies().await?;
    if output.json {
        return say::json(&policies);
    }
    let mut sheet = Sheet::new(&["policy", "value", "default", "range", "turned", "what it means"]);
    for policy in &policies {
        sheet.row([
            Sheet::text(&policy.key),
            Sheet::number(format!("{} {}", policy.value, policy.unit)),
            Sheet::number(policy.default),
            Cell::new(format!("{} to {}", policy.min, policy.max)),
            Cell::new(policy.changed_at.map_or_else(String::new, |at| age(now(), at))),
            Sheet::text(&policy.meaning),
        ]);
    }
    sheet.show()?;
    teach("To turn one:", "admin policies set KEY VALUE --reason \"…\"");
    Ok(())
}

fn told(policy: &Policy, output: Json) -> Done {
    if output.json {
        return say::json(policy);
    }
    let Policy { key, value, unit, default, .. } = policy;
    let default = match value == default {
        true => "its default".to_owned(),
        false => format!("the default is {default}"),
    };
    say::note(format!("{} stands at {value} {unit}, {default}.", say::clean(key)));
    Ok(())
}
