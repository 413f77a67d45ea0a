//! Why an allocation or a group is as it is, in one page.

use clap::Args;
use jiff::Timestamp;
use uuid::Uuid;
use wire::http::allocation_groups::AllocationGroup;
use wire::http::allocations::Allocation;
use wire::http::claims::Claim;
use wire::http::explain::{
    Awaited, Explanation, GroupExplanation, NextStep, Owner, RunAtIt, StepTaken,
};

use super::money;
use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::now;
use crate::resolve::pick;
use crate::say;
use crate::table::line_width;
use crate::words::{age, wrapped};

/// `berth explain`, `berth admin explain`
#[derive(Args)]
pub(crate) struct Explain {
    /// Which allocation or group: a name, an id, or how an id begins; or `charge`
    what: String,
    /// Which charge: a posting of your ledger, or how its id begins; the newest if you do not say
    charge: Option<String>,
    #[command(flatten)]
    output: Json,
}

/// The word that asks for what is behind a charge.
const CHARGE: &str = "charge";

/// What is explained.
enum Meant {
    Allocation(Uuid),
    Group(Uuid),
}

impl Explain {
    /// Nothing but a charge is named by two words.
    fn of_one_thing(&self) -> Done {
        match &self.charge {
            None => Ok(()),
            Some(word) => Err(Failure::new(
                Exit::Usage,
                format!("one thing at a time: what is {:?} meant to be?", say::clean(word)),
            )),
        }
    }

    /// Of what is the caller's own.
    pub(crate) async fn run(self, client: &Client) -> Done {
        if self.what == CHARGE {
            return money::explain(client, self.charge.as_deref(), self.output).await;
        }
        self.of_one_thing()?;
        let allocations = async || client.allocations(&[]).await;
        let meant = meant(&self.what, allocations, async || client.groups(None).await).await?;
        match meant {
            Some(Meant::Allocation(id)) => allocation(client.explain(id).await?, self.output),
            Some(Meant::Group(id)) => group(client.explain_group(id).await?, self.output),
            None => {
                let id = whole_id(&self.what)?;
                match client.explain(id).await {
                    Ok(told) => allocation(told, self.output),
                    Err(failure) if failure.exit == Exit::NotFound => {
                        group(client.explain_group(id).await?, self.output)
                    }
                    Err(failure) => Err(failure),
                }
            }
        }
    }

    /// Of anybody's, with what operators are told.
    pub(crate) async fn run_as_operator(self, client: &Client) -> Done {
        self.of_one_thing()?;
        let allocations = async || client.all_allocations(None).await;
        let meant = meant(&self.what, allocations, async || client.all_groups(None).await).await?;
        match meant {
            Some(Meant::Allocation(id)) => {
                allocation(client.operator_explain(id).await?, self.output)
            }
            Some(Meant::Group(id)) => group(client.operator_explain_group(id).await?, self.output),
            None => {
                let id = whole_id(&self.what)?;
                match client.operator_explain(id).await {
                    Ok(told) => allocation(told, self.output),
                    Err(failure) if failure.exit == Exit::NotFound => {
                        group(client.operator_explain_group(id).await?, self.output)
                    }
                    Err(failure) => Err(failure),
                }
            }
        }
    }
}

fn whole_id(word: &str) -> Done<Uuid> {
    let wrong = |_| Failure::new(Exit::Usage, format!("`{word}` is no id"));
    Uuid::try_parse(word).map_err(wrong)
}

/// What a word means: an allocation first, then a group. None for an id, which only who is asked can tell.
async fn meant(
    word: &str,
    allocations: impl AsyncFnOnce() -> Done<Vec<Allocation>>,
    groups: impl AsyncFnOnce() -> Done<Vec<AllocationGroup>>,
) -> Done<Option<Meant>> {
    if Uuid::try_parse(word).is_ok() {
        return Ok(None);
    }
    let all = allocations().await?;
    match pick(word, "allocation", &all, "alloc list") {
        Ok(found) => return Ok(Some(Meant::Allocation(found.id))),
        Err(failure) if failure.exit == Exit::NotFound => {}
        Err(failure) => return Err(failure),
    }
    let all = groups().await?;
    let found = pick(word, "allocation or group", &all, "alloc list")?;
    Ok(Some(Meant::Group(found.id)))
}

/// An explanation of an allocation, as it was asked for.
pub(crate) fn allocation(told: Explanation, output: Json) -> Done {
    if output.json { say::json(&told) } else { page(&told) }
}

/// An explanation of a group, as it was asked for.
pub(crate) fn group(told: GroupExplanation, output: Json) -> Done {
    if output.json {
        return say::json(&told);
    }
    say::data(lines_of_group(&told, now(), line_width()).join("\n"))
}

fn page(told: &Explanation) -> Done {
    say::data(lines(told, now(), line_width()).join("\n"))
}

