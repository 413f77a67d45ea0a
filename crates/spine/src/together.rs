//! Work that comes while other work is under way is done together, and each who asked gets an answer of their own. Who comes
//! alone waits for nobody: the first begins at once, and those who come meanwhile are the next batch. No clock has a part in it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::Error;

/// How much is done together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many batches may be under way. Another than the first begins when as many wait as are in those: then what is gained by
    /// waiting for company is less than what is lost by it.
    pub at_once: usize,
    /// How many questions a batch may have.
    pub batch_max: usize,
}

/// A desk at which questions are answered in batches. Clones share it.
pub struct Together<Q, A> {
    desk: Arc<Desk<Q, A>>,
}

struct Desk<Q, A> {
    name: &'static str,
    limits: Limits,
    work: Box<dyn Fn(Vec<Q>) -> BoxFuture<'static, Vec<A>> + Send + Sync>,
    line: Mutex<Line<Q, A>>,
}

struct Line<Q, A> {
    waiting: VecDeque<(Q, oneshot::Sender<A>)>,
    /// How many batches are under way.
    busy: usize,
    /// How many questions are in them.
    asked: usize,
}

/// A batch, and to whom its answers go.
type Batch<Q, A> = (Vec<Q>, Vec<oneshot::Sender<A>>);

impl<Q: Send + 'static, A: Send + 'static> Together<Q, A> {
    /// A desk of that name at which `work` answers: as many answers as it was given questions, in their order.
    pub fn new<W>(
        name: &'static str,
        limits: Limits,
        work: impl Fn(Vec<Q>) -> W + Send + Sync + 'static,
    ) -> Together<Q, A>
    where
        W: Future<Output = Vec<A>> + Send + 'static,
    {
        let work = Box::new(move |batch| -> BoxFuture<'static, Vec<A>> { Box::pin(work(batch)) });
        let line = Mutex::new(Line { waiting: VecDeque::new(), busy: 0, asked: 0 });
        Together { desk: Arc::new(Desk { name, limits, work, line }) }
    }

    /// Asks, and waits for the answer. Who is dropped before their batch has begun is left out of it; what has begun is done,
    /// whoever still listens.
    ///
    /// # Errors
    /// [`Error::Ended`] when the work panicked.
    pub async fn ask(&self, question: Q) -> Result<A, Error> {
        let (answer, answered) = oneshot::channel();
        let begins = {
            let mut line = self.desk.line();
            line.waiting.push_back((question, answer));
            let Limits { at_once, batch_max } = self.desk.limits;
            // Where nothing is asked yet somebody is about to begin, and takes whoever waits.
            let company = line.asked > 0 && line.waiting.len() >= line.asked.min(batch_max);
            let begins = line.busy == 0 || line.busy < at_once && company;
            line.busy += usize::from(begins);
            begins
        };
        if begins {
            Shift::begin(Arc::clone(&self.desk));
        }
        let ended = |_| Error::Ended { part: self.desk.name.to_owned(), how: "panicked" };
        answered.await.map_err(ended)
    }
}

impl<Q, A> Desk<Q, A> {
    /// What is behind the lock is whole after every statement, so a panic elsewhere spoils nothing.
    fn line(&self) -> MutexGuard<'_, Line<Q, A>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who wait, as many as a batch may have, for whoever is done with so many. When there is nobody, they are no longer counted
    /// as busy.
    fn next(&self, done: usize) -> Option<Batch<Q, A>> {
        let mut line = self.line();
        line.asked -= done;
        line.waiting.retain(|(_, answer)| !answer.is_closed());
        let count = line.waiting.len().min(self.limits.batch_max);
        if count == 0 {
            line.busy -= 1;
            return None;
        }
        line.asked += count;
        Some(line.waiting.drain(..count).unzip())
    }
}

/// Somebody who works off the line until nobody waits. It belongs to no caller: whoever hangs up takes nobody else with them.
struct Shift<Q: Send + 'static, A: Send + 'static> {
    desk: Arc<Desk<Q, A>>,
    /// How many are in its batch.
    in_hand: usize,
    done: bool,
}

impl<Q: Send + 'static, A: Send + 'static> Shift<Q, A> {
    fn begin(desk: Arc<Desk<Q, A>>) {
        let mut shift = Shift { desk, in_hand: 0, done: false };
        // A runtime that is shutting down has nobody left who waits.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            loop {
                // Whoever is about to ask does so first. Where nobody is, this is over at once; where many are, each would else be
                // a batch of their own for as long as a batch is done sooner than the next one is read from its connection.
                tokio::task::yield_now().await;
                let Some((batch, answers)) = shift.desk.next(shift.in_hand) else { break };
                shift.in_hand = batch.len();
                let (name, count) = (shift.desk.name, batch.len() as u64);
                metrics::counter!("berth_batches_total", "desk" => name).increment(1);
                metrics::counter!("berth_batched_total", "desk" => name).increment(count);
                let said = (shift.desk.work)(batch).await;
                for (said, to) in said.into_iter().zip(answers) {
                    let _ = to.send(said);
                }
            }
            shift.end();
        });
    }

    fn end(mut self) {
        self.done = true;
    }
}

