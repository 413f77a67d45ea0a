//! Where truth rests: all SQL, the single writer, the outbox, the migrations. Nothing here knows HTTP, a broker or a
//! workflow engine.
//!
//! - [`Store::begin`] opens the only kind of transaction there is: a short one.
//! - [`lifecycle`] is the only code that writes a status.
//! - One module a noun for everything else.

pub mod accounts;
pub mod admission;
pub mod allocation_groups;
pub mod allocations;
pub mod api_tokens;
pub mod app_instances;
pub mod audit;
pub mod audit_log;
pub mod bell;
pub mod catalogue;
pub mod charging;
pub mod claims;
pub mod cluster;
pub mod company;
pub mod deliveries;
pub mod depletion;
mod error;
pub mod fall;
pub mod findings;
pub mod idempotency;
mod ids;
pub mod installation_keys;
pub mod ledger;
pub mod lifecycle;
pub mod log;
pub mod node_agents;
pub mod node_outages;
pub mod node_tasks;
pub mod nodes;
pub mod notifications;
pub mod notify;
pub mod outbox;
pub mod payment_events;
pub mod payment_sessions;
pub mod placement;
pub mod policies;
mod pool;
pub mod prices;
pub mod projects;
pub mod prune;
pub mod receipts;
pub mod schema;
pub mod seen;
mod spare;
pub mod ssh_keys;
pub mod storage_attachments;
pub mod terminal_sessions;
pub mod terms;
mod texts;
pub mod usage_records;
pub mod usage_windows;
pub mod users;
pub mod views;
pub mod webhooks;
pub mod workflow_runs;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use uuid::Uuid;

use company::{Begun, Connection, Lines, Question, Seat, Shift, alike};
use pool::{Held, Pool, Sizes};
use spare::Uses;

pub use bell::{Bell, Ring};
pub use company::Company;
pub use error::Error;
pub use ids::Ids;
pub use schema::Reached;

/// A transaction that does nothing for longer than this is ended by the database: nobody waits for the world in one.
pub const IDLE_IN_TRANSACTION_MILLISECONDS: u32 = 2_000;

/// With fewer connections than this, none are set aside for what is asked again and again.
const SET_ASIDE_FROM: u32 = 8;

/// How long a connection lasts that plans each statement once: what was planned for the tables of then is planned anew.
const PLANS_LAST: Duration = Duration::from_secs(60);
/// How long any other does.
const LASTS: Duration = Duration::from_secs(30 * 60);

/// How many statements a connection keeps prepared: all that there are, where they are asked again and again.
const HOT_STATEMENTS: usize = 512;

/// And where timers ask: what is asked once in several seconds is not worth the memory of its plan, which the database holds for
/// as long as the connection lasts.
const FEW_STATEMENTS: usize = 16;

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many connections it may hold. More than a few a core only makes them wait for each other.
    pub connections_max: u32,
    /// How long somebody waits for one of them, or for a database that is coming up. Who waits is told that it can't be had while
    /// they still listen.
    pub acquire: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { connections_max: 20, acquire: Duration::from_secs(5) }
    }
}

/// The system of record.
#[derive(Clone, Debug)]
pub struct Store {
    pool: Pool,
    /// The connections on which the same few statements are asked again and again.
    hot: Pool,
    /// Who gives back what neither of them needs.
    _spare: Arc<JoinSet<()>>,
    /// Where transactions are begun that may be shared.
    lines: Lines,
    bell: Bell,
    ids: Ids,
}

impl Store {
    /// Opens the store at `url` and makes sure that the database enforces the machines of this binary: the very same, or, when a
    /// newer binary has migrated it, at least these.
    ///
    /// # Errors
    /// [`Error::Outdated`] when the database has yet to be migrated, [`Error::NotEnforced`] when its triggers are not as they
    /// should be.
    pub async fn open(url: &str, options: Options) -> Result<Store, Error> {
        let store = Store::connect(url, options).await?;
        let newer = match schema::reached(&store).await? {
            Reached::Here => false,
            Reached::Newer(_) => true,
            Reached::Older { at, needed } => return Err(Error::Outdated { at, needed }),
        };
        lifecycle::enforce::verify(&store, newer).await?;
        Ok(store)
    }

