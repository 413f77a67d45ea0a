//! The house: the whole product in one process on a real Postgres, with a clock that tests move and nodes that do what they
//! are told. Nothing runs by itself: [`House::settle`] moves everything until nothing is due.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use control::account::install;
use control::allocation::{create, release, restart, view};
use control::allocation_group;
use control::billing;
use control::idempotency::{Answer, Key};
use control::node::enrol::{AgentIdentity, enrol};
use control::node::{admin, dispatch, task};
use control::policies::Policies;
use control::{Caller, Ctx, Error, assemble, catalogue};
use domain::ids::{AllocationId, NodeId, NodeTaskId};
use domain::machines::allocation::Status;
use domain::policy::Scope;
use spine::{Clock, Spine};
use store::{Options, Store, audit};
use uuid::Uuid;
use wire::http::admin::NewNode;
use wire::http::allocation_groups::{AllocationGroup, NewGroup, NewMember};
use wire::http::allocations::{Allocation, NewAllocation};
use wire::node::{
    CleanupProof, Enrolment, Envelope, FailureReason, JoinToken, PROTOCOL, SignedTask, TaskOutcome,
    TaskResult,
};

use crate::worker::Worker;
use crate::{Database, new_id};

mod answers;
mod looks;
mod together;

use answers::phases_of;
pub use looks::{Ordered, Step};
pub use together::Charging;

/// More passes than any story needs: what is not settled by then never will be.
const PASSES_MAX: usize = 500;

/// What the tenant has to begin with, in minor units.
pub const FUNDS_MINOR: i64 = 1_000_000;

/// A complete proof.
pub const CLEAN: CleanupProof =
    CleanupProof { released: true, hard_stopped: false, wiped: true, leases_released: true };

/// What a node does with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// What was asked for.
    Succeed,
    /// Fails, and says why.
    Fail(FailureReason),
    /// Cleans up, but not all of it.
    LeaveResidue,
    /// Takes the task and is never heard of again.
    FallSilent,
    /// Does not even ask for it.
    StayAway,
    /// Says that it restarted, and is in the same boot as before.
    KeepBoot,
    /// Restarts, which is seen by its boot, and is never heard of again.
    ComeUpAndFallSilent,
    /// Restarts, and fails afterwards for this reason.
    ComeUpAndFail(FailureReason),
}

/// A node whose agent is the test.
#[derive(Debug)]
pub struct ScriptedNode {
    /// Who it is.
    pub identity: AgentIdentity,
    script: Mutex<VecDeque<Act>>,
    held: Mutex<Vec<SignedTask>>,
    boot_id: Mutex<Uuid>,
}

impl ScriptedNode {
    /// What it does with its next tasks, in this order; after that it succeeds.
    pub fn will(&self, acts: &[Act]) {
        self.script.lock().expect("nobody panicked").extend(acts);
    }

    /// It succeeds from now on, whatever was planned.
    pub fn forget_script(&self) {
        self.script.lock().expect("nobody panicked").clear();
    }

    /// The tasks it has taken and never answered.
    pub fn held(&self) -> Vec<SignedTask> {
        self.held.lock().expect("nobody panicked").clone()
    }

    /// The same, of which it knows nothing more from now on.
    pub fn take_held(&self) -> Vec<SignedTask> {
        std::mem::take(&mut self.held.lock().expect("nobody panicked"))
    }

    /// Takes a task if there is one, and does what the script says. Answers whether it did anything.
    async fn step(&self, ctx: &Ctx) -> bool {
        let act = self.script.lock().expect("nobody panicked").front().copied();
        let act = act.unwrap_or(Act::Succeed);
        if act == Act::StayAway {
            return false;
        }
        let Some(given) = dispatch::claim(ctx, &self.identity, 1).await.expect("a claim").pop()
        else {
            return false;
        };
        self.script.lock().expect("nobody panicked").pop_front();
        match self.outcome_of(&given, act) {
            Some(outcome) => {
                self.tell_phases(ctx, &given, &phases_of(&given, act)).await;
                self.answer(ctx, &given, outcome).await;
            }
            None => {
                if act == Act::ComeUpAndFallSilent {
                    self.tell_phases(ctx, &given, &phases_of(&given, act)).await;
                }
                self.held.lock().expect("nobody panicked").push(given);
            }
        }
        true
    }

