//! A transaction that several stories share. Each goes on as if it were alone; what they ask at the same time is asked by one
//! statement, and what they have done is committed once. If anything of it fails, nothing of it has happened, and each is told to go
//! alone. See decision 33.

mod drive;
mod line;
mod question;

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use futures::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
use sqlx::postgres::{PgConnection, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Describe, Either, Execute, Executor, Postgres, SqlStr};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::Error;
use crate::pool::Held;

pub(crate) use line::{Begun, Lines, Shift};
use question::{Asked, Erased};
pub(crate) use question::{Question, alike, in_order, rounds};

/// Who may share a transaction with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Nobody.
    Alone,
    /// Those who do the same at the same time, each about something else.
    Same {
        /// What they do: two words, because what a workflow does depends on what it has heard.
        doing: (&'static str, &'static str),
        /// The row it is about. Two stories about the same row never share a transaction, because nothing would keep them apart.
        about: Uuid,
    },
}

/// A story that waits for the others of its transaction longer than this is told to go alone: one of them does something else.
const PATIENCE: Duration = Duration::from_secs(1);

/// A place in a transaction that is shared.
#[derive(Debug)]
pub(crate) struct Seat {
    asks: mpsc::UnboundedSender<Ask>,
    /// Whether it may have written anything: then who leaves takes all of it along.
    wrote: bool,
    /// Whether it has said its last word.
    over: bool,
}

/// What somebody in a seat says to whoever drives the transaction.
enum Ask {
    /// Questions that can be answered together with those of the others.
    Answer(Vec<Box<dyn Erased>>),
    /// The connection, for a statement that can't.
    Lend(oneshot::Sender<Lent>),
    /// Everything is done. They are told when it is true.
    Commit(oneshot::Sender<Result<(), Error>>),
    /// They go.
    Leave {
        /// Whether anything of theirs is in the transaction.
        wrote: bool,
    },
}

/// The connection, and to whom it is given back. If it is not, the transaction is over.
struct Lent {
    held: Held,
    back: oneshot::Sender<Held>,
}

impl Seat {
    fn new(asks: mpsc::UnboundedSender<Ask>) -> Seat {
        Seat { asks, wrote: false, over: false }
    }

    /// What these are answered with, in their order.
    pub(crate) async fn ask_all<Q: Question>(
        &mut self,
        questions: Vec<Q>,
    ) -> Result<Vec<Q::Answer>, Error> {
        self.wrote |= Q::WRITES;
        let (mut asked, mut answers) = (Vec::with_capacity(questions.len()), Vec::new());
        for question in questions {
            let (answer, answered) = oneshot::channel();
            asked.push(Box::new(Asked { question, answer }) as Box<dyn Erased>);
            answers.push(answered);
        }
        self.asks.send(Ask::Answer(asked)).map_err(|_| Error::Company)?;
        let mut all = Vec::with_capacity(answers.len());
        for answered in answers {
            all.push(answered.await.map_err(|_| Error::Company)?);
        }
        Ok(all)
    }

    async fn borrow(&mut self) -> Result<Lent, sqlx::Error> {
        // Nobody knows what it will be used for.
        self.wrote = true;
        let (to, lent) = oneshot::channel();
        self.asks.send(Ask::Lend(to)).map_err(|_| gone())?;
        lent.await.map_err(|_| gone())
    }

    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        self.over = true;
        let (to, told) = oneshot::channel();
        self.asks.send(Ask::Commit(to)).map_err(|_| Error::Company)?;
        told.await.map_err(|_| Error::Company)?
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.asks.send(Ask::Leave { wrote: self.wrote });
        }
    }
}

/// Why there is no connection to be had: the transaction is over. It is told as an error of the connection, and read again by [`Error`].
#[derive(Debug, thiserror::Error)]
#[error("the transaction was shared, and is over")]
struct Gone;

fn gone() -> sqlx::Error {
    sqlx::Error::Configuration(Box::new(Gone))
}

/// Whether that is why there was no connection.
pub(crate) fn is_gone(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(why) if why.is::<Gone>())
}

/// Where a transaction's statements go.
pub(crate) enum Connection<'t> {
    /// It has one of its own.
    Own(&'t mut PgConnection),
    /// It is lent one for each.
    Shared(&'t mut Seat),
}

impl std::fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = matches!(self, Connection::Own(_));
        f.debug_struct("Connection").field("own", &own).finish_non_exhaustive()
    }
}

impl<'t> Executor<'t> for Connection<'t> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let seat = match self {
            Connection::Own(connection) => return connection.fetch_many(query),
            Connection::Shared(seat) => seat,
        };
        let all = async move {
            let mut lent = seat.borrow().await?;
            let all: Vec<_> = lent.held.connection().fetch_many(query).collect().await;
            if all.iter().all(Result::is_ok) {
                lent.give_back();
            }
            Ok(stream::iter(all))
        };
        all.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let seat = match self {
            Connection::Own(connection) => return connection.fetch_optional(query),
            Connection::Shared(seat) => seat,
        };
        async move {
            let mut lent = seat.borrow().await?;
            let row = lent.held.connection().fetch_optional(query).await?;
            lent.give_back();
            Ok(row)
        }
        .boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        't: 'e,
    {
        let seat = match self {
            Connection::Own(connection) => return connection.prepare_with(sql, parameters),
            Connection::Shared(seat) => seat,
        };
        async move {
            let mut lent = seat.borrow().await?;
            let prepared = lent.held.connection().prepare_with(sql, parameters).await?;
            lent.give_back();
            Ok(prepared)
        }
        .boxed()
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        't: 'e,
    {
        let seat = match self {
            Connection::Own(connection) => return connection.describe(sql),
            Connection::Shared(seat) => seat,
        };
        async move {
            let mut lent = seat.borrow().await?;
            let described = lent.held.connection().describe(sql).await?;
            lent.give_back();
            Ok(described)
        }
        .boxed()
    }
}

impl Lent {
    fn give_back(self) {
        // Whoever drives has gone: then the connection is brought in order.
        let _ = self.back.send(self.held);
    }
}
