//! The connections of a process. The one that was given back last is taken next: its process of the database has the plans at hand
//! and its caches warm. What came back in order is not asked whether it is still there.

use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, QueueMode, RecycleError, RecycleResult};
use futures::TryFutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use sqlx::postgres::{
    PgConnectOptions, PgConnection, PgQueryResult, PgRow, PgStatement, PgTypeInfo,
};
use sqlx::{Connection as _, Describe, Either, Execute, Executor, Postgres, SqlStr};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::fall;
use crate::spare::Uses;

/// A connection that nobody has used for longer than this is asked whether it is still one, and so is one that was at rest when
/// another broke: after a fall of the database people would else be told of it once for every connection. Under load nobody pays
/// for it.
const TRUSTED: Duration = Duration::from_secs(1);

/// How long somebody who finds no database waits before they try again: so long at first, twice as long each time, at most so long.
const AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long what somebody left behind may take to be undone. Then the connection is given up, and the database undoes it.
const UNDONE_WITHIN: Duration = Duration::from_secs(5);

/// How a pool is made.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// How many connections it may hold.
    pub(crate) connections_max: u32,
    /// How long somebody waits for one.
    pub(crate) acquire: Duration,
    /// How long one lasts.
    pub(crate) lasts: Duration,
    /// Who counts how often one is used.
    pub(crate) uses: Uses,
}

/// See the module. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    held: managed::Pool<Opening>,
    acquire: Duration,
}

/// How connections are opened, and which are used again.
#[derive(Debug)]
struct Opening {
    connect: PgConnectOptions,
    lasts: Duration,
    uses: Uses,
}

impl managed::Manager for Opening {
    type Type = PgConnection;
    type Error = sqlx::Error;

    #[expect(clippy::disallowed_methods, reason = "a database says nothing when it is up")]
    async fn create(&self) -> Result<PgConnection, sqlx::Error> {
        self.uses.count();
        let (mut pause, most) = AGAIN;
        loop {
            // What it needs to open one is large, and hardly anybody who asks for one has to.
            match Box::pin(PgConnection::connect_with(&self.connect)).await {
                Err(error) if is_coming_up(&error) => sleep(pause).await,
                opened => return opened,
            }
            pause = most.min(pause * 2);
        }
    }

    async fn recycle(
        &self,
        connection: &mut PgConnection,
        known: &Metrics,
    ) -> RecycleResult<sqlx::Error> {
        self.uses.count();
        if known.age() > self.lasts {
            return Err(RecycleError::message("it has lasted long enough"));
        }
        let rested = known.last_used();
        if rested < TRUSTED && !fall::is_suspect(rested) {
            return Ok(());
        }
        Ok(connection.ping().await?)
    }
}

/// Whether there is no database yet, or no longer, and one may be there soon.
fn is_coming_up(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        return error.is_transient_in_connect_phase();
    }
    matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

impl Pool {
    /// A pool that opens its connections when they are asked for.
    pub(crate) fn new(connect: PgConnectOptions, sizes: Sizes) -> Result<Pool, sqlx::Error> {
        let Sizes { connections_max, acquire, lasts, uses } = sizes;
        let held = managed::Pool::builder(Opening { connect, lasts, uses })
            .max_size(usize::try_from(connections_max).unwrap_or(usize::MAX))
            .queue_mode(QueueMode::Lifo)
            .build()
            .map_err(|fault| sqlx::Error::Configuration(Box::new(fault)))?;
        Ok(Pool { held, acquire })
    }

    /// A connection, when there is one.
    pub(crate) async fn acquire(&self) -> Result<Held, sqlx::Error> {
        match timeout(self.acquire, self.held.get()).await {
            Ok(Ok(connection)) => Ok(Held { connection: Some(connection), begun: false }),
            Ok(Err(managed::PoolError::Backend(error))) => Err(error),
            Ok(Err(managed::PoolError::Closed)) => Err(sqlx::Error::PoolClosed),
            Ok(Err(_)) | Err(_) => Err(sqlx::Error::PoolTimedOut),
        }
    }

    /// How its connections are opened.
    pub(crate) fn connect_options(&self) -> &PgConnectOptions {
        &self.held.manager().connect
    }

    /// How many connections there are, and how many of them nobody uses.
    pub(crate) fn count(&self) -> (usize, usize) {
        let status = self.held.status();
        (status.size, status.available.min(status.size))
    }

    /// Closes those that nobody has in hand, but for so many.
    pub(crate) async fn keep(&self, most: usize) {
        let mut kept = 0;
        let spare = self.held.retain(|_, _| {
            kept += 1;
            kept <= most
        });
        for connection in spare.removed {
            // One that can't be closed in order is closed all the same.
            let _ = connection.close().await;
        }
    }

    /// Closes all of them, those in use when they come back.
    pub(crate) async fn close(&self) {
        self.keep(0).await;
        self.held.close();
    }
}

/// A connection in somebody's hands. Who is done with it settles it; one that is dropped before is brought in order first.
#[derive(Debug)]
pub(crate) struct Held {
    connection: Option<Object<Opening>>,
    /// Whether a transaction was begun that did not end.
    begun: bool,
}

impl Held {
    /// It.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        let Some(connection) = self.connection.as_deref_mut() else {
            unreachable!("only who gives it back takes it out, and they have nothing in hand then")
        };
        connection
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&mut self) -> Result<(), sqlx::Error> {
        // Before it is asked: who is dropped while they wait for it has begun one all the same.
        self.begun = true;
        self.connection().execute("BEGIN").await?;
        Ok(())
    }

    /// Commits it, and gives the connection back.
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        self.end("COMMIT").await
    }

    /// Undoes it, and gives the connection back.
    pub(crate) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &'static str) -> Result<(), sqlx::Error> {
        self.connection().execute(how).await?;
        self.settle();
        Ok(())
    }

    /// Gives it back: it is in order.
    pub(crate) fn settle(mut self) {
        self.connection = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let begun = self.begun;
        let Ok(runtime) = Handle::try_current() else {
            drop(Object::take(connection));
            return;
        };
        runtime.spawn(async move {
            let mut connection = connection;
            if !matches!(timeout(UNDONE_WITHIN, undo(&mut connection, begun)).await, Ok(Ok(()))) {
                drop(Object::take(connection));
            }
        });
    }
}

/// Waits for whatever was asked, and undoes the transaction that was begun.
async fn undo(connection: &mut PgConnection, begun: bool) -> Result<(), sqlx::Error> {
    connection.ping().await?;
    if begun {
        connection.execute("ROLLBACK").await?;
    }
    Ok(())
}

/// A statement by itself, on whichever connection.
impl<'p> Executor<'p> for &Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let all = async move {
            let mut held = pool.acquire().await?;
            let all: Vec<_> = held.connection().fetch_many(query).collect().await;
            // After a failure somebody looks whether it is still a connection.
            if all.iter().all(Result::is_ok) {
                held.settle();
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
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut held = pool.acquire().await?;
            let row = held.connection().fetch_optional(query).await?;
            held.settle();
            Ok(row)
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut held = pool.acquire().await?;
            let prepared = held.connection().prepare_with(sql, parameters).await?;
            held.settle();
            Ok(prepared)
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut held = pool.acquire().await?;
            let described = held.connection().describe(sql).await?;
            held.settle();
            Ok(described)
        })
    }
}
