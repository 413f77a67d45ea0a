//! What happened to an allocation, as it was or while it happens.

use clap::Args;
use wire::http::timeline::Timeline;

use crate::cli::Json;
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::progress::{View, steps};
use crate::resolve;
use crate::say;
use crate::watch::{Ended, Goal, interrupted, wait};

/// `berth alloc timeline`
#[derive(Args)]
pub(crate) struct Show {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    /// Goes on until nothing moves any more
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    #[command(flatten)]
    output: Json,
}

impl Show {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        if !self.watch {
            let timeline = client.timeline(allocation.id).await?;
            return if self.output.json { say::json(&timeline) } else { table(&timeline) };
        }
        let mut view = View::fitting(false);
        match wait(client, allocation.id, Goal::Rest, None, &mut view).await? {
            Ended::Reached | Ended::Missed(_) | Ended::TimedOut => {
                let allocation = client.allocation(allocation.id).await?;
                let (name, status) = (say::clean(&allocation.name), allocation.status);
                say::note(format!("{name} is {status}. {}", say::clean(&allocation.status_text)));
                Ok(())
            }
            Ended::Interrupted => {
                Err(interrupted(format!("not watching {} any more", say::clean(&allocation.name))))
            }
        }
    }
}

/// A timeline on stdout: one line a step, and why what failed did.
pub(crate) fn table(timeline: &Timeline) -> Done {
    let mut lines = Vec::new();
    let mut of_item = steps(timeline, now(), None).into_iter();
    for item in &timeline.items {
        let at = item.started_at.strftime("%H:%M:%S");
        for (number, step) in of_item.by_ref().take(1 + item.phases.len()).enumerate() {
            let at = if number == 0 { at.to_string() } else { " ".repeat(8) };
            let mark =
                if say::out_is_terminal() { step.mark() } else { step.plain_mark().to_owned() };
            lines.push(format!("{at}  {mark} {}", step.line()));
        }
        let told = [
            ("node", &item.node),
            ("by", &item.actor),
            ("reason", &item.reason),
            ("advice", &item.advice),
        ];
        for (word, text) in told {
            if let Some(text) = text {
                lines.push(format!("{:10}{word}: {}", "", say::clean(text)));
            }
        }
    }
    lines.push(format!("Status: {}", timeline.status));
    say::data(lines.join("\n"))
}