impl<Q: Send + 'static, A: Send + 'static> Drop for Shift<Q, A> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // It panicked: whoever was in that batch is told so, and those who wait are not left waiting.
        let goes_on = {
            let mut line = self.desk.line();
            let goes_on = !line.waiting.is_empty();
            line.asked -= self.in_hand;
            line.busy -= usize::from(!goes_on);
            goes_on
        };
        if goes_on && std::thread::panicking() {
            Shift::begin(Arc::clone(&self.desk));
        }
    }
}

impl<Q, A> Clone for Together<Q, A> {
    fn clone(&self) -> Self {
        Together { desk: Arc::clone(&self.desk) }
    }
}

impl<Q, A> fmt::Debug for Together<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").field("name", &self.desk.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::FutureExt as _;
    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::{Limits, Together};

    /// A desk that doubles numbers when it is let, and what its batches were.
    type Doubling = (Together<u32, u32>, Arc<Semaphore>, Arc<Mutex<Vec<Vec<u32>>>>);

    fn doubling(at_once: usize, batch_max: usize) -> Doubling {
        let (let_in, batches) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (may, seen) = (Arc::clone(&let_in), Arc::clone(&batches));
        let work = move |batch: Vec<u32>| {
            let may = Arc::clone(&may);
            seen.lock().unwrap().push(batch.clone());
            async move {
                may.acquire().await.unwrap().forget();
                assert!(!batch.contains(&13), "on purpose");
                batch.into_iter().map(|number| number * 2).collect()
            }
        };
        (Together::new("doubling", Limits { at_once, batch_max }, work), let_in, batches)
    }

    /// Runs everything that can run without being let in.
    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_first_begins_at_once_and_who_comes_meanwhile_is_the_next_batch() {
        let (desk, let_in, batches) = doubling(1, 3);
        let asked: Vec<_> = (0..6).map(|number| Box::pin(desk.ask(number))).collect();
        let all = join_all(asked);
        let mut all = std::pin::pin!(all);
        assert!(all.as_mut().now_or_never().is_none());
        settle().await;
        // All six stood in line before the first shift had begun, because nobody else ran.
        assert_eq!(*batches.lock().unwrap(), [vec![0, 1, 2]]);
        let_in.add_permits(2);
        let answers: Vec<u32> = all.await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [0, 2, 4, 6, 8, 10]);
        assert_eq!(*batches.lock().unwrap(), [vec![0, 1, 2], vec![3, 4, 5]]);
        // Nobody is left busy: a lone one is answered.
        let_in.add_permits(1);
        assert_eq!(desk.ask(21).await.unwrap(), 42);
    }

    #[tokio::test]
    async fn another_begins_when_as_many_wait_as_are_under_way() {
        let (desk, let_in, batches) = doubling(2, 3);
        let mut all = Vec::new();
        // The first is alone, and so is the second; from then on two are under way, and three more wait for one of them.
        for (number, begun) in [(0, 1), (1, 2), (2, 2), (3, 2), (4, 2)] {
            let mut one = Box::pin(desk.ask(number));
            assert!(one.as_mut().now_or_never().is_none());
            settle().await;
            assert_eq!(batches.lock().unwrap().len(), begun, "after {number}");
            all.push(one);
        }
        // One of the two takes all three, and who comes alone then waits: there are more under way than wait.
        let_in.add_permits(2);
        settle().await;
        let mut late = Box::pin(desk.ask(5));
        assert!(late.as_mut().now_or_never().is_none());
        settle().await;
        assert_eq!(*batches.lock().unwrap(), [vec![0], vec![1], vec![2, 3, 4]]);
        let_in.add_permits(2);
        assert_eq!(late.await.unwrap(), 10);
        assert!(join_all(all).await.into_iter().all(|answer| answer.is_ok()));
    }

    #[tokio::test]
    async fn who_hangs_up_before_their_turn_is_left_out_and_takes_nobody_along() {
        let (desk, let_in, batches) = doubling(1, 8);
        let mut first = Box::pin(desk.ask(1));
        assert!(first.as_mut().now_or_never().is_none());
        settle().await;
        let mut gone = Box::pin(desk.ask(2));
        let mut stays = Box::pin(desk.ask(3));
        assert!(gone.as_mut().now_or_never().is_none() && stays.as_mut().now_or_never().is_none());
        drop(gone);
        // The one whose batch is under way hangs up too: the next batch comes all the same.
        drop(first);
        let_in.add_permits(2);
        assert_eq!(stays.await.unwrap(), 6);
        assert_eq!(*batches.lock().unwrap(), [vec![1], vec![3]]);
    }

    #[tokio::test]
    async fn a_panic_is_told_to_its_batch_and_to_nobody_else() {
        let (desk, let_in, _) = doubling(1, 1);
        let mut unlucky = Box::pin(desk.ask(13));
        assert!(unlucky.as_mut().now_or_never().is_none());
        settle().await;
        let mut next = Box::pin(desk.ask(4));
        assert!(next.as_mut().now_or_never().is_none());
        let_in.add_permits(2);
        assert!(unlucky.await.is_err());
        assert_eq!(next.await.unwrap(), 8);
    }
}