    /// Brings the database at `url` to the schema and the machines of this binary.
    ///
    /// # Errors
    /// What the database refuses.
    pub async fn migrate(url: &str) -> Result<(), Error> {
        let store =
            Store::connect(url, Options { connections_max: 1, ..Options::default() }).await?;
        let mut held = store.pool.acquire().await?;
        schema::MIGRATIONS
            .run(held.connection())
            .await
            .map_err(|source| Error::Migration(Box::new(source)))?;
        held.settle();
        lifecycle::enforce::install(&store).await?;
        store.pool.close().await;
        Ok(())
    }

    async fn connect(url: &str, options: Options) -> Result<Store, Error> {
        let idle = format!("{IDLE_IN_TRANSACTION_MILLISECONDS}ms");
        let connect: PgConnectOptions = url.parse::<PgConnectOptions>()?;
        // The limit belongs to the connection, so that no transaction pays a round trip for it.
        let connect = connect
            .application_name("berth")
            .statement_cache_capacity(HOT_STATEMENTS)
            .options([("idle_in_transaction_session_timeout", idle.as_str())])
            // Statements here are short: to compile one would take longer than to run it.
            .options([("jit", "off")])
            // What is asked for is in memory or on a disk that does not turn: a page by its number costs what the next one does. As
            // the database comes it would rather read a whole table than a few thousand rows by their index.
            .options([("random_page_cost", "1.1")]);
        let (few, many) = shares(options.connections_max);
        let uses = Uses::default();
        let sizes = |connections_max, lasts| Sizes {
            connections_max,
            acquire: options.acquire,
            lasts,
            uses: uses.clone(),
        };
        let statements = if many.is_some() { FEW_STATEMENTS } else { HOT_STATEMENTS };
        let rarely = connect.clone().statement_cache_capacity(statements);
        let pool = Pool::new(rarely, sizes(few, LASTS))?;
        // There is a database.
        pool.acquire().await?.settle();
        // One plan for each of these, whatever is asked: to plan them takes longer than to run them. By indexes, also while a table is
        // so small that it would rather be read whole: the plan is kept when it has grown.
        let planned = connect
            .options([("plan_cache_mode", "force_generic_plan")])
            .options([("enable_seqscan", "off")]);
        let hot = many.map(|many| Pool::new(planned, sizes(many, PLANS_LAST))).transpose()?;
        let _spare = spare::looked_after(pool.clone(), hot.clone(), uses.clone());
        let hot = hot.unwrap_or_else(|| pool.clone());
        let (bell, ids) = (Bell::silent(), Ids::default());
        Ok(Store { pool, hot, _spare, lines: Lines::of(options.connections_max), bell, ids })
    }

    /// The same store, for what is asked again and again: its connections plan each statement once. Not for lists with filters, which
    /// need a plan for what is asked.
    #[must_use]
    pub fn hot(&self) -> Store {
        Store { pool: self.hot.clone(), ..self.clone() }
    }

    /// Opens a transaction. Only stories do, and they await nothing but the database in it.
    ///
    /// # Errors
    /// When no connection is to be had.
    pub async fn begin(&self) -> Result<Tx, Error> {
        let mut held = self.pool.acquire().await?;
        held.begin().await?;
        Ok(self.tx(Place::Own { held, _turn: None }))
    }

    /// [`Store::begin`], in company: with those who do the same at the same time, if there are any, and alone otherwise. A story that is
    /// told [`Error::Company`] has done nothing, and is to be begun again, alone.
    ///
    /// # Errors
    /// When no connection is to be had.
    pub async fn begin_in(&self, company: Company) -> Result<Tx, Error> {
        let Company::Same { doing, about } = company else {
            return self.begin().await;
        };
        Ok(self.tx(match self.lines.begin(&self.pool, doing, about).await? {
            Begun::Alone(held, shift) => Place::Own { held, _turn: Some(shift) },
            Begun::Shared(seat) => Place::Shared(seat),
        }))
    }

    fn tx(&self, place: Place) -> Tx {
        let (bell, ids) = (self.bell.clone(), self.ids.clone());
        Tx { place, aborted: false, rings: Vec::new(), bell, ids }
    }

    /// The same store, with identities from `ids`, for proofs that are to be replayed.
    #[must_use]
    pub fn naming(mut self, ids: Ids) -> Store {
        self.ids = ids;
        self
    }

    /// The same store, ringing `bell` after every commit that others wait for.
    #[must_use]
    pub fn ringing(mut self, bell: Bell) -> Store {
        self.bell = bell;
        self
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.hot.close().await;
        self.pool.close().await;
    }

