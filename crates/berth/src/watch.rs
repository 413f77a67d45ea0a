//! Waiting for an allocation, with its steps on the screen. A control plane that is away for a while is waited for too:
//! nothing is lost meanwhile.

use std::time::Duration;

use domain::machines::allocation::Status;
use tokio::time::timeout;
use uuid::Uuid;
use wire::http::allocations::Allocation;
use wire::http::timeline::{ItemStatus, Timeline};

use crate::client::Client;
use crate::client::events::{Events, Offer};
use crate::exit::{Done, Exit, Failure};
use crate::moment::{Stopwatch, now, pause};
use crate::progress::View;
use crate::words::span;

/// How often it is looked where nothing is told by itself.
const POLL: Duration = Duration::from_millis(300);
/// How often times that run are shown anew.
const REDRAW: Duration = Duration::from_secs(1);
/// The other end gives a sign of life every 15 seconds; who has heard none for three times as long is alone.
const QUIET_REDRAWS_MAX: u32 = 45;
/// How long the control plane may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// That it can be used.
    Active,
    /// That it is gone.
    Released,
    /// That nothing goes on any more, however it ended.
    Rest,
}

/// How a status relates to what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Going,
    Reached,
    /// It will not come.
    Missed,
}

impl Goal {
    const fn judge(self, status: Status) -> Verdict {
        match (self, status) {
            (Goal::Active, Status::Active) | (Goal::Released, Status::Released) => Verdict::Reached,
            (Goal::Active | Goal::Released, Status::Failed | Status::ReleaseFailed) => {
                Verdict::Missed
            }
            (Goal::Active, Status::RestartFailed | Status::Releasing | Status::Released) => {
                Verdict::Missed
            }
            (Goal::Active, Status::Requested | Status::Provisioning | Status::Restarting) => {
                Verdict::Going
            }
            (
                Goal::Released,
                Status::Requested
                | Status::Provisioning
                | Status::Active
                | Status::Restarting
                | Status::RestartFailed
                | Status::Releasing,
            ) => Verdict::Going,
            (
                Goal::Rest,
                Status::Active
                | Status::RestartFailed
                | Status::ReleaseFailed
                | Status::Released
                | Status::Failed,
            ) => Verdict::Reached,
            (
                Goal::Rest,
                Status::Requested | Status::Provisioning | Status::Restarting | Status::Releasing,
            ) => Verdict::Going,
        }
    }
}

/// How waiting ended.
pub(crate) enum Ended {
    /// It came.
    Reached,
    /// It will not come; with what happened.
    Missed(Timeline),
    /// It did not come in time.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

/// Waits.
pub(crate) async fn wait(
    client: &Client,
    id: Uuid,
    goal: Goal,
    patience: Option<Duration>,
    view: &mut View,
) -> Done<Ended> {
    let waiting = timeout(patience.unwrap_or(Duration::MAX), follow(client, id, goal, view));
    let ended = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => None,
        ended = waiting => Some(ended.unwrap_or(Ok(Ended::TimedOut))),
    };
    match ended {
        Some(ended) => {
            view.end();
            ended
        }
        None => {
            view.freeze();
            Ok(Ended::Interrupted)
        }
    }
}