    /// Answers a task, whether it still holds it or not; what the gateway says to that.
    pub async fn answer(
        &self,
        ctx: &Ctx,
        given: &SignedTask,
        outcome: TaskOutcome,
    ) -> wire::node::Acknowledged {
        let result = TaskResult { dispatch: given.dispatch, outcome, phases: Vec::new() };
        task::finish(ctx, &self.identity, NodeTaskId(given.task_id), &result).await.expect("heard")
    }
}

/// What is in the envelope of a task.
pub fn envelope_of(given: &SignedTask) -> Envelope {
    serde_json::from_str(&given.envelope).expect("an envelope")
}

/// See the module.
pub struct House {
    /// Its database.
    pub database: Database,
    /// What stories stand on.
    pub ctx: Ctx,
    /// What moves by itself, when it is let.
    pub spine: Spine,
    /// Somebody with a project.
    pub tenant: Caller,
    /// Somebody who runs the platform.
    pub operator: Caller,
    /// The tenant's project.
    pub project: Uuid,
    nodes: Vec<ScriptedNode>,
    /// What moves it, if it is not moved here.
    worker: Option<Worker>,
}

impl House {
    /// A house with the demonstration's catalogue, a tenant and an operator, and no node yet.
    pub async fn open() -> House {
        House::with(Policies::default()).await
    }

    /// The same, under other policies.
    pub async fn with(policies: Policies) -> House {
        let database = Database::new().await;
        let assembled = assemble(database.store.clone(), Clock::system(), policies).await;
        let control::Assembled { ctx, spine } = assembled.expect("the house stands");
        catalogue::install(&ctx, &catalogue::demonstration()).await.expect("a catalogue");
        ctx.keys.gateway_url.set("https://localhost:1".to_owned()).expect("it was not set");
        let tenant = person(&ctx, "tenant@example.test", false).await;
        let operator = person(&ctx, "operator@example.test", true).await;
        let project =
            install::ensure_project(&ctx, tenant.user_id, "house").await.expect("a project");
        billing::account::welcome(&ctx, tenant.user_id, FUNDS_MINOR).await.expect("money");
        let worker = Worker::start(&database.url(), policies);
        House { database, ctx, spine, tenant, operator, project, nodes: Vec::new(), worker }
    }

    /// Adds a node in `eu-1` with these NUMA nodes, enrolled and ready.
    pub async fn node(&mut self, sku: &str, slots: &[i16]) -> &ScriptedNode {
        let new = NewNode {
            name: format!("node-{}", self.nodes.len()),
            region: "eu-1".to_owned(),
            sku: sku.to_owned(),
            slots: slots.to_vec(),
        };
        let made = admin::create(&self.ctx, &self.operator, &new, None).await.expect("a node").body;
        let token = JoinToken::parse(&made.join_token).expect("a token");
        let enrolment = Enrolment {
            protocol: PROTOCOL,
            node_id: token.node_id,
            secret: token.secret,
            csr: signing_request(),
        };
        let certificate = enrol(&self.ctx, &enrolment).await.expect("enrolled");
        let (agent_id, images): (Uuid, Vec<String>) = {
            let images = catalogue::images(&self.ctx, &self.tenant).await.expect("images");
            let row: (Uuid,) = sqlx::query_as(
                "SELECT id FROM node_agents WHERE node_id = $1 AND revoked_at IS NULL",
            )
            .bind(token.node_id)
            .fetch_one(&self.database.sql)
            .await
            .expect("an agent");
            (row.0, images.into_iter().map(|image| image.code).collect())
        };
        for image in images {
            sqlx::query("INSERT INTO node_images (node_id, image) VALUES ($1, $2)")
                .bind(token.node_id)
                .bind(image)
                .execute(&self.database.sql)
                .await
                .expect("an image");
        }
        let identity = AgentIdentity {
            agent_id,
            node_id: NodeId(token.node_id),
            not_after: certificate.not_after,
            protocol: PROTOCOL,
        };
        let held = Mutex::default();
        let (script, boot_id) = (Mutex::default(), Mutex::new(new_id()));
        self.nodes.push(ScriptedNode { identity, script, held, boot_id });
        self.nodes.last().expect("it was just added")
    }

