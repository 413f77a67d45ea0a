//! The words of a timeline: names and sentences, all of them ours. A word that somebody else wrote chooses one of them, or
//! is left out.

use domain::machines::allocation::{Event, Status};
use domain::machines::node_task;
use lifecycle::writer::BORN;
use lifecycle::{Code as _, Source};
use store::log::Transition;
use wire::http::timeline::ItemStatus;
use wire::node::TaskKind;

/// How much of what an agent says is shown, and to operators alone.
const MESSAGE_CHARACTERS_MAX: usize = 512;

/// What a step of an allocation is called, what it means, and whether it is a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) name: &'static str,
    pub(crate) sentence: &'static str,
    pub(crate) failed: bool,
}

/// The words for a step. One of a newer binary is told too, for its time must belong to something.
pub(crate) fn of_step(step: &Transition) -> Told {
    let from = step.from.as_deref().and_then(Status::parse);
    match Event::parse(&step.event) {
        None if step.event == BORN => {
            Told { name: "requested", sentence: "The GPUs were asked for.", failed: false }
        }
        None => Told {
            name: "other",
            sentence: "Something happened that this version does not know.",
            failed: false,
        },
        Some(event) => {
            let (name, failed) = name_of(event);
            let by_operator = Source::Operator.code() == step.source;
            Told { name, sentence: sentence_of(event, from, by_operator), failed }
        }
    }
}

/// What an event is called in a timeline, and whether it is a failure.
const fn name_of(event: Event) -> (&'static str, bool) {
    match event {
        Event::ProvisionStarted => ("provisioning_started", false),
        Event::ProvisionSucceeded | Event::RestartCompleted => ("active", false),
        Event::ProvisionFailed => ("failed", true),
        Event::RestartRequested => ("restarting", false),
        Event::RestartFailedToReturn => ("restart_failed", true),
        Event::ReleaseRequested => ("releasing", false),
        Event::ReleaseCompleted | Event::ReleaseAbandoned => ("released", false),
        Event::ReleaseExhausted => ("release_failed", true),
    }
}

const fn sentence_of(event: Event, from: Option<Status>, by_operator: bool) -> &'static str {
    match event {
        Event::ProvisionStarted => "Work on the machine began.",
        Event::ProvisionSucceeded => "It is ready to use, and billed from here on.",
        Event::ProvisionFailed => "It could not be prepared. You were not charged.",
        Event::RestartRequested => match from {
            Some(Status::RestartFailed) => "The restart is tried again.",
            _ => "A restart was asked for; SSH and terminals disconnect.",
        },
        Event::RestartCompleted => "It is back, and ready to use.",
        Event::RestartFailedToReturn => "The restart did not succeed. It is not billed meanwhile.",
        Event::ReleaseRequested => released_by(from, by_operator),
        Event::ReleaseCompleted => "The clean-up is proven: nothing was left behind.",
        Event::ReleaseExhausted => {
            "The clean-up did not succeed. The machine stays locked until it does."
        }
        Event::ReleaseAbandoned => {
            "An operator sees to the machine by hand; nobody else gets it until it is cleared."
        }
    }
}

const fn released_by(from: Option<Status>, by_operator: bool) -> &'static str {
    match (from, by_operator) {
        (Some(Status::ReleaseFailed), _) => "The clean-up is tried again.",
        (Some(Status::Requested | Status::Provisioning), true) => {
            "An operator called it off before it was ready. You were not charged."
        }
        (Some(Status::Requested | Status::Provisioning), false) => {
            "It was called off before it was ready. You were not charged."
        }
        (_, true) => "An operator took the machine back. Billing stopped here.",
        (Some(Status::Restarting), false) => {
            "It was given back in the middle of a restart. Billing stopped here."
        }
        (_, false) => "It was given back. Billing stopped here.",
    }
}

/// The name of a task and what it does.
pub(crate) fn of_task(kind: &str) -> (&'static str, &'static str) {
    TaskKind::parse(kind)
        .map_or(("other", "Other work on the machine"), |kind| (kind.code(), summary_of(kind)))
}

const fn summary_of(kind: TaskKind) -> &'static str {
    match kind {
        TaskKind::SliceProvision => "Creating GPU slice VM",
        TaskKind::SliceRestart => "Restarting GPU slice VM",
        TaskKind::NodeReboot => "Rebooting the machine",
        TaskKind::SliceRelease => "Stopping and wiping GPU slice VM",
        TaskKind::UserProvision => "Preparing the account on the machine",
        TaskKind::UserDeprovision => "Removing the account from the machine and wiping it",
    }
}

/// How a task stands, as an item of a timeline.
pub(crate) const fn status_of(status: node_task::Status) -> ItemStatus {
    match status {
        node_task::Status::Queued => ItemStatus::Waiting,
        node_task::Status::Dispatched => ItemStatus::Running,
        node_task::Status::Succeeded => ItemStatus::Succeeded,
        node_task::Status::Failed | node_task::Status::Expired => ItemStatus::Failed,
        node_task::Status::Cancelled => ItemStatus::Cancelled,
    }
}

/// What somebody else wrote, as a short text without control characters.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARACTERS_MAX).collect()
}
