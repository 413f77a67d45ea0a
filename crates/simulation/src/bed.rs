//! What one worker simulates on: a database with a catalogue, people and nodes, put back to its beginning after every run,
//! and the processes that work on it, each behind a turnstile.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use control::node::enrol::AgentIdentity;
use control::policies::Policies;
use control::{Assembled, Caller, assemble};
use spine::Clock;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use store::{Ids, Options, Store};
use testkit::{House, Process, Turnstile, new_id};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::node::Node;
use crate::story::Heard;

/// So many processes work at once.
pub const PROCESSES: usize = 3;

/// The clock of a run is ahead of the database's, whose times would otherwise be just before or just after what they are
/// compared with, as the machine's mood wants.
const AHEAD: Duration = Duration::from_secs(1_000);

/// What no run changes.
const UNTOUCHED: &[&str] =
    &["_sqlx_migrations", "images", "installation_keys", "regions", "sku_images", "skus", "users"];

/// Statements are planned once, and not for every value; and always in the way that a few rows want, or the order of rows that
/// are equal would depend on how full the tables are.
const PLANS: &str = "DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_generic_plan', current_database());
    EXECUTE format('ALTER DATABASE %I SET enable_hashjoin = off', current_database());
    EXECUTE format('ALTER DATABASE %I SET enable_mergejoin = off', current_database());
END $$";
/// Runs that are due at the same moment are taken in the order in which they lie there: it must not depend on the run before.
const EMPTIED: &str = "workflow_runs";

/// A process of the control plane.
pub struct Lane {
    /// What it consists of.
    pub assembled: Assembled,
    /// Where its statements pass.
    pub turnstile: Turnstile,
    /// What it does now.
    pub busy: Option<Busy>,
    store: Store,
}

impl Lane {
    /// Waits until nothing is left of a process that died. What it had begun beside itself may still stand in the queue for
    /// the connection, and would be taken for a part of the next story; who joins the queue comes after it.
    ///
    /// # Errors
    /// What the database refuses.
    pub async fn outlive(&self) -> anyhow::Result<()> {
        Ok(self.store.begin().await?.rollback().await?)
    }
}

/// A story that a process is in the middle of.
pub struct Busy {
    /// Its number in the trace.
    pub number: usize,
    /// The process.
    pub process: Process<Heard>,
    /// How many statements it has had.
    pub statements: usize,
    /// What becomes of it.
    pub fate: crate::story::Fate,
    /// Whether it hangs, and until which event.
    pub hangs_until: Option<usize>,
}

/// See the module.
pub struct Bed {
    /// The processes.
    pub lanes: Vec<Lane>,
    /// What changes at a turnstile.
    pub news: Arc<Notify>,
    /// A connection of the simulation's own.
    pub sql: PgConnection,
    /// Somebody with a project.
    pub tenant: Caller,
    /// Somebody who runs the platform.
    pub operator: Caller,
    /// The tenant's project.
    pub project: Uuid,
    /// The clock of this run.
    pub clock: Clock,
    /// A store for the checks.
    pub store: Store,
    /// A process to which nothing happens; without a turnstile it is twice as quick.
    pub calm: Assembled,
    calm_store: Store,
    ids: Ids,
    policies: Policies,
    template: Vec<Node>,
    put_back: String,
    runs: usize,
    house: House,
}