    /// Its nodes, in the order in which they were added.
    pub fn nodes(&self) -> &[ScriptedNode] {
        &self.nodes
    }

    /// The first node.
    pub fn first_node(&self) -> &ScriptedNode {
        &self.nodes[0]
    }

    /// Asks for GPUs in `eu-1`.
    ///
    /// # Errors
    /// What the story answers.
    pub async fn create(&self, sku: &str, gpus: i16) -> Result<Allocation, Error> {
        let asked = NewAllocation {
            project_id: self.project,
            sku: sku.to_owned(),
            gpus,
            region: "eu-1".to_owned(),
            ssh_key_ids: Vec::new(),
            image: None,
            name: None,
        };
        let key = self.key("POST /allocations");
        Ok(create::request(&self.ctx, &self.tenant, &asked, &key).await?.body)
    }

    /// Asks for a group in `eu-1` whose members have these counts, all of them required.
    ///
    /// # Errors
    /// What the story answers.
    pub async fn group(&self, sku: &str, gpus: &[i16]) -> Result<AllocationGroup, Error> {
        let member = |gpus: &i16| NewMember {
            sku: sku.to_owned(),
            gpus: *gpus,
            region: "eu-1".to_owned(),
            image: None,
            name: None,
            required: None,
            ssh_key_ids: None,
            count: None,
        };
        let asked = NewGroup {
            project_id: self.project,
            name: None,
            members: gpus.iter().map(member).collect(),
            ssh_key_ids: Vec::new(),
        };
        let key = self.key("POST /allocation-groups");
        Ok(allocation_group::create::request(&self.ctx, &self.tenant, &asked, &key).await?.body)
    }

    /// A key that was never used.
    pub fn key(&self, route: &'static str) -> Key {
        Key::of(self.tenant.user_id, route, &new_id().to_string(), b"")
    }

    /// The tenant gives it back.
    ///
    /// # Errors
    /// What the story answers.
    pub async fn release(&self, id: Uuid) -> Result<Answer<Allocation>, Error> {
        release::request(&self.ctx, &self.tenant, AllocationId(id), None).await
    }

    /// The tenant wants it restarted.
    ///
    /// # Errors
    /// What the story answers.
    pub async fn restart(&self, id: Uuid) -> Result<Answer<Allocation>, Error> {
        restart::request(&self.ctx, &self.tenant, AllocationId(id), None).await
    }

    /// An allocation that is usable, on the first node's SKU.
    pub async fn active(&self, sku: &str, gpus: i16) -> Allocation {
        let id = self.create(sku, gpus).await.expect("it fits").id;
        self.settle().await;
        let shown = self.show(id).await;
        assert_eq!(shown.status.0, Status::Active);
        shown
    }

    /// How the tenant sees it.
    pub async fn show(&self, id: Uuid) -> Allocation {
        view::show(&self.ctx, &self.tenant, AllocationId(id)).await.expect("it is theirs")
    }

    /// Its status.
    pub async fn status(&self, id: Uuid) -> Status {
        self.show(id).await.status.0
    }

    /// The statuses of its claims, in order.
    pub async fn claims(&self, id: Uuid) -> Vec<String> {
        sqlx::query_scalar("SELECT status FROM claims WHERE allocation_id = $1 ORDER BY id")
            .bind(id)
            .fetch_all(&self.database.sql)
            .await
            .expect("claims")
    }

