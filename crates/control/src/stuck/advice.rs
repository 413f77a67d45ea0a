//! What an operator can do about something that is stuck: a sentence, and the very command.

use domain::machines::{allocation, claim};
use lifecycle::Code as _;
use store::deliveries::DeadRow;
use store::views::stuck::{Failing, Standing};
use uuid::Uuid;
use wire::http::allocations::Action;

/// What to do. In a command, `{id}` and `{name}` are the row's, `{node}` is its node's name, `{allocation}` is whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// What can be done.
    pub action: &'static str,
    /// The command that does it, or shows more.
    pub command: &'static str,
    /// The command for when that does not help.
    pub otherwise: Option<&'static str>,
}

const fn advise(
    machine: &'static str,
    status: &'static str,
    action: &'static str,
    command: &'static str,
) -> (&'static str, &'static str, Advice) {
    (machine, status, Advice { action, command, otherwise: None })
}

const fn or(
    (machine, status, advice): (&'static str, &'static str, Advice),
    otherwise: &'static str,
) -> (&'static str, &'static str, Advice) {
    (machine, status, Advice { otherwise: Some(otherwise), ..advice })
}

const AUDIT: &str = "berth audit";
const TIMELINE: &str = "berth admin timeline {id}";
const FORCE: &str = "berth admin force-release {id} --reason WHY";
const NODE: &str = "berth admin nodes show {node}";
const PAYMENTS: &str = "berth admin payments list --stuck";
const THIS_NODE: &str = "berth admin nodes show {name}";

/// For what there is nothing better to say about.
const OTHERWISE: Advice =
    Advice { action: "See what else does not hold.", command: AUDIT, otherwise: None };

/// What to do about one status of one machine. Claims are judged by their allocation too: see [`of_claim`]. A machine that
/// is not here is answered with `berth audit` until it has stories.
#[rustfmt::skip]
const TABLE: &[(&str, &str, Advice)] = &[
    or(advise("allocation", "requested", "See that workers run: it is taken up by the next sweep.", TIMELINE), FORCE),
    or(advise("allocation", "provisioning", "See how far the node is; take it back if the node is lost.", TIMELINE), FORCE),
    or(advise("allocation", "restarting", "See how far the node is; take it back if the node is lost.", TIMELINE), FORCE),
    or(advise("allocation", "restart_failed", "Its owner can restart or release it; if they do not, take it back.", TIMELINE), FORCE),
    advise("allocation", "releasing", "See how far the node is: it is given up by itself.", TIMELINE),
    or(advise("allocation", "release_failed", "Release it once more when the node is well again; if the machine can't clean up any more, see to it by hand and abandon the release.", FORCE),
        "berth admin abandon {id} --reason WHY"),
    advise("node", "enrolling", "Start its agent; the join token may have expired, so make another.", "berth admin nodes join-token {name}"),
    or(advise("node", "offline", "See that the machine and its agent run; if it does not come back, drain it.", THIS_NODE),
        "berth admin nodes drain {name} --reason WHY"),
    advise("node", "draining", "See who is still on it.", THIS_NODE),
    advise("payment_session", "initiated", "Nothing: it is looked up at the provider, and expires by itself.", PAYMENTS),
    advise("payment_session", "checkout_completed", "See that workers run: it is credited, or given up, by itself.", PAYMENTS),
    advise("payment_session", "failed_reconcile", "See at the provider what was paid, and credit that with `berth admin payments resolve`.", PAYMENTS),
    advise("node_task", "queued", "See that the node's agent runs and asks for work.", NODE),
    advise("node_task", "dispatched", "See that the node's agent runs: it is given to it again by itself.", NODE),
];

/// What an operator does about a claim of an allocation that stands so.
pub const fn of_claim(status: claim::Status, of: allocation::Status) -> Advice {
    use allocation::Status::{
        Active, Failed, Provisioning, ReleaseFailed, Released, Releasing, Requested, RestartFailed,
        Restarting,
    };
    let (action, command, otherwise) = match (status, of) {
        (claim::Status::Stuck, ReleaseFailed) => (
            "Release the allocation once more; if the machine can't clean up any more, see to it by hand and abandon the release.",
            "berth admin force-release {allocation} --reason WHY",
            Some("berth admin abandon {allocation} --reason WHY"),
        ),
        (claim::Status::Stuck, Failed) => (
            "Have it cleaned up once more; if the machine can't any more, set the claim aside.",
            "berth admin clean {allocation} --reason WHY",
            Some("berth admin quarantine {id} --reason WHY"),
        ),
        (
            claim::Status::Stuck,
            Requested | Provisioning | Active | Restarting | RestartFailed | Releasing | Released,
        ) => {
            ("Nothing: its allocation is being seen to.", "berth admin timeline {allocation}", None)
        }
        (claim::Status::Quarantined, _) => (
            "See to the machine by hand: nothing of the allocation may be left on it. Then clear the claim.",
            "berth admin clear {id} --reason WHY",
            Some(NODE),
        ),
        (claim::Status::Reserved | claim::Status::Held, _) => {
            ("Nothing: its allocation leads it on.", "berth admin timeline {allocation}", None)
        }
        (claim::Status::Cleaning, _) => {
            ("Nothing: the node cleans up.", "berth admin timeline {allocation}", Some(NODE))
        }
        (claim::Status::Freed, _) => ("Nothing: it is free.", NODE, None),
    };
    Advice { action, command, otherwise }
}

