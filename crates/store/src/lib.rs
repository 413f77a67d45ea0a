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
pub mod usage_records;
pub mod usage_windows;
pub mod users;
pub mod views;
pub mod webhooks;
pub mod workflow_runs;

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use pool::{Held, Pool, Sizes};
use spare::Uses;

pub use bell::{Bell, Ring};
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
            .statement_cache_capacity(512)
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
        let pool = Pool::new(connect.clone(), sizes(few, LASTS))?;
        // There is a database.
        pool.acquire().await?.settle();
        // One plan for each of these, whatever is asked: to plan them takes longer than to run them. By indexes, also while a table is
        // so small that it would rather be read whole: the plan is kept when it has grown.
        let planned = connect
            .options([("plan_cache_mode", "force_generic_plan")])
            .options([("enable_seqscan", "off")]);
        let hot = match many {
            Some(many) => Pool::new(planned, sizes(many, PLANS_LAST))?,
            None => pool.clone(),
        };
        let _spare = spare::looked_after([pool.clone(), hot.clone()], uses.clone());
        Ok(Store { pool, hot, _spare, bell: Bell::silent(), ids: Ids::default() })
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
        let (bell, ids) = (self.bell.clone(), self.ids.clone());
        Ok(Tx { held, aborted: false, rings: Vec::new(), bell, ids })
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
    held: Held,
    aborted: bool,
    rings: Vec<Ring>,
    bell: Bell,
    ids: Ids,
}

impl Tx {
    /// Makes everything true at once.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the transaction has lost to another and must be run again: also when the writer has
    /// answered `Conflict` in it, because Postgres would otherwise turn this commit into a silent rollback.
    pub async fn commit(self) -> Result<(), Error> {
        if self.aborted {
            self.held.rollback().await?;
            return Err(Error::Conflict);
        }
        self.held.commit().await?;
        for ring in self.rings {
            self.bell.ring(ring);
        }
        Ok(())
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// When the database can't be reached; everything is undone then too.
    pub async fn rollback(self) -> Result<(), Error> {
        Ok(self.held.rollback().await?)
    }

    /// A fresh identity, greater than those before it, so that rows made later stand later in their index.
    pub fn new_id(&self) -> Uuid {
        self.ids.next()
    }

    /// As many fresh identities.
    pub(crate) fn new_ids(&self, count: usize) -> Vec<Uuid> {
        (0..count).map(|_| self.new_id()).collect()
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.held.connection()
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
