//! Where things are measured that need many nodes, few roles or a floor: the database of a product that was set up as its users do, on
//! a Postgres of ours, with nodes that were never there, and the product's own process in the roles that are asked for.

use anyhow::{Context as _, ensure};
use sqlx::{Connection as _, PgConnection, PgPool};
use store::cluster::{Cluster, Durability};

use crate::product::Product;
use crate::raw::{self, FLOOR, Length, Raw, Run};
use crate::replicas::Replica;

/// All that one process can do.
pub(crate) const ALL_ROLES: &str = "api,gateway,relay,worker,billing,notifier";
/// A slot is sought from the first ones on, so that there are some behind every start.
const STARTS: f64 = 0.6;
/// When so much of the floor is taken, it is cleared.
const FULL: f64 = 0.3;

/// What is on a stage.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) name: &'a str,
    /// How many nodes of eight slots there are that nobody runs.
    pub(crate) nodes: usize,
    /// How many of them the raw tables have.
    pub(crate) floor_nodes: usize,
    pub(crate) roles: &'a str,
}

/// A database with a fleet in it, and what runs on it. The fields end in this order: the process, its database, its folder.
pub(crate) struct Stage {
    pub(crate) replica: Option<Replica>,
    pub(crate) cluster: Cluster,
    /// Its tokens, its project and its folder; it does not run any more.
    pub(crate) product: Product,
    floor_slots: usize,
}

impl Stage {
    /// Sets one up.
    pub(crate) async fn set(setting: Setting<'_>) -> anyhow::Result<Stage> {
        let Setting { name, nodes, floor_nodes, roles } = setting;
        eprintln!("{name}: a stage with {nodes} nodes, in the roles {roles}");
        let mut product = Product::start(name, 0, "0").await?;
        product.until_announced().await?;
        product.stop()?;
        let cluster = Cluster::start(&product.folder.join("berth/postgres"), Durability::Full)?;
        let mut sql = PgConnection::connect(&cluster.url("berth")).await?;
        raw::insist_on_durability(&mut sql).await?;
        raw::each(&mut sql, &fleet(nodes)).await?;
        sql.close().await?;
        raw::furnish(&cluster, floor_nodes).await?;
        let mut stage = Stage { replica: None, cluster, product, floor_slots: 8 * floor_nodes };
        stage.begin(roles).await?;
        Ok(stage)
    }

    /// Starts the product's process in these roles.
    pub(crate) async fn begin(&mut self, roles: &str) -> anyhow::Result<()> {
        let replica = Replica::start(&self.product, roles, None).await?;
        self.product.api = format!("http://{}/api/v1", replica.api);
        self.replica = Some(replica);
        Ok(())
    }

    /// Its process.
    pub(crate) fn process(&self) -> anyhow::Result<u32> {
        Ok(self.replica.as_ref().context("nothing runs on the stage")?.process())
    }

    pub(crate) async fn sql(&self) -> anyhow::Result<PgPool> {
        Ok(PgPool::connect(&self.cluster.url("berth")).await?)
    }

    /// What the database does with these scripts by itself.
    pub(crate) fn raw(
        &self,
        scripts: &[&str],
        clients: usize,
        length: Length,
    ) -> anyhow::Result<Raw> {
        let starts = ((self.floor_slots as f64) * STARTS) as usize;
        let defines = [("starts", starts.max(1))];
        raw::pgbench(
            &self.cluster,
            &Run { database: FLOOR, scripts, clients, length, defines: &defines },
        )
    }

    /// How many allocations a second that statement makes: those that are there afterwards count, and none is booked twice.
    pub(crate) async fn raw_creates(
        &self,
        script: &str,
        clients: usize,
        length: Length,
    ) -> anyhow::Result<Raw> {
        let mut sql = PgConnection::connect(&self.cluster.url(FLOOR)).await?;
        let count = "SELECT count(*) FROM floor_allocations";
        let mut before: i64 = sqlx::query_scalar(count).fetch_one(&mut sql).await?;
        if before as f64 > FULL * self.floor_slots as f64 {
            raw::each(
                &mut sql,
                "TRUNCATE floor_allocations, floor_claims, floor_outbox;
                 UPDATE floor_slots SET status = 'free', allocation_id = NULL WHERE status <> 'free';
                 VACUUM ANALYZE floor_slots",
            )
            .await?;
            before = 0;
        }
        let raw = self.raw(&[script], clients, length)?;
        let after: i64 = sqlx::query_scalar(count).fetch_one(&mut sql).await?;
        let held: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT slot_id) FROM floor_claims WHERE status = 'held'",
        )
        .fetch_one(&mut sql)
        .await?;
        ensure!(held == after, "the floor has {after} allocations on {held} slots");
        sql.close().await?;
        let made = (after - before) as f64 / raw.transactions as f64;
        ensure!(made > 0.9, "the floor is full: only {made:.2} of its statements made anything");
        Ok(Raw { rate: raw.rate * made, ..raw })
    }

    /// Everything that must always be true is. A relay is started for it if there is none: what was told has to leave the outbox.
    pub(crate) async fn check(&self) -> anyhow::Result<()> {
        let relay = Replica::start(&self.product, "relay", None).await?;
        let sql = self.sql().await?;
        crate::outbox::drained(&sql).await?;
        drop(relay);
        sql.close().await;
        self.product.check().await
    }
}

/// Nodes that are ready, have the image, and are heard of for a year to come. Their log is hours old, because what is made known in the
/// last hour has to have its message.
pub(crate) fn fleet(nodes: usize) -> String {
    let series = format!("generate_series(1, {nodes}) AS n");
    format!(
        "SET session_replication_role = replica;
         INSERT INTO nodes (id, name, region, sku, status, seq, status_at, heartbeat_at, heard_after, free_slots, free_numa_max)
         SELECT md5('node ' || n)::uuid, 'node-' || n, 'eu-1', 'h100.slice', 'ready', 2, clock_timestamp() - interval '2 hours',
                clock_timestamp() + interval '1 year', clock_timestamp() + interval '1 year', 8, 4
           FROM {series};
         INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor, occurred_at)
         SELECT 'node', md5('node ' || n)::uuid, step, gen_random_uuid(), said, was, became, 'worker', 'bench', clock_timestamp() - interval '2 hours'
           FROM {series}, (VALUES (1, 'born', NULL, 'enrolling'), (2, 'node.enrolled', 'enrolling', 'ready')) AS steps (step, said, was, became);
         INSERT INTO slots (id, node_id, slot_index, numa_node)
         SELECT md5('slot ' || n || '/' || slot)::uuid, md5('node ' || n)::uuid, slot, slot / 4 FROM {series}, generate_series(0, 7) AS slot;
         INSERT INTO node_images (node_id, image) SELECT md5('node ' || n)::uuid, 'ubuntu-24.04-cuda' FROM {series};
         SET session_replication_role = origin;
         VACUUM ANALYZE nodes, slots, node_images, lifecycle_log"
    )
}
