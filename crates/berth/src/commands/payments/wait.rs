//! Waiting until what was paid is in the balance, with how it stands on the screen.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use wire::http::payments::{PaymentProgress, PaymentSession};

use crate::cli::Json;
use crate::client::Client;
use crate::exit::{Done, Exit, Failure};
use crate::moment::{Stopwatch, now};
use crate::progress::{State, Step, View};
use crate::words::{between, span};

const POLL: Duration = Duration::from_millis(500);
/// How long the control plane may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is in the balance.
    Credited,
    /// It will not be, unless somebody does something about it.
    Missed,
    /// It did not come in time.
    TimedOut,
    /// Ctrl-C.
    Interrupted,
}

/// Waits; answers with the session as it was seen last.
pub(super) async fn wait(
    client: &Client,
    session: &PaymentSession,
    (patience, output): (Option<Duration>, Json),
) -> Done<(Ended, PaymentSession)> {
    let mut seen = session.clone();
    let mut view = View::fitting(output.json);
    let following = follow(client, &mut seen, &mut view);
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

async fn follow(client: &Client, seen: &mut PaymentSession, view: &mut View) -> Done<Ended> {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut away: Option<Stopwatch> = None;
    loop {
        ticks.tick().await;
        match client.payment_session(seen.id).await {
            Ok(session) => *seen = session,
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
        view.show_steps(&steps(seen));
        match seen.progress.0 {
            PaymentProgress::AwaitingPayment | PaymentProgress::Processing => {}
            PaymentProgress::Credited => return Ok(Ended::Credited),
            PaymentProgress::Expired | PaymentProgress::UnderReview => return Ok(Ended::Missed),
        }
    }
}

/// From the page to the balance, a line each.
fn steps(session: &PaymentSession) -> [Step; 2] {
    let (paid, credited) = match session.progress.0 {
        PaymentProgress::AwaitingPayment => (State::Running, State::Waiting),
        PaymentProgress::Processing => (State::Done, State::Running),
        PaymentProgress::Credited => (State::Done, State::Done),
        PaymentProgress::Expired => (State::Cancelled, State::Cancelled),
        PaymentProgress::UnderReview => (State::Done, State::Failed),
    };
    let since = between(session.created_at, now());
    let took = |state: State| (state == State::Running).then_some(since);
    [
        Step::of("paid".to_owned(), "Paid at the page", paid, took(paid)),
        Step::of("credited".to_owned(), "In the balance", credited, took(credited)),
    ]
}

/// What to say when it did not come.
pub(super) fn failure(
    ended: Ended,
    session: &PaymentSession,
    patience: Option<Duration>,
) -> Failure {
    let next = format!("payments show {}", session.id);
    if ended == Ended::TimedOut {
        let after = patience.map(span).unwrap_or_default();
        let sentence = format!("it is not in the balance after {after}; it goes on without us");
        return Failure::new(Exit::TimedOut, sentence).next(&next);
    }
    Failure::new(Exit::EndedBadly, session.status_text.clone())
        .with("advice", session.advice.clone())
        .next(&next)
}
