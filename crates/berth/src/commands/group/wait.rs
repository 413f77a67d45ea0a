//! Waiting for a group, with its members on the screen.

use std::time::Duration;

use domain::derived::allocation_group::Status;
use domain::machines::allocation::Status as Member;
use tokio::time::{MissedTickBehavior, interval, timeout};
use wire::http::allocation_groups::{AllocationGroup, GroupMember};

use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::{Stopwatch, now};
use crate::progress::{State, Step, View};
use crate::words::{between, span};

const POLL: Duration = Duration::from_millis(300);
/// How long the control plane may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// That every required member can be used.
    Active,
    /// That every member is gone.
    Released,
}

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It came.
    Reached,
    /// It will not come.
    Missed,
    /// It did not come in time.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

/// Waits; answers with the group as it was seen last.
pub(super) async fn wait(
    client: &Client,
    group: &AllocationGroup,
    goal: Goal,
    (patience, output): (Option<Duration>, Json),
) -> Done<(Ended, AllocationGroup)> {
    let mut seen = group.clone();
    let mut view = View::fitting(output.json);
    let following = follow(client, goal, &mut seen, &mut view);
    let ended = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => None,
        ended = timeout(patience.unwrap_or(Duration::MAX), following) => {
            Some(ended.unwrap_or(Ok(Ended::TimedOut)))
        }
    };
    match ended {
        Some(ended) => {
            view.end();
            Ok((ended?, seen))
        }
        None => {
            view.freeze();
            Ok((Ended::Interrupted, seen))
        }
    }
}

async fn follow(
    client: &Client,
    goal: Goal,
    seen: &mut AllocationGroup,
    view: &mut View,
) -> Done<Ended> {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut away: Option<Stopwatch> = None;
    loop {
        ticks.tick().await;
        match client.group(seen.id).await {
            Ok(group) => *seen = group,
            Err(failure) if failure.passing => {
                if away.is_none() {
                    let why = &failure.sentence;
                    view.remark(&format!("The connection is lost ({why}); still waiting."));
                }
                if away.get_or_insert_with(Stopwatch::start).elapsed() > PATIENCE {
                    return Err(failure);
                }
                continue;
            }
            Err(failure) => return Err(failure),
        }
        if away.take().is_some() {
            view.remark("The connection is back.");
        }
        let steps: Vec<Step> = seen.members.iter().map(|member| step(goal, member)).collect();
        view.show_steps(&steps);
        if let Some(ended) = judge(goal, seen) {
            return Ok(ended);
        }
    }
}

/// Whether waiting is over.
fn judge(goal: Goal, group: &AllocationGroup) -> Option<Ended> {
    let gone = |member: &GroupMember| matches!(member.status.0, Member::Released | Member::Failed);
    let rest = |member: &GroupMember| gone(member) || member.status.0 == Member::ReleaseFailed;
    match (goal, group.status.0) {
        (Goal::Active, Status::Requested | Status::Provisioning) => None,
        (Goal::Active, Status::Active) => Some(Ended::Reached),
        (
            Goal::Active,
            Status::Degraded
            | Status::Releasing
            | Status::ReleaseFailed
            | Status::Released
            | Status::Failed,
        ) => Some(Ended::Missed),
        // A group that failed stays failed while its last members go.
        (Goal::Released, _) if group.members.iter().all(gone) => Some(Ended::Reached),
        (Goal::Released, _) if group.members.iter().all(rest) => Some(Ended::Missed),
        (Goal::Released, _) => None,
    }
}

/// A member as a line.
fn step(goal: Goal, member: &GroupMember) -> Step {
    let state = match (goal, member.status.0) {
        (_, Member::ReleaseFailed | Member::RestartFailed) | (Goal::Active, Member::Failed) => {
            State::Failed
        }
        (Goal::Active, Member::Requested)
        | (
            Goal::Released,
            Member::Requested | Member::Provisioning | Member::Active | Member::Restarting,
        ) => State::Waiting,
        (Goal::Active, Member::Provisioning | Member::Restarting)
        | (Goal::Released, Member::Releasing) => State::Running,
        (Goal::Active, Member::Active) | (Goal::Released, Member::Released | Member::Failed) => {
            State::Done
        }
        (Goal::Active, Member::Releasing | Member::Released) => State::Cancelled,
    };
    let text = format!("{}: {} × {}, {}", member.name, member.gpus, member.sku, member.status);
    let took = match state {
        State::Waiting | State::Running => Some(between(member.status_at, now())),
        State::Done | State::Failed | State::Cancelled => None,
    };
    Step::of(member.id.to_string(), &text, state, took)
}

/// What to say when it did not come.
pub(super) fn failure(
    ended: Ended,
    group: &AllocationGroup,
    patience: Option<Duration>,
) -> Failure {
    let name = &group.name;
    if ended == Ended::TimedOut {
        let after = patience.map(span).unwrap_or_default();
        let sentence = format!("{name} is not there after {after}; it goes on without us");
        return Failure::new(Exit::TimedOut, sentence).next(&format!("group show {name}"));
    }
    let sentence = match group.status.0 {
        Status::Degraded => format!("{name} came up without some of its members"),
        Status::Failed => format!("{name} could not be prepared"),
        Status::ReleaseFailed => format!("the clean-up of {name} did not succeed"),
        Status::Releasing | Status::Released => format!("{name} was given back meanwhile"),
        Status::Requested | Status::Provisioning | Status::Active => {
            format!("{name} is {}", group.status)
        }
    };
    let mut failure =
        Failure::new(Exit::EndedBadly, sentence).with("what", group.status_text.clone());
    let failed = |member: &&GroupMember| {
        matches!(member.status.0, Member::Failed | Member::ReleaseFailed | Member::RestartFailed)
    };
    for member in group.members.iter().filter(failed) {
        let why = member.status_reason.as_deref().unwrap_or("no reason was given");
        failure = failure.with(&member.name, format!("{}: {why}", member.status));
    }
    failure.next(&format!("group show {name}"))
}