impl Bed {
    /// Makes one.
    ///
    /// # Errors
    /// What the database refuses.
    pub async fn make() -> anyhow::Result<Bed> {
        let policies =
            Policies { release_attempts_max: 3, provision_attempts_max: 2, ..Policies::default() };
        let mut house = House::with(policies).await;
        let mut template = Vec::new();
        let fleet: [(&str, &[i16], bool); 3] = [
            ("l40s.slice", &[0, 0, 1, 1], false),
            ("l40s.slice", &[0, 1], false),
            ("h100.metal", &[0; 8], true),
        ];
        let images: Vec<String> = ["ubuntu-24.04-cuda", "rocky-9-cuda"].map(str::to_owned).into();
        for (sku, slots, whole) in fleet {
            let identity: AgentIdentity = house.node(sku, slots).await.identity;
            template.push(Node::new(identity, slots, whole, &images));
        }
        let mut sql = PgConnection::connect(&house.database.url()).await?;
        let put_back = save(&mut sql).await?;
        // Before anybody else connects. Half of the time would go into plans for a handful of rows.
        sqlx::raw_sql(PLANS).execute(&mut sql).await?;
        let news = Arc::new(Notify::new());
        let (ids, clock) = (Ids::counted(), Clock::standing());
        let mut lanes = Vec::new();
        for _ in 0..PROCESSES {
            let turnstile = Turnstile::new(&house.database.url(), &news);
            let store =
                Store::open(turnstile.url(), Options { connections_max: 1, ..Options::default() })
                    .await?
                    .naming(ids.clone());
            let assembled = assemble(store.clone(), clock.clone(), policies).await?;
            lanes.push(Lane { assembled, turnstile, busy: None, store });
        }
        let alone = Options { connections_max: 1, ..Options::default() };
        let store = Store::open(&house.database.url(), alone).await?;
        let calm_store = Store::open(&house.database.url(), alone).await?.naming(ids.clone());
        let calm = assemble(calm_store.clone(), clock.clone(), policies).await?;
        Ok(Bed {
            calm,
            calm_store,
            lanes,
            news,
            sql,
            tenant: house.tenant.clone(),
            operator: house.operator.clone(),
            project: house.project,
            clock,
            store,
            ids,
            policies,
            template,
            put_back,
            runs: 0,
            house,
        })
    }

    /// Somebody asks for something: a request of its own, so that what it does can be told from what they did before.
    pub fn asking(&self, who: &Caller) -> Caller {
        Caller { request_id: new_id(), ..who.clone() }
    }

    /// Everything is as in the beginning; answers the nodes as they are then.
    ///
    /// # Errors
    /// What the database refuses.
    pub async fn put_back(&mut self) -> anyhow::Result<Vec<Node>> {
        sqlx::raw_sql(AssertSqlSafe(self.put_back.as_str())).execute(&mut self.sql).await?;
        self.runs += 1;
        if self.runs.is_multiple_of(20) {
            sqlx::raw_sql("VACUUM ANALYZE").execute(&mut self.sql).await?;
        }
        self.ids.restart();
        self.clock = Clock::standing();
        self.clock.advance(AHEAD);
        for lane in &mut self.lanes {
            let (store, clock) = (lane.store.clone(), self.clock.clone());
            lane.assembled = assemble(store, clock, self.policies).await?;
        }
        let (store, clock) = (self.calm_store.clone(), self.clock.clone());
        self.calm = assemble(store, clock, self.policies).await?;
        Ok(self.template.clone())
    }

    /// Drops the database.
    pub async fn remove(self) {
        for lane in &self.lanes {
            lane.store.close().await;
        }
        self.store.close().await;
        self.calm_store.close().await;
        drop(self.lanes);
        let _ = self.sql.close().await;
        self.house.database.remove().await;
    }
}

/// Keeps a copy of every table; answers the statements that put them back. Triggers and foreign keys are asleep meanwhile,
/// because no row of a machine may ever be deleted.
async fn save(sql: &mut PgConnection) -> anyhow::Result<String> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT relname::text FROM pg_class
          WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
          ORDER BY relname",
    )
    .fetch_all(&mut *sql)
    .await?;
    sqlx::raw_sql("CREATE SCHEMA saved").execute(&mut *sql).await?;
    let mut put_back = "BEGIN; SET LOCAL session_replication_role = replica; ".to_owned();
    for table in tables.iter().filter(|table| !UNTOUCHED.contains(&table.as_str())) {
        // Names of our own schema, not input.
        let copy = format!("CREATE TABLE saved.{table} AS SELECT * FROM public.{table}");
        let rows = sqlx::raw_sql(AssertSqlSafe(copy)).execute(&mut *sql).await;
        let rows = rows.with_context(|| format!("{table} can't be copied"))?.rows_affected();
        let emptying = if table == EMPTIED { "TRUNCATE" } else { "DELETE FROM" };
        put_back += &format!("{emptying} public.{table}; ");
        if rows > 0 {
            put_back += &format!(
                "INSERT INTO public.{table} OVERRIDING SYSTEM VALUE SELECT * FROM saved.{table}; "
            );
        }
    }
    Ok(put_back + "COMMIT")
}
