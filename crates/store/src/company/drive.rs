//! Who drives a transaction that several share: waits until each has asked something or is done, answers what is alike by one statement,
//! and commits when all are done.

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::question::Erased;
use super::{Ask, Lent, PATIENCE};
use crate::Error;
use crate::pool::Held;

/// What becomes of a transaction: drops whatever is left of it when it fails, so that everybody in it is told to go alone.
pub(super) struct Drive {
    held: Option<Held>,
    /// How many have a seat, and have neither left nor ended.
    seats: usize,
    /// How many of them wait for an answer, and what they ask.
    waiting: usize,
    asked: Vec<Box<dyn Erased>>,
    /// Who has done everything.
    done: Vec<oneshot::Sender<Result<(), Error>>>,
}

/// Why it did not come to a commit. Everybody is told to go alone; this is only for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum Spoilt {
    /// Somebody left who had written.
    #[error("somebody left who had written")]
    Left,
    /// A statement failed.
    #[error("a statement failed: {0:?}")]
    Failed(Error),
    /// Somebody did not ask for long.
    #[error("somebody took too long")]
    Slow,
}

impl Drive {
    pub(super) fn new(held: Held, seats: usize) -> Drive {
        Drive { held: Some(held), seats, waiting: 0, asked: Vec::new(), done: Vec::new() }
    }

    /// Until it is committed, or can't be.
    pub(super) async fn run(
        mut self,
        mut asks: mpsc::UnboundedReceiver<Ask>,
    ) -> Result<(), Spoilt> {
        while self.seats > 0 {
            let Ok(ask) = timeout(PATIENCE, asks.recv()).await else { return Err(Spoilt::Slow) };
            match ask {
                None => return Err(Spoilt::Left),
                Some(Ask::Answer(asked)) => {
                    self.waiting += 1;
                    self.asked.extend(asked);
                }
                Some(Ask::Commit(told)) => self.done.push(told),
                Some(Ask::Leave { wrote: true }) => return Err(Spoilt::Left),
                Some(Ask::Leave { wrote: false }) => self.seats -= 1,
                Some(Ask::Lend(to)) => self.lend(to).await?,
            }
            if self.waiting + self.done.len() < self.seats {
                continue;
            }
            if self.waiting == 0 {
                return self.commit().await;
            }
            self.answer().await.map_err(Spoilt::Failed)?;
        }
        Ok(())
    }

    async fn lend(&mut self, to: oneshot::Sender<Lent>) -> Result<(), Spoilt> {
        let Some(held) = self.held.take() else { return Err(Spoilt::Left) };
        let (back, returned) = oneshot::channel();
        if let Err(lent) = to.send(Lent { held, back }) {
            // They have gone before they got it, and say so.
            self.held = Some(lent.held);
            return Ok(());
        }
        self.held = Some(returned.await.map_err(|_| Spoilt::Left)?);
        Ok(())
    }

    /// Answers everything that is asked, in the order in which it was first asked.
    async fn answer(&mut self) -> Result<(), Error> {
        self.waiting = 0;
        let mut left = std::mem::take(&mut self.asked);
        let Some(held) = self.held.as_mut() else { return Err(Error::Company) };
        while !left.is_empty() {
            let first = left.remove(0);
            let (same, others) = {
                let key = first.key();
                left.into_iter().partition(|other| other.key() == key)
            };
            left = others;
            first.answer_with(same, held.connection()).await?;
        }
        Ok(())
    }

    /// Those who were counted on have done everything: it becomes true for all of them.
    async fn commit(mut self) -> Result<(), Spoilt> {
        let Some(held) = self.held.take() else { return Err(Spoilt::Left) };
        if self.done.is_empty() {
            return held.rollback().await.map_err(|error| Spoilt::Failed(error.into()));
        }
        match held.commit().await {
            Ok(()) => {
                for told in self.done {
                    let _ = told.send(Ok(()));
                }
                Ok(())
            }
            // The database has said no, so nothing of it is true.
            Err(error) if error.as_database_error().is_some() => Err(Spoilt::Failed(error.into())),
            // Nobody knows.
            Err(error) => {
                for told in self.done {
                    let _ = told.send(Err(same(&error)));
                }
                Err(Spoilt::Failed(error.into()))
            }
        }
    }
}

/// The same error, for one more who has to know of it.
pub(super) fn same(error: &sqlx::Error) -> Error {
    if let sqlx::Error::Io(error) = error {
        let same = std::io::Error::new(error.kind(), error.to_string());
        return Error::from(sqlx::Error::Io(same));
    }
    if matches!(error, sqlx::Error::PoolTimedOut) {
        return Error::from(sqlx::Error::PoolTimedOut);
    }
    if matches!(error, sqlx::Error::PoolClosed) {
        return Error::from(sqlx::Error::PoolClosed);
    }
    Error::from(sqlx::Error::Protocol(error.to_string()))
}