async fn follow(client: &Client, id: Uuid, goal: Goal, view: &mut View) -> Done<Ended> {
    let mut feed = Feed { client, id, events: None, last: None, none_here: false };
    let mut away: Option<Stopwatch> = None;
    loop {
        // Listened before it is looked: what happens in between is heard.
        feed.listen().await;
        let timeline = match client.timeline(id).await {
            Ok(timeline) => timeline,
            Err(failure) if failure.passing => {
                if away.is_none() {
                    view.remark(&format!(
                        "The connection is lost ({}); still waiting.",
                        failure.sentence
                    ));
                }
                if away.get_or_insert_with(Stopwatch::start).elapsed() > PATIENCE {
                    return Err(failure);
                }
                pause(POLL).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if away.take().is_some() {
            view.remark("The connection is back.");
        }
        view.show(&timeline, now());
        match goal.judge(timeline.status.0) {
            Verdict::Going => feed.changed(&timeline, view).await,
            Verdict::Reached => return Ok(Ended::Reached),
            Verdict::Missed => return Ok(Ended::Missed(timeline)),
        }
    }
}

/// Says when it is worth to look again: when the stream tells of something, or after a while where there is no stream.
struct Feed<'a> {
    client: &'a Client,
    id: Uuid,
    events: Option<Events>,
    last: Option<String>,
    none_here: bool,
}

impl Feed<'_> {
    async fn listen(&mut self) {
        if self.events.is_some() || self.none_here {
            return;
        }
        match self.client.events(self.id, self.last.as_deref()).await {
            Offer::Open(events) => self.events = Some(*events),
            Offer::Later => {}
            Offer::Never => self.none_here = true,
        }
    }

    /// Waits until there may be something new. Meanwhile the times that run are shown.
    async fn changed(&mut self, timeline: &Timeline, view: &mut View) {
        let Some(events) = &mut self.events else {
            return pause(POLL).await;
        };
        let mut quiet = 0;
        let happened = loop {
            match timeout(REDRAW, events.next()).await {
                Ok(Some(true)) => break true,
                Ok(Some(false)) => quiet = 0,
                Ok(None) => break false,
                Err(_) if quiet == QUIET_REDRAWS_MAX => break false,
                Err(_) => {
                    quiet += 1;
                    view.show(timeline, now());
                }
            }
        };
        self.last = events.last().map(str::to_owned).or_else(|| self.last.take());
        if !happened {
            self.events = None;
            pause(POLL).await;
        }
    }
}

/// What to say of something that will not come.
pub(crate) fn missed(allocation: &Allocation, timeline: &Timeline) -> Failure {
    let name = &allocation.name;
    let sentence = match allocation.status.0 {
        Status::Failed => format!("{name} could not be prepared"),
        Status::ReleaseFailed => format!("the clean-up of {name} did not succeed"),
        Status::RestartFailed => format!("the restart of {name} did not succeed"),
        Status::Releasing | Status::Released => format!("{name} was given back meanwhile"),
        Status::Requested | Status::Provisioning | Status::Active | Status::Restarting => {
            format!("{name} is {}", allocation.status)
        }
    };
    let mut failure =
        Failure::new(Exit::EndedBadly, sentence).with("what", allocation.status_text.clone());
    let failed = timeline.items.iter().rev().find(|item| item.status.0 == ItemStatus::Failed);
    let reason = failed.and_then(|item| item.reason.clone());
    if let Some(reason) = reason.or_else(|| allocation.status_reason.clone()) {
        failure = failure.with("reason", reason);
    }
    if let Some(advice) = failed.and_then(|item| item.advice.clone()) {
        failure = failure.with("advice", advice);
    }
    failure.next(&format!("alloc timeline {name}"))
}

/// What to say when patience is at its end. The work goes on.
pub(crate) fn timed_out(allocation: &Allocation, patience: Option<Duration>) -> Failure {
    let name = &allocation.name;
    let after = patience.map(span).unwrap_or_default();
    Failure::new(
        Exit::TimedOut,
        format!("{name} is not there after {after}; it goes on without us"),
    )
    .next(&format!("alloc timeline {name} --follow"))
}

/// What to say after Ctrl-C.
pub(crate) fn interrupted(sentence: String) -> Failure {
    Failure::new(Exit::Interrupted, sentence)
}

#[cfg(test)]
mod tests {
    use domain::machines::allocation::Status;
    use lifecycle::Code as _;

    use super::{Goal, Verdict};

    #[test]
    fn waiting_ends_where_nothing_moves_by_itself() {
        for status in Status::ALL {
            let at_rest = Goal::Rest.judge(*status) != Verdict::Going;
            assert!(!at_rest || Goal::Active.judge(*status) != Verdict::Going, "{status}");
        }
        assert_eq!(Goal::Active.judge(Status::Releasing), Verdict::Missed, "somebody gave it back");
        assert_eq!(Goal::Released.judge(Status::ReleaseFailed), Verdict::Missed);
    }
}