fn lines(told: &Explanation, now: Timestamp, width: usize) -> Vec<String> {
    let mut page = Page { width, lines: Vec::new() };
    let reason = told.reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
    page.line(&format!("{}{reason} since {}", told.status, moment(now, told.since)));
    page.part(&told.doing);
    page.heading("Waits for", told.waits_for.is_empty());
    for wait in &told.waits_for {
        page.part(&awaited(wait, now));
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
    page.steps(&told.steps);
    page.heading("Said, and changed nothing", told.refused.is_empty());
    for refused in &told.refused {
        let by = refused.actor.as_ref().map_or_else(String::new, |actor| format!(" By {actor}."));
        page.part(&format!("{}  {}: {}{by}", clock(refused.at), refused.event, refused.sentence));
    }
    page.runs(&told.runs, now);
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

fn lines_of_group(told: &GroupExplanation, now: Timestamp, width: usize) -> Vec<String> {
    let mut page = Page { width, lines: Vec::new() };
    page.line(&format!("{} is {} since {}", told.name, told.status, moment(now, told.since)));
    page.part(&told.doing);
    if let Some(next) = &told.next_step {
        page.heading("Next step", false);
        page.part(&next_step(next, now));
    }
    page.heading("You may", told.may_do.is_empty());
    for may in &told.may_do {
        page.part(&format!("{}: {}", may.action, may.sentence));
        page.commands(may.command.iter());
    }
    page.heading("Members", told.members.is_empty());
    for member in &told.members {
        let reason = member.reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        let optional = if member.required { "" } else { ", optional" };
        let waited = if member.holds_up { ": the group waits for it" } else { "" };
        let since = moment(now, member.since);
        let status = member.status;
        page.part(&format!("{}{optional} is {status}{reason} since {since}{waited}", member.name));
        for wait in member.waits_for.iter().filter(|_| member.holds_up) {
            page.deeper(&awaited(wait, now));
        }
        if let Some(next) = member.next_step.as_ref().filter(|_| member.holds_up) {
            page.deeper(&next_step(next, now));
        }
        // What only somebody can do is offered here; for the rest there is the page of the member.
        let next = member.next_step.as_ref().map(|next| next.owner.0);
        let theirs = member.holds_up && next == Some(Owner::You);
        for may in member.may_do.iter().filter(|_| theirs) {
            page.commands(may.command.iter());
        }
    }
    page.steps(&told.steps);
    page.runs(&told.runs, now);
    page.lines
}

fn awaited(wait: &Awaited, now: Timestamp) -> String {
    let until = wait.until.map_or_else(String::new, |at| format!(", until {}", moment(now, at)));
    format!("{} Since {}{until}.", wait.what, moment(now, wait.since))
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
        self.indented(text, 2);
    }

    /// What belongs to the part before it.
    fn deeper(&mut self, text: &str) {
        self.indented(text, 4);
    }

    fn indented(&mut self, text: &str, by: usize) {
        let margin = " ".repeat(by);
        let lines = wrapped(&say::clean(text), self.width - by).into_iter();
        self.lines.extend(lines.map(|line| format!("{margin}{line}")));
    }

    fn steps(&mut self, steps: &[StepTaken]) {
        self.heading("Last steps", steps.is_empty());
        for step in steps {
            let by = step.actor.as_ref().map_or_else(String::new, |actor| format!(" By {actor}."));
            let reason = step.reason.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            self.part(&format!("{}  {}{reason}{by}", clock(step.at), step.summary));
        }
    }

    fn runs(&mut self, runs: &[RunAtIt], now: Timestamp) {
        self.heading("Workflows", runs.is_empty());
        for run in runs {
            let waits = run.waits_for.as_deref().unwrap_or("nothing");
            let until = run.wakes_at.map_or_else(|| "now".to_owned(), |at| moment(now, at));
            let failed =
                run.reason.as_ref().map_or_else(String::new, |why| format!("; failed: {why}"));
            self.part(&format!("{} waits for {waits}, due {until}{failed}", run.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;
    use wire::http::explain::{Explanation, GroupExplanation};

    use super::{lines, lines_of_group};

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
    #[test]
    fn a_page_of_a_group_says_which_members_it_waits_for() {
        let told: GroupExplanation = serde_json::from_value(json!({
            "group_id": "0198c0de-0000-7000-8000-0000000000aa", "name": "training", "status": "provisioning",
            "since": "2026-01-01T00:00:10Z", "doing": "1 of 2 members are ready.",
            "next_step": {
                "owner": "berth", "by": "2026-01-01T00:10:10Z", "overdue": false, "then": "It waits for training-2."
            },
            "may_do": [{ "action": "release", "sentence": "Give it all back." }],
            "members": [
                {
                    "allocation_id": "0198c0de-0000-7000-8000-0000000000ab", "name": "training-1", "required": false,
                    "holds_up": false, "status": "active", "since": "2026-01-01T00:00:12Z", "doing": "It runs.",
                    "waits_for": [], "next_step": null, "may_do": []
                },
                {
                    "allocation_id": "0198c0de-0000-7000-8000-0000000000ac", "name": "training-2", "required": true,
                    "holds_up": true, "status": "provisioning", "since": "2026-01-01T00:00:12Z", "doing": "It comes.",
                    "waits_for": [{ "what": "The machine is at its task.", "since": "2026-01-01T00:00:13Z" }],
                    "next_step": null, "may_do": []
                }
            ],
            "steps": []
        }))
        .expect("it is an explanation");
        let now: Timestamp = "2026-01-01T00:01:10Z".parse().expect("a moment");
        let page = lines_of_group(&told, now, 80).join("\n");
        let expected = "\
training is provisioning since 00:00:10 (1 min ago)
  1 of 2 members are ready.

Next step
  Berth's own, by 00:10:10 (in 9 min). It waits for training-2.

You may
  release: Give it all back.

Members
  training-1, optional is active since 00:00:12 (58 s ago)
  training-2 is provisioning since 00:00:12 (58 s ago): the group waits for it
    The machine is at its task. Since 00:00:13 (57 s ago).";
        assert_eq!(page, expected, "\n{page}");
    }
}
