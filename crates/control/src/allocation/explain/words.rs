//! The sentences of an explanation: why a report changed nothing, what comes of an action, what a deadline leads to.

use domain::machines::allocation::{Event, Status};
use domain::machines::node_task;
use lifecycle::{Code as _, Source};
use store::views::explain::Refused;
use wire::http::allocations::Action;
use wire::http::explain::Owner;

use crate::allocation::timeline::Reader;

/// Why a report changed nothing.
pub(crate) fn sentence_of_refusal(refused: &Refused) -> String {
    match (refused.reason.as_str(), refused.name.as_deref()) {
        ("superseded" | "guard", Some(name)) => {
            of_condition(name).unwrap_or("A condition did not hold.").to_owned()
        }
        ("late", _) => match known_status(refused) {
            Some(status) => format!("It came too late: it was {status} already."),
            None => "It came too late.".to_owned(),
        },
        ("bug", _) => match known_status(refused) {
            Some(status) => format!("Nobody should have said this while it was {status}."),
            None => "Nobody should have said this.".to_owned(),
        },
        ("not_found", _) => "There was no such thing.".to_owned(),
        ("conflict", _) => "Somebody else was faster; it was tried again.".to_owned(),
        _ => "It changed nothing.".to_owned(),
    }
}

/// The status at the time, in our spelling.
fn known_status(refused: &Refused) -> Option<&'static str> {
    let status = refused.status.as_deref()?;
    match refused.task {
        None => Status::parse(status).map(|status| status.code()),
        Some(_) => node_task::Status::parse(status).map(|status| status.code()),
    }
}

/// What it means that a check or a guard does not hold.
pub(crate) fn of_condition(name: &str) -> Option<&'static str> {
    Some(match name {
        "same_operation" => "It answers an earlier attempt; a newer one has begun since.",
        "same_node" => "It came from the agent of another machine.",
        "same_agent" => "It came from an agent that did not hold the task any more.",
        "same_dispatch" => "It was about an earlier hand-out of the task.",
        "attempts_remain" => "The task had been handed out as often as it may be.",
        "no_live_tasks" => "Something on the machine was still working for it.",
        _ => return None,
    })
}

/// What comes of an action.
pub(crate) const fn sentence_of_action(action: Action) -> &'static str {
    match action {
        Action::Restart => {
            "Restart it: SSH and terminals disconnect for a while; it stays yours, with everything on it."
        }
        Action::Release => {
            "Give it back: billing stops, the machine and its local disk are erased. If it is still being prepared, that is called off."
        }
        Action::ForceRelease => "Take it back from its tenant, as an operator, with a reason.",
        Action::Abandon => {
            "End its release without a proof, as an operator who sees to the machine by hand: what it held is set aside until it is cleared."
        }
        Action::Clean => "Have the machine clean up after it once more, as an operator.",
    }
}

/// What happens when a deadline passes.
pub(crate) const fn sentence_of_time_out(event: Event) -> &'static str {
    match event {
        Event::ProvisionFailed => {
            "After that it is given up: it is failed, cleaned up, and was never charged."
        }
        Event::RestartFailedToReturn => {
            "After that the restart is given up; it stays yours, unbilled, to be tried again or released."
        }
        Event::ReleaseExhausted => {
            "After that the clean-up is given up and an operator is asked; it is not billed, and stays locked."
        }
        Event::ProvisionStarted
        | Event::ProvisionSucceeded
        | Event::RestartRequested
        | Event::RestartCompleted
        | Event::ReleaseRequested
        | Event::ReleaseCompleted
        | Event::ReleaseAbandoned => "After that it goes on by itself.",
    }
}

/// Who takes the next step, as the reader would say it.
pub(crate) const fn owner_of(owner: Source, reader: Reader) -> Owner {
    match owner {
        Source::User => match reader {
            Reader::Tenant => Owner::You,
            Reader::Operator => Owner::Nobody,
        },
        Source::Operator => match reader {
            Reader::Tenant => Owner::Operator,
            Reader::Operator => Owner::You,
        },
        Source::Agent => Owner::Machine,
        Source::Worker | Source::Timer | Source::Reconciler | Source::Outside | Source::Derived => {
            Owner::Berth
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::machines::{Allocation, NodeTask};
    use jiff::Timestamp;
    use lifecycle::Lawful as _;
    use store::views::explain::Refused;

    use super::{of_condition, sentence_of_refusal};

    #[test]
    fn every_check_and_every_guard_has_its_sentence() {
        for table in [Allocation::table(), NodeTask::table()] {
            for event in &table.events {
                let checks = event.checks.iter().map(|check| check.name);
                for name in checks.chain(event.guards.iter().map(|guard| guard.0)) {
                    assert!(of_condition(name).is_some(), "{}: {name}", event.code);
                }
            }
        }
    }

    #[test]
    fn what_others_wrote_chooses_a_sentence_and_is_never_in_one() {
        for reason in ["superseded", "guard", "late", "bug", "not_found", "conflict", "<b>"] {
            let refused = Refused {
                task: None,
                event: "<b>".to_owned(),
                status: Some("<b>".to_owned()),
                reason: reason.to_owned(),
                name: Some("<b>".to_owned()),
                actor: "<b>".to_owned(),
                at: Timestamp::UNIX_EPOCH,
            };
            let sentence = sentence_of_refusal(&refused);
            assert!(!sentence.contains('<') && sentence.ends_with('.'), "{sentence}");
        }
    }
}
