//! Why an allocation is as it is, in one page.

use clap::Args;
use jiff::Timestamp;
use wire::http::claims::Claim;
use wire::http::explain::{Explanation, NextStep, Owner};

use crate::cli::Json;
use crate::client::Client;
use crate::exit::Done;
use crate::moment::now;
use crate::resolve;
use crate::say;
use crate::table::line_width;
use crate::words::{age, wrapped};

/// `berth alloc explain`
#[derive(Args)]
pub(crate) struct Explain {
    /// Which: a name, an id, or how an id begins
    allocation: String,
    #[command(flatten)]
    output: Json,
}

impl Explain {
    pub(crate) async fn run(self, client: &Client) -> Done {
        let allocation = resolve::allocation(client, &self.allocation).await?;
        let explanation = client.explain(allocation.id).await?;
        if self.output.json { say::json(&explanation) } else { page(&explanation) }
    }
}

/// An explanation on stdout.
pub(crate) fn page(told: &Explanation) -> Done {
    say::data(lines(told, now(), line_width()).join("\n"))
}

fn lines(told: &Explanation, now: Timestamp, width: usize) -> Vec<String> {
    let mut page = Page { width, lines: Vec::new() };
    let reason = told.reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
    page.line(&format!("{}{reason} since {}", told.status, moment(now, told.since)));
    page.part(&told.doing);
    page.heading("Waits for", told.waits_for.is_empty());
    for wait in &told.waits_for {
        let until =
            wait.until.map_or_else(String::new, |at| format!(", until {}", moment(now, at)));
        page.part(&format!("{} Since {}{until}.", wait.what, moment(now, wait.since)));
    }
    if let Some(next) = &told.next_step {
        page.heading("Next step", false);
        page.part(&next_step(next, now));
    }
    page.heading("You may", told.may_do.is_empty());
    for may in &told.may_do {
        page.part(&format!("{}: {}", may.action, may.sentence));
        page.commands(may.command.iter());
    }
    page.heading("Last steps", told.steps.is_empty());
    for step in &told.steps {
        let by = step.actor.as_ref().map_or_else(String::new, |actor| format!(" By {actor}."));
        let reason = step.reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        page.part(&format!("{}  {}{reason}{by}", clock(step.at), step.summary));
    }
    page.heading("Said, and changed nothing", told.refused.is_empty());
    for refused in &told.refused {
        let by = refused.actor.as_ref().map_or_else(String::new, |actor| format!(" By {actor}."));
        page.part(&format!("{}  {}: {}{by}", clock(refused.at), refused.event, refused.sentence));
    }
    page.heading("Workflows", told.runs.is_empty());
    for run in &told.runs {
        let waits = run.waits_for.as_deref().unwrap_or("nothing");
        let until = run.wakes_at.map_or_else(|| "now".to_owned(), |at| moment(now, at));
        let failed = run.reason.as_ref().map_or_else(String::new, |why| format!("; failed: {why}"));
        page.part(&format!("{} waits for {waits}, due {until}{failed}", run.id));
    }
    if let Some(machine) = &told.machine {
        page.heading("Machine", false);
        let since = moment(now, machine.since);
        page.part(&format!("{} is {} since {since}", machine.name, machine.status));
    }
    page.heading("What it holds", told.claims.is_empty());
    for claim in &told.claims {
        let why = claim.reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        let since = moment(now, claim.status_at);
        let what = format!("{} is {}{why} since {since}.", place(claim), claim.status);
        page.part(&format!("{what} {}", claim.advice));
        page.commands(claim.commands.iter());
    }
    page.lines
}

/// Which slot of which machine, or all of it.
pub(crate) fn place(claim: &Claim) -> String {
    let node = say::clean(&claim.node);
    claim.slot.map_or_else(|| format!("all of {node}"), |slot| format!("slot {slot} of {node}"))
}

fn next_step(next: &NextStep, now: Timestamp) -> String {
    let owner = match next.owner.0 {
        Owner::You => "Yours",
        Owner::Operator => "An operator's",
        Owner::Berth => "Berth's own",
        Owner::Machine => "The machine's",
        Owner::Nobody => return next.then.clone(),
    };
    let by = next.by.map_or_else(String::new, |by| {
        let overdue = if next.overdue { ", which has passed" } else { "" };
        format!(", by {}{overdue}", moment(now, by))
    });
    format!("{owner}{by}. {}", next.then)
}

fn moment(now: Timestamp, at: Timestamp) -> String {
    format!("{} ({})", clock(at), age(now, at))
}

fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S").to_string()
}

struct Page {
    width: usize,
    lines: Vec<String>,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.lines.extend(wrapped(&say::clean(text), self.width));
    }

    fn heading(&mut self, text: &str, empty: bool) {
        if !empty {
            self.lines.push(String::new());
            self.lines.push(text.to_owned());
        }
    }

    /// What can be typed, each on a line that is not broken.
    fn commands<'a>(&mut self, commands: impl Iterator<Item = &'a String>) {
        self.lines.extend(commands.map(|command| format!("    {}", say::typed(command))));
    }

    fn part(&mut self, text: &str) {
        let indented = |line: String| format!("  {line}");
        self.lines.extend(wrapped(&say::clean(text), self.width - 2).into_iter().map(indented));
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use wire::http::explain::Explanation;

    use super::lines;

    #[test]
    fn a_page_says_it_all_and_leaves_out_what_there_is_not() {
        let told: Explanation = serde_json::from_value(json!({
            "allocation_id": "0198c0de-0000-7000-8000-0000000000aa", "status": "provisioning",
            "since": "2026-01-01T00:00:10Z", "doing": "The machine is being prepared.",
            "waits_for": [{ "what": "The machine is at its task.", "since": "2026-01-01T00:00:12Z" }],
            "next_step": {
                "owner": "berth", "by": "2026-01-01T00:10:10Z", "overdue": false, "then": "After that it is given up."
            },
            "may_do": [{ "action": "release", "sentence": "Give it back." }],
            "steps": [{
                "seq": 1, "name": "requested", "at": "2026-01-01T00:00:00Z", "summary": "The GPUs were asked for."
            }],
            "refused": []
        }))
        .expect("it is an explanation");
        let now: Timestamp = "2026-01-01T00:01:10Z".parse().expect("a moment");
        let page = lines(&told, now, 80).join("\n");
        let expected = "\
provisioning since 00:00:10 (1 min ago)
  The machine is being prepared.

Waits for
  The machine is at its task. Since 00:00:12 (58 s ago).

Next step
  Berth's own, by 00:10:10 (in 9 min). After that it is given up.

You may
  release: Give it back.

Last steps
  00:00:00 The GPUs were asked for.";
        assert_eq!(page, expected, "\n{page}");
    }
}