/// The command for something that may be done with an allocation.
pub const fn of_action(action: Action, operator: bool) -> &'static str {
    match action {
        Action::Restart if operator => "berth admin restart {id}",
        Action::Restart => "berth alloc restart {id}",
        Action::Release => "berth alloc release {id}",
        Action::ForceRelease => FORCE,
        Action::Abandon => "berth admin abandon {id} --reason WHY",
        Action::Clean => "berth admin clean {id} --reason WHY",
    }
}

/// Every command that is ever advised, as it stands in the tables.
pub fn commands() -> Vec<&'static str> {
    let mut all: Vec<Advice> = TABLE.iter().map(|(_, _, advice)| *advice).collect();
    all.push(OTHERWISE);
    for status in claim::Status::ALL {
        all.extend(allocation::Status::ALL.iter().map(|of| of_claim(*status, *of)));
    }
    let advised = all.into_iter().flat_map(|advice| [Some(advice.command), advice.otherwise]);
    let mut commands: Vec<&str> = advised.flatten().collect();
    for action in Action::ALL {
        commands.extend([of_action(*action, false), of_action(*action, true)]);
    }
    commands.sort_unstable();
    commands.dedup();
    commands
}

/// What to do about one thing: a sentence, and commands that can be typed as they are but for the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) action: String,
    pub(crate) command: String,
    pub(crate) otherwise: Option<String>,
}

/// What is put in place of the names in braces.
pub(crate) struct Names<'a> {
    pub(crate) id: Uuid,
    pub(crate) name: Option<&'a str>,
    pub(crate) node: Option<&'a str>,
    pub(crate) allocation: Option<Uuid>,
}

impl Names<'_> {
    pub(crate) fn tell(&self, advice: &Advice) -> Told {
        Told {
            action: advice.action.to_owned(),
            command: self.fill(advice.command),
            otherwise: advice.otherwise.map(|command| self.fill(command)),
        }
    }

    pub(crate) fn fill(&self, command: &str) -> String {
        let id = self.id.to_string();
        let allocation = self.allocation.map_or_else(|| id.clone(), |of| of.to_string());
        command
            .replace("{id}", &id)
            .replace("{allocation}", &allocation)
            .replace("{name}", &quoted(self.name.unwrap_or(&id)))
            .replace("{node}", &quoted(self.node.unwrap_or("?")))
    }
}

/// What to do about a row.
pub(super) fn about(row: &Standing) -> Told {
    let of = row.allocation.as_ref().map(|(id, _)| *id);
    let names = Names {
        id: row.id,
        name: row.name.as_deref(),
        node: row.node.as_ref().map(|(name, _)| name.as_str()),
        allocation: of,
    };
    names.tell(&advice_on(row))
}

fn advice_on(row: &Standing) -> Advice {
    let of = row.allocation.as_ref().and_then(|(_, status)| allocation::Status::parse(status));
    if row.machine == "claim"
        && let (Some(status), Some(of)) = (claim::Status::parse(&row.status), of)
    {
        return of_claim(status, of);
    }
    let known =
        TABLE.iter().find(|(machine, status, _)| *machine == row.machine && *status == row.status);
    known.map_or(OTHERWISE, |(_, _, advice)| *advice)
}

/// A word of a command line: names are written by people.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.?".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(super) fn of_run(run: &Failing) -> Told {
    let action = "What it says went wrong is a fault of ours or of the database: it goes on by itself once that is mended.";
    let command = format!("berth admin timeline {}", run.entity_id);
    Told { action: action.to_owned(), command, otherwise: None }
}

pub(super) fn of_letter(letter: &DeadRow) -> Told {
    let action = "Mend what it says went wrong, then hand it out once more.";
    let command =
        format!("berth admin dead-letters redrive {} {}", letter.consumer, letter.event_id);
    Told { action: action.to_owned(), command, otherwise: None }
}

#[cfg(test)]
mod tests {
    use store::views::stuck::waiting;

    use super::{TABLE, quoted};

    #[test]
    fn every_status_of_a_machine_with_stories_has_its_own_advice_and_none_is_of_nothing() {
        let known: Vec<_> = TABLE.iter().map(|(machine, status, _)| (*machine, *status)).collect();
        let statuses: Vec<_> = waiting().iter().map(|each| (each.machine, each.status)).collect();
        for each in &known {
            assert!(statuses.contains(each), "{each:?} is no status with a deadline");
        }
        let with_stories = ["allocation", "node", "node_task"];
        for each in statuses.iter().filter(|each| with_stories.contains(&each.0)) {
            assert!(known.contains(each), "nobody says what to do about {each:?}");
        }
    }

    #[test]
    fn a_name_is_one_word_of_the_command() {
        assert_eq!(quoted("eu-1-h100.1"), "eu-1-h100.1");
        assert_eq!(quoted("my node; rm -rf /"), "'my node; rm -rf /'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
