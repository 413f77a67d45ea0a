//! How a run ends: no fault happens any more, nodes are back, time passes, until everything has come to rest; then it is
//! looked at what must be true.

use std::time::Duration;

use sqlx::Row as _;
use uuid::Uuid;

use crate::actions::{self, asking, nodes, operators, people};
use crate::books::{Body, What};
use crate::node::Luck;
use crate::sim::Sim;

/// More rounds than anything needs that comes to rest at all.
const ROUNDS_MAX: usize = 30;
/// More passes than a round needs.
const PASSES_MAX: usize = 100;
/// So much time passes between two rounds.
const ROUND: Duration = Duration::from_secs(330);

impl Sim<'_> {
    /// See the module.
    ///
    /// # Errors
    /// When the simulation itself can't go on.
    pub async fn come_to_rest(&mut self) -> anyhow::Result<()> {
        self.say("everything comes to rest");
        self.wake_all().await?;
        for node in &mut self.nodes {
            node.silent = 0;
        }
        for place in self.books.unanswered() {
            let plan = people::ask_for(self, place);
            self.alone(plan).await;
        }
        self.rest().await?;
        self.check().await?;
        // Whatever state it has got into, it can be given back.
        if self.report.broken.is_empty() && self.report.seed.is_multiple_of(4) {
            self.give_back().await?;
        }
        Ok(())
    }

    async fn rest(&mut self) -> anyhow::Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.beat_all().await?;
            self.step_timers().await;
            self.pass().await?;
            if !self.report.broken.is_empty() || self.restless().await?.is_empty() {
                return self.beat_all().await;
            }
            self.bed.clock.advance(ROUND);
        }
        let restless = self.restless().await?;
        self.broken(format!("it never comes to rest: {}", restless.join(", ")));
        self.show_what_stands().await
    }

    /// What there is of runs and tasks that are not over, for who reads the trace.
    async fn show_what_stands(&mut self) -> anyhow::Result<()> {
        let standing: Vec<String> = sqlx::query_scalar(
            "SELECT 'run ' || id || ' of ' || entity_id || ' ' || state || ' told ' || pending || ' wakes ' || coalesce(wake_at::text, 'never')
                    || ' done ' || coalesce(done_at::text, '-') || ' attempts ' || attempts || coalesce(' ' || reason, '')
               FROM workflow_runs
              WHERE entity_id IN (SELECT id FROM allocations WHERE status IN ('releasing', 'provisioning', 'restarting'))
              UNION ALL
             SELECT 'task ' || id || ' for ' || allocation_id || ' ' || kind || ' is ' || status || ' on ' || node_id
               FROM node_tasks
              WHERE allocation_id IN (SELECT id FROM allocations WHERE status IN ('releasing', 'provisioning', 'restarting'))",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        let now = self.bed.clock.now();
        self.say(format!("it is {now}"));
        for line in standing {
            self.say(line);
        }
        Ok(())
    }

    async fn step_timers(&mut self) {
        let spine = self.bed.calm.spine.clone();
        if let Err(error) = spine.step_timers().await {
            self.broken(format!("the timers fail: {}", actions::chain(&error)));
        }
    }

    /// Every node says what is on it.
    pub(crate) async fn beat_all(&mut self) -> anyhow::Result<()> {
        for node in 0..self.nodes.len() {
            let plan = nodes::heartbeat(self, node);
            self.alone(plan).await;
        }
        Ok(())
    }

    /// Everything that is due, without a fault.
    async fn pass(&mut self) -> anyhow::Result<()> {
        for _ in 0..PASSES_MAX {
            let spine = self.bed.calm.spine.clone();
            let mut moved = match spine.step_all().await {
                Ok(count) => count > 0,
                Err(error) => {
                    self.broken(format!("the spine fails: {}", actions::chain(&error)));
                    return Ok(());
                }
            };
            for node in 0..self.nodes.len() {
                moved |= self.do_all(node).await?;
            }
            if !moved {
                return Ok(());
            }
        }
        self.broken("it moves for ever");
        Ok(())
    }

    /// A node does all it has to do, and does it well.
    async fn do_all(&mut self, node: usize) -> anyhow::Result<bool> {
        let plan = nodes::claim_for(self, node);
        self.alone(plan).await;
        let given = std::mem::take(&mut self.nodes[node].inbox);
        let mut moved = !given.is_empty();
        let now = self.bed.clock.now();
        for task in given {
            if let Err(violation) = self.nodes[node].begin(&task, now) {
                self.broken(violation);
            }
        }
        for place in self.nodes[node].open() {
            moved = true;
            if let Err(violation) = self.nodes[node].work(place, Luck::Good) {
                self.broken(violation);
            }
        }
        for place in self.nodes[node].untold() {
            moved = true;
            if let Some(plan) = nodes::result_of(self, (node, place), 1, false) {
                self.alone(plan).await;
            }
        }
        Ok(moved)
    }

    /// What is still on its way.
    async fn restless(&mut self) -> anyhow::Result<Vec<String>> {
        let rows = sqlx::query(
            "SELECT 'allocation ' || id || ' is ' || status FROM allocations
              WHERE status IN ('requested', 'provisioning', 'restarting', 'releasing')
              UNION ALL
             SELECT 'claim ' || id || ' is ' || status FROM claims WHERE status IN ('reserved', 'cleaning')
              UNION ALL
             SELECT 'task ' || id || ' is ' || status FROM node_tasks WHERE status IN ('queued', 'dispatched')
              UNION ALL
             SELECT 'message ' || event_id || ' waits for ' || consumer FROM bus_deliveries WHERE dead_at IS NULL
              UNION ALL
             SELECT 'message ' || id || ' is not published' FROM outbox_events WHERE published_at IS NULL
              UNION ALL
             SELECT 'group ' || id || ' was given back, and nobody has told its members' FROM allocation_groups
              WHERE release_id IS NOT NULL AND release_passed_on_at IS NULL",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// What must be true of everything that has come to rest.
    async fn check(&mut self) -> anyhow::Result<()> {
        self.look().await?;
        for (invariant, rows, count) in store::audit::run(&self.bed.store).await? {
            if count > 0 {
                self.broken(format!("{}: {}", invariant.name, rows.join("; ")));
            }
        }
        self.check_promises().await?;
        self.check_worlds().await
    }

    /// What was promised is there, once.
    async fn check_promises(&mut self) -> anyhow::Result<()> {
        let rows: Vec<(Uuid, Option<Uuid>, String, String)> = sqlx::query_as(
            "SELECT id, NULL, coalesce(name, ''), status FROM allocations WHERE group_id IS NULL
              UNION ALL
             SELECT id, group_id, coalesce(name, ''), status FROM allocations WHERE group_id IS NOT NULL
              UNION ALL
             SELECT id, NULL, coalesce(name, ''), status FROM allocation_groups
              ORDER BY id",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        let mut broken = Vec::new();
        for request in &self.books.requests {
            let name = request.name();
            let made: Vec<_> = rows.iter().filter(|(_, _, called, _)| called == name).collect();
            if made.len() > 1 {
                broken.push(format!("{name} was made {} times", made.len()));
            }
            if let Some(answer) = &request.answer
                && !made.iter().any(|(id, ..)| *id == answer.id)
            {
                broken.push(format!("{name} was promised and is not there"));
            }
            if let (Body::Group(body), Some((group, ..))) = (&request.body, made.first()) {
                let members = rows.iter().filter(|(_, of, _, _)| *of == Some(*group)).count();
                if members != body.members.len() {
                    broken.push(format!("{name} has {members} members"));
                }
            }
        }
        for (id, group, name, status) in &rows {
            let with_group = group.is_some_and(|group| self.books.released.contains(&group));
            let itself = self.books.released.contains(id);
            let may_fail = !itself || self.books.groups.contains(id);
            let gone = matches!(status.as_str(), "released" | "release_failed");
            if (itself || with_group) && !gone && !(may_fail && status == "failed") {
                broken.push(format!("{name} was given back and is {status}"));
            }
        }
        let dead: i64 =
            sqlx::query_scalar("SELECT count(*) FROM bus_deliveries WHERE dead_at IS NOT NULL")
                .fetch_one(&mut self.bed.sql)
                .await?;
        if dead > 0 {
            broken.push(format!("{dead} messages are dead letters"));
        }
        for what in broken {
            self.broken(what);
        }
        Ok(())
    }

    /// On the nodes there is what the claims say, and nothing else.
    async fn check_worlds(&mut self) -> anyhow::Result<()> {
        let held: Vec<(Uuid, Uuid, Option<i16>, String)> = sqlx::query_as(
            "SELECT claims.allocation_id, claims.node_id, slots.slot_index, allocations.status
               FROM claims
               JOIN allocations ON allocations.id = claims.allocation_id
               LEFT JOIN slots ON slots.id = claims.slot_id
              WHERE claims.status <> 'freed'",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        let mut broken = Vec::new();
        for node in &self.nodes {
            let here = node.identity.node_id.uuid();
            for (place, guest) in &node.world {
                let claimed = held.iter().any(|(allocation, on, slot, _)| {
                    allocation == guest && *on == here && slot.unwrap_or(-1) == *place
                });
                if !claimed {
                    broken.push(format!("{guest} is on slot {place} of {here} and holds nothing"));
                }
            }
            for (allocation, _, slot, status) in held.iter().filter(|(_, on, _, _)| *on == here) {
                let slots: Vec<i16> = slot.iter().copied().collect();
                if status == "active" && !node.hosts(*allocation, &slots) {
                    broken.push(format!("{allocation} is active and not on {here}"));
                }
            }
        }
        for what in broken {
            self.broken(what);
        }
        Ok(())
    }

    /// Everything is given back, cleaned up and cleared, and all of it ends: every slot is anybody's.
    async fn give_back(&mut self) -> anyhow::Result<()> {
        for id in self
            .ids(
                "SELECT id FROM allocations WHERE status NOT IN ('released', 'failed') ORDER BY id",
            )
            .await?
        {
            let plan = asking::ask(self, What::Force, id);
            self.alone(plan).await;
        }
        for id in self.ids("SELECT DISTINCT allocation_id FROM claims WHERE status = 'stuck' AND allocation_id IN (
                                   SELECT id FROM allocations WHERE status = 'failed') ORDER BY 1").await? {
            let plan = asking::ask(self, What::Clean, id);
            self.alone(plan).await;
        }
        self.rest().await?;
        for id in self.ids("SELECT id FROM claims WHERE status = 'quarantined' ORDER BY id").await?
        {
            let plan = operators::clear_one(self, id).await?;
            // Once to say that nothing is there, and once to say that the books are closed.
            self.beat_all().await?;
            self.beat_all().await?;
            self.alone(plan).await;
        }
        self.check().await?;
        let left: Vec<String> = sqlx::query_scalar(
            "SELECT id || ' is ' || status FROM allocations WHERE status NOT IN ('released', 'failed')
              UNION ALL
             SELECT id || ' is ' || status FROM claims WHERE status <> 'freed'",
        )
        .fetch_all(&mut self.bed.sql)
        .await?;
        if !left.is_empty() {
            self.broken(format!("it can't be given back: {}", left.join(", ")));
        }
        self.once_more().await
    }

    /// When nothing is wrong any more, what is asked for is there, and gone again, without waiting for anything.
    async fn once_more(&mut self) -> anyhow::Result<()> {
        // Nodes that were drained have run empty by now.
        self.step_timers().await;
        for id in self.ids("SELECT id FROM nodes WHERE status = 'maintenance' ORDER BY id").await? {
            let plan = asking::ask(self, What::Resume, id);
            self.alone(plan).await;
        }
        let slices = "SELECT id FROM nodes WHERE status = 'ready' AND NOT whole";
        if self.ids(slices).await?.is_empty() {
            return Ok(());
        }
        let place = people::last_request(self);
        let plan = people::ask_for(self, place);
        self.alone(plan).await;
        let Some(id) = self.books.requests[place].answer.as_ref().map(|granted| granted.id) else {
            self.broken("everything was given back, and there is no room");
            return Ok(());
        };
        self.pass().await?;
        self.must_be(id, "active").await?;
        let plan = asking::ask(self, What::Release, id);
        self.alone(plan).await;
        self.pass().await?;
        self.must_be(id, "released").await
    }

    async fn must_be(&mut self, id: Uuid, expected: &str) -> anyhow::Result<()> {
        let status: String = sqlx::query_scalar("SELECT status FROM allocations WHERE id = $1")
            .bind(id)
            .fetch_one(&mut self.bed.sql)
            .await?;
        if status != expected {
            self.broken(format!("nothing was in the way, and {id} is {status} and not {expected}"));
        }
        Ok(())
    }

    async fn ids(&mut self, query: &'static str) -> anyhow::Result<Vec<Uuid>> {
        Ok(sqlx::query_scalar(query).fetch_all(&mut self.bed.sql).await?)
    }
}
