//! What an operator can do about something that is stuck: a sentence, and the very command.

use store::deliveries::DeadRow;
use store::views::stuck::{Failing, Standing};

/// What to do about one status of one machine. In a command, `{id}` and `{name}` are the row's, `{node}` is its node's name.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// Whose status.
    pub machine: &'static str,
    /// Which.
    pub status: &'static str,
    /// What can be done.
    pub action: &'static str,
    /// The command that does it, or shows more.
    pub command: &'static str,
}

const fn advise(
    machine: &'static str,
    status: &'static str,
    action: &'static str,
    command: &'static str,
) -> Advice {
    Advice { machine, status, action, command }
}

/// For what there is nothing better to say about.
const OTHERWISE: Advice = advise("", "", "see what else does not hold", "berth audit");

/// What there is to say. A machine that is not here is answered with [`OTHERWISE`] until it has stories.
#[rustfmt::skip]
pub const TABLE: &[Advice] = &[
    advise("allocation", "requested", "see that workers run; it is taken up by the next sweep", "berth admin timeline {id}"),
    advise("allocation", "provisioning", "see how far the node is; take it back if the node is lost", "berth admin timeline {id}"),
    advise("allocation", "restarting", "see how far the node is; take it back if the node is lost", "berth admin timeline {id}"),
    advise("allocation", "restart_failed", "its owner can restart or release it; if they do not, take it back", "berth admin force-release {id} --reason \"restart failed\""),
    advise("allocation", "releasing", "see how far the node is; it is given up by itself", "berth admin timeline {id}"),
    advise("allocation", "release_failed", "try the clean-up once more, when the node is well again", "berth admin force-release {id} --reason \"clean-up failed\""),
    advise("claim", "reserved", "see the node and its slots; its allocation leads it on", "berth admin nodes show {node}"),
    advise("claim", "cleaning", "see the node and its slots; its allocation leads it on", "berth admin nodes show {node}"),
    advise("claim", "stuck", "see the node and its slots; a new release cleans it up", "berth admin nodes show {node}"),
    advise("claim", "quarantined", "see the node; put it back when it is known to be clean", "berth admin nodes show {node}"),
    advise("node", "enrolling", "start its agent; the join token may have expired, so make another", "berth admin nodes join-token {name}"),
    advise("node", "offline", "see that the machine and its agent run", "berth admin nodes show {name}"),
    advise("node", "draining", "see who is still on it", "berth admin nodes show {name}"),
    advise("node_task", "queued", "see that the node's agent runs and asks for work", "berth admin nodes show {node}"),
    advise("node_task", "dispatched", "see that the node's agent runs; it is given to it again by itself", "berth admin nodes show {node}"),
];

/// What to do about a row.
pub(super) fn about(row: &Standing) -> (String, String) {
    let known = |each: &&Advice| each.machine == row.machine && each.status == row.status;
    let advice = TABLE.iter().find(known).unwrap_or(&OTHERWISE);
    let node = row.node.as_ref().map_or("?", |(name, _)| name.as_str());
    let id = row.id.to_string();
    let name = row.name.as_deref().unwrap_or(&id);
    (advice.action.to_owned(), filled(advice.command, &id, name, node))
}

fn filled(command: &str, id: &str, name: &str, node: &str) -> String {
    command.replace("{id}", id).replace("{name}", &quoted(name)).replace("{node}", &quoted(node))
}

/// A word of a command line: names are written by people.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.?".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(super) fn of_run(run: &Failing) -> (String, String) {
    let action = "what it says went wrong is a fault of ours or of the database: it goes on by itself once that is mended";
    (action.to_owned(), format!("berth admin timeline {}", run.entity_id))
}

pub(super) fn of_letter(letter: &DeadRow) -> (String, String) {
    let command =
        format!("berth admin dead-letters redrive {} {}", letter.consumer, letter.event_id);
    ("mend what it says went wrong, then hand it out once more".to_owned(), command)
}

#[cfg(test)]
mod tests {
    use store::views::stuck::waiting;

    use super::{TABLE, quoted};

    #[test]
    fn every_status_of_a_machine_with_stories_has_its_own_advice_and_none_is_of_nothing() {
        let known: Vec<_> = TABLE.iter().map(|each| (each.machine, each.status)).collect();
        let statuses: Vec<_> = waiting().iter().map(|each| (each.machine, each.status)).collect();
        for each in &known {
            assert!(statuses.contains(each), "{each:?} is no status with a deadline");
        }
        let with_stories = ["allocation", "claim", "node", "node_task"];
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