    /// A fresh identity, for what will be written in a transaction that has not begun.
    pub fn new_id(&self) -> Uuid {
        self.ids.next()
    }

    /// How many connections this process has, and how many of them nobody uses.
    pub fn connections(&self) -> (usize, usize) {
        let (pool, hot) = (self.pool.count(), self.hot.count());
        (pool.0 + hot.0, pool.1 + hot.1)
    }

    /// Asks by itself what others ask in a transaction.
    pub(crate) async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, Error> {
        let mut held = self.pool.acquire().await?;
        let answer = alike(held.connection(), vec![question]).await?.pop();
        held.settle();
        answer.ok_or(Error::Company)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// How many of so many connections are for anything, and how many for what is asked again and again. None are set aside for that when
/// there are only a few.
const fn shares(all: u32) -> (u32, Option<u32>) {
    if all < SET_ASIDE_FROM {
        return (all, None);
    }
    (all - all / 2, Some(all / 2))
}

/// A transaction. Dropping it undoes everything.
#[derive(Debug)]
#[must_use = "a transaction that is not committed never happened"]
pub struct Tx {
    place: Place,
    aborted: bool,
    rings: Vec<Ring>,
    bell: Bell,
    ids: Ids,
}

/// Where a transaction is.
#[derive(Debug)]
enum Place {
    /// On a connection of its own; and whose turn is over with it.
    Own { held: Held, _turn: Option<Shift> },
    /// Among others.
    Shared(Seat),
}

impl Tx {
    /// Makes everything true at once.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the transaction has lost to another and must be run again: also when the writer has
    /// answered `Conflict` in it, because Postgres would otherwise turn this commit into a silent rollback. [`Error::Company`] when it was
    /// shared, and must be run again alone.
    pub async fn commit(self) -> Result<(), Error> {
        let Tx { place, aborted, rings, bell, .. } = self;
        match place {
            Place::Own { held, .. } if aborted => {
                held.rollback().await?;
                return Err(Error::Conflict);
            }
            Place::Shared(_) if aborted => return Err(Error::Conflict),
            Place::Own { held, .. } => held.commit().await?,
            Place::Shared(seat) => seat.commit().await?,
        }
        for ring in rings {
            bell.ring(ring);
        }
        Ok(())
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// When the database can't be reached; everything is undone then too.
    pub async fn rollback(self) -> Result<(), Error> {
        match self.place {
            Place::Own { held, .. } => Ok(held.rollback().await?),
            Place::Shared(_) => Ok(()),
        }
    }

    /// A fresh identity, greater than those before it, so that rows made later stand later in their index.
    pub fn new_id(&self) -> Uuid {
        self.ids.next()
    }

    /// As many fresh identities.
    pub(crate) fn new_ids(&self, count: usize) -> Vec<Uuid> {
        (0..count).map(|_| self.new_id()).collect()
    }

    /// For a statement that is this transaction's alone.
    pub(crate) fn connection(&mut self) -> Connection<'_> {
        match &mut self.place {
            Place::Own { held, .. } => Connection::Own(held.connection()),
            Place::Shared(seat) => Connection::Shared(seat),
        }
    }

    /// Asks what others may be asking too.
    pub(crate) async fn ask<Q: Question>(&mut self, question: Q) -> Result<Q::Answer, Error> {
        self.ask_all(vec![question]).await?.pop().ok_or(Error::Company)
    }

    /// The same, for several questions at once. An answer each, in their order.
    pub(crate) async fn ask_all<Q: Question>(
        &mut self,
        questions: Vec<Q>,
    ) -> Result<Vec<Q::Answer>, Error> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        match &mut self.place {
            Place::Own { held, .. } => alike(held.connection(), questions).await,
            Place::Shared(seat) => seat.ask_all(questions).await,
        }
    }

    /// Makes sure that nobody else is in it: for what is not kept apart from what others do in the same transaction.
    ///
    /// # Errors
    /// [`Error::Company`] when somebody may be.
    pub(crate) fn alone(&self) -> Result<(), Error> {
        match self.place {
            Place::Own { .. } => Ok(()),
            Place::Shared(_) => Err(Error::Company),
        }
    }

    /// Somebody is waiting for what this transaction writes: they are told when it is committed, and only then.
    pub(crate) fn rings(&mut self, ring: Ring) {
        if !self.rings.contains(&ring) {
            self.rings.push(ring);
        }
    }

    pub(crate) fn abort(&mut self) {
        self.aborted = true;
    }
}
