//! Which rules of which machines were exercised, and which need not be, with the reason.

use std::collections::BTreeSet;

use domain::machines::tables;

/// Machines that no story moves yet, and why.
const WITHOUT_STORY: &[(&str, &str)] = &[
    ("payment_session", "payments come from outside, and no run has an outside"),
    ("terminal_session", "terminals have no story yet"),
    ("storage_attachment", "storage has no story yet"),
    ("usage_record", "usage has no story yet"),
    ("balance", "balances have no story yet"),
];

/// Rules that no run can reach: machine, event, status before, and why. An empty status stands for every one.
const EXCUSED: &[(&str, &str, &str, &str)] = &[
    ("node", "node.enrolled", "enrolling", "nodes are enrolled before a run begins"),
    ("node", "node.retired", "enrolling", "nodes are enrolled before a run begins"),
];

/// Every rule that must be exercised and was not: machine, event, status before, status after.
pub fn missing(taken: &BTreeSet<[String; 4]>) -> Vec<String> {
    let mut missing = Vec::new();
    for table in tables() {
        if WITHOUT_STORY.iter().any(|(machine, _)| *machine == table.name) {
            continue;
        }
        for (event, from, to) in table.edges() {
            let (event, from, to) =
                (table.events[event].code, table.statuses[from].code, table.statuses[to].code);
            let excused = EXCUSED.iter().any(|(machine, rule, status, _)| {
                *machine == table.name && *rule == event && (status.is_empty() || *status == from)
            });
            let step = [table.name, event, from, to].map(str::to_owned);
            if !excused && !taken.contains(&step) {
                missing.push(format!("{}: {event} from {from} to {to}", table.name));
            }
        }
    }
    missing
}

/// How many rules were exercised, of how many that a story can reach.
pub fn share(taken: &BTreeSet<[String; 4]>) -> (usize, usize) {
    let of_stories = |machine: &str| !WITHOUT_STORY.iter().any(|(other, _)| *other == machine);
    let all: usize = tables()
        .iter()
        .filter(|table| of_stories(table.name))
        .map(|table| table.edges().len())
        .sum();
    // A birth is no rule.
    let taken =
        taken.iter().filter(|[machine, _, from, _]| of_stories(machine) && !from.is_empty());
    (taken.count(), all)
}