    /// How many rows a table has.
    pub async fn rows(&self, table: &'static str) -> i64 {
        // A name of our own schema, not input.
        sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}")))
            .fetch_one(&self.database.sql)
            .await
            .expect("a count")
    }

    /// The node loses an image.
    pub async fn lose_image(&self, node: NodeId, image: &str) {
        sqlx::query("DELETE FROM node_images WHERE node_id = $1 AND image = $2")
            .bind(node.uuid())
            .bind(image)
            .execute(&self.database.sql)
            .await
            .expect("it is gone");
    }

    /// What was published about it, in order.
    pub async fn published(&self, id: Uuid) -> Vec<String> {
        sqlx::query_scalar("SELECT subject FROM outbox_events WHERE entity_id = $1 ORDER BY seq")
            .bind(id)
            .fetch_all(&self.database.sql)
            .await
            .expect("messages")
    }

    /// The messages about it as they were written, in order.
    pub async fn messages(&self, id: Uuid) -> Vec<serde_json::Value> {
        sqlx::query_scalar("SELECT payload FROM outbox_events WHERE entity_id = $1 ORDER BY seq")
            .bind(id)
            .fetch_all(&self.database.sql)
            .await
            .expect("messages")
    }

    /// What a watcher of it is to be told, a line for each row: steps of it and of its tasks, and phases.
    pub async fn happenings(&self, id: Uuid) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT 'state ' || seq || ' ' || to_status FROM lifecycle_log WHERE entity_id = $1 AND machine = 'allocation'
             UNION ALL
             SELECT 'task ' || task.id || ' ' || to_status
               FROM node_tasks AS task JOIN lifecycle_log ON entity_id = task.id AND machine = 'node_task'
              WHERE allocation_id = $1
             UNION ALL
             SELECT 'phase ' || task.id || ' ' || event.phase || ' ' || event.stands
               FROM node_tasks AS task JOIN node_task_events AS event ON event.task_id = task.id
              WHERE allocation_id = $1",
        )
        .bind(id)
        .fetch_all(&self.database.sql)
        .await
        .expect("rows")
    }

    /// Takes somebody out of every project, behind everybody's back.
    pub async fn forget_member(&self, user: Uuid) {
        sqlx::query("DELETE FROM project_members WHERE user_id = $1")
            .bind(user)
            .execute(&self.database.sql)
            .await
            .expect("it is done");
    }

    /// Moves everything until nothing is due.
    pub async fn settle(&self) {
        for _ in 0..PASSES_MAX {
            let mut moved = match &self.worker {
                Some(worker) => worker.settle(&self.ctx.clock).await > 0,
                None => self.spine.step_all().await.expect("the spine moves") > 0,
            };
            moved |= self.let_nodes_work().await;
            if !moved {
                return;
            }
        }
        panic!("it never settles");
    }

    /// Every node takes a task, if there is one, and does what its script says; whether any did.
    pub async fn let_nodes_work(&self) -> bool {
        let mut worked = false;
        for node in &self.nodes {
            worked |= node.step(&self.ctx).await;
        }
        worked
    }

    /// Lets time pass, sweeps, and settles.
    pub async fn pass(&self, time: Duration) {
        self.ctx.clock.advance(time);
        self.spine.step_timers().await.expect("the timers run");
        self.settle().await;
    }

    /// Every invariant holds.
    pub async fn is_sound(&self) {
        // A connection of its own: a test may have taken the house's away.
        let options = Options { connections_max: 1, ..Options::default() };
        let store = Store::open(&self.database.url(), options).await.expect("the store opens");
        for (invariant, broken, _) in audit::run(&store).await.expect("the audit runs") {
            assert!(broken.is_empty(), "{}: {broken:?}", invariant.name);
        }
        store.close().await;
    }

    /// Checks the invariants and drops the database.
    pub async fn close(self) {
        self.is_sound().await;
        self.database.remove().await;
    }
}

async fn person(ctx: &Ctx, email: &str, operator: bool) -> Caller {
    let user_id =
        install::ensure_user(ctx, email, email, operator, None).await.expect("an account");
    let mut scopes = vec![Scope::Read, Scope::Write];
    scopes.extend(operator.then_some(Scope::Admin));
    Caller {
        user_id,
        email: email.to_owned(),
        name: email.to_owned(),
        operator,
        token_id: new_id(),
        scopes,
        request_id: new_id(),
        source: None,
    }
}

pub(crate) fn signing_request() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
    request.pem().expect("a text")
}
