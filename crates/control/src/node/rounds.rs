//! What nobody is in a hurry for is done in rounds: whoever comes after a pause begins one at once, and whoever comes within a moment of
//! it is in the next. However many come, there are only so many rounds a second.

use std::future::pending;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::Error;

/// How many may wait for a round.
const WAITING_MAX: usize = 4_096;
/// How many a round has. Those left over are not kept waiting for the next.
const ROUND_MAX: usize = 1_024;
/// From here on a round was large.
const MANY: usize = 32;
/// How long there is none after a small one.
const AFTER_FEW: Duration = Duration::from_millis(100);
/// How long there is none after a large one: what a round costs by itself is then shared by as many as can be.
const AFTER_MANY: Duration = Duration::from_millis(500);
/// How many of a large round are answered at a time.
const PART: usize = 64;

type Asked<Q, A> = (Q, oneshot::Sender<A>);

/// Where to ask. Clones stand in the same line.
#[derive(Debug)]
pub(super) struct Line<Q, A>(mpsc::Sender<Asked<Q, A>>);

impl<Q, A> Clone for Line<Q, A> {
    fn clone(&self) -> Self {
        Line(self.0.clone())
    }
}

impl<Q, A> Line<Q, A> {
    /// Waits for a round, and for its answer.
    ///
    /// # Errors
    /// [`Error::Broken`] when there are none any more.
    pub(super) async fn ask(&self, question: Q) -> Result<A, Error> {
        let over = || Error::Broken("there are no more rounds".to_owned());
        let (answer, answered) = oneshot::channel();
        self.0.send((question, answer)).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())
    }
}

/// The rounds of a [`Line`].
#[derive(Debug)]
pub(super) struct Rounds<Q, A> {
    asked: mpsc::Receiver<Asked<Q, A>>,
    pause: Duration,
}

/// A line in which nobody stands, and its rounds.
pub(super) fn rounds<Q, A>() -> (Line<Q, A>, Rounds<Q, A>) {
    let (line, asked) = mpsc::channel(WAITING_MAX);
    (Line(line), Rounds { asked, pause: Duration::ZERO })
}

impl<Q, A> Rounds<Q, A> {
    /// Who is in the next round, when it is time for it; none when nobody can ask any more.
    pub(super) async fn next(&mut self) -> Option<Vec<Asked<Q, A>>> {
        if !self.pause.is_zero() {
            let _ = timeout(self.pause, pending::<()>()).await;
        }
        let mut round = Vec::new();
        let count = self.asked.recv_many(&mut round, ROUND_MAX).await;
        self.pause = match count {
            0 => return None,
            ROUND_MAX.. => Duration::ZERO,
            MANY.. => AFTER_MANY,
            _ => AFTER_FEW,
        };
        Some(round)
    }

    /// Answers a round. A large one is answered in parts, over the time that there is none after it: five hundred answers at once are
    /// some ten milliseconds for both sides, behind which everybody waits who is in a hurry.
    pub(super) async fn tell(&mut self, answers: Vec<(A, oneshot::Sender<A>)>) {
        let parts = answers.len().div_ceil(PART);
        let paced = self.pause == AFTER_MANY;
        for (number, (said, answer)) in answers.into_iter().enumerate() {
            // Whoever is not listening any more has hung up.
            let _ = answer.send(said);
            if paced && (number + 1).is_multiple_of(PART) {
                let _ =
                    timeout(AFTER_MANY / u32::try_from(parts).unwrap_or(u32::MAX), pending::<()>())
                        .await;
            }
        }
        if paced {
            self.pause = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use futures::future::join_all;
    use tokio::task::unconstrained;

    use super::{AFTER_FEW, AFTER_MANY, MANY, PART, ROUND_MAX, rounds};

    #[tokio::test]
    async fn who_comes_alone_waits_for_nobody_and_who_comes_next_for_a_moment() {
        let (line, mut rounds) = rounds::<u8, u8>();
        let mut first = Box::pin(line.ask(1));
        assert!((&mut first).now_or_never().is_none());
        let round = rounds.next().now_or_never().expect("at once").expect("somebody asks");
        for (question, answer) in round {
            answer.send(question + 1).expect("it is waited for");
        }
        assert_eq!(first.await.expect("an answer"), 2);
        let mut others: Vec<_> = (0..3).map(|number| Box::pin(line.ask(number))).collect();
        assert!(join_all(&mut others).now_or_never().is_none());
        assert_eq!(rounds.pause, AFTER_FEW);
        assert!(rounds.next().now_or_never().is_none(), "not yet");
        assert_eq!(rounds.next().await.expect("they ask").len(), 3);
        drop(others);
        drop(line);
        assert!(rounds.next().await.is_none(), "nobody can ask any more");
    }

    #[tokio::test]
    async fn however_many_come_there_are_only_so_many_rounds() {
        let (line, mut rounds) = rounds::<usize, ()>();
        let mut all: Vec<_> = (0..ROUND_MAX + MANY).map(|n| Box::pin(line.ask(n))).collect();
        assert!(unconstrained(join_all(&mut all)).now_or_never().is_none());
        assert_eq!(rounds.next().await.expect("they ask").len(), ROUND_MAX);
        assert_eq!(rounds.pause, Duration::ZERO, "who was left over does not wait");
        assert_eq!(rounds.next().await.expect("some are left").len(), MANY);
        assert_eq!(rounds.pause, AFTER_MANY);
    }
    #[tokio::test]
    async fn a_large_round_is_answered_in_parts_and_the_next_begins_when_it_is() {
        let (line, mut rounds) = rounds::<usize, usize>();
        let mut all: Vec<_> = (0..2 * PART).map(|n| Box::pin(line.ask(n))).collect();
        assert!(unconstrained(join_all(&mut all)).now_or_never().is_none());
        let round = rounds.next().await.expect("they ask");
        let mut telling = Box::pin(rounds.tell(round));
        assert!((&mut telling).now_or_never().is_none());
        let mut others = all.split_off(PART);
        assert!(join_all(all).now_or_never().is_some(), "the first part knows");
        assert!(others.iter_mut().all(|one| one.now_or_never().is_none()), "the others do not");
        telling.await;
        assert!(join_all(others).now_or_never().is_some());
        assert_eq!(rounds.pause, Duration::ZERO, "the pause is over");
    }
}
