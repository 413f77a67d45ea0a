//! The product is killed without warning while people ask for allocations, and started again: how long nobody is answered, and that
//! everything that was answered is there, once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::Plan;
use crate::client::Client;
use crate::figure::Figure;
use crate::machine::{Mood, now, own_cpu};
use crate::product::{Product, new_id, pause};
use crate::raw;
use crate::replicas::Replica;
use crate::stage::{Setting, Stage, fleet};

const PEOPLE: usize = 8;
const NODES: usize = 5_000;
const AGAIN: Duration = Duration::from_millis(5);
/// How long one answer may take, and how long nobody may be answered at all.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const AWAY_MAX: Duration = Duration::from_secs(60);

/// Where people come in, and when somebody was first answered after it was started again.
struct Door {
    place: Mutex<Place>,
    over: AtomicBool,
    token: String,
    project: Uuid,
}

struct Place {
    host: String,
    started: Instant,
    answered: Option<Instant>,
}

impl Door {
    fn new(product: &Product) -> Arc<Door> {
        let place = Place { host: product.host(), started: now(), answered: None };
        Arc::new(Door {
            place: Mutex::new(place),
            over: AtomicBool::new(false),
            token: product.token.clone(),
            project: product.project,
        })
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is started again, there.
    fn restarts_at(&self, host: String) {
        *self.place() = Place { host, started: now(), answered: None };
    }

    /// Somebody who asked at that moment was answered.
    fn answers(&self, asked: Instant) {
        let mut place = self.place();
        if asked > place.started && place.answered.is_none() {
            place.answered = Some(now());
        }
    }

    /// Waits until somebody is answered; how long that took from the start, in seconds.
    async fn reopened(&self) -> anyhow::Result<f64> {
        let waiting = now();
        while waiting.elapsed() < AWAY_MAX {
            {
                let place = self.place();
                if let Some(answered) = place.answered {
                    return Ok(answered.duration_since(place.started).as_secs_f64());
                }
            }
            pause(AGAIN).await;
        }
        bail!("nobody is answered after a start")
    }
}

/// Of one process whose database goes on, and of everything at once.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    Ok(vec![process(plan).await?, whole(plan).await?])
}

async fn process(plan: Plan) -> anyhow::Result<Figure> {
    let setting = Setting { name: "recovery", nodes: NODES, floor_nodes: 1, roles: "api" };
    let mut stage = Stage::set(setting).await?;
    let door = Door::new(&stage.product);
    // Before anybody asks, who would be taken for somebody else.
    let mood = Mood::look().await;
    let people = crowd(&door);
    let mut figure = Figure::less("P21", "recovery.of_a_process", "s").goal(2.0, 1.0);
    for round in 1..=plan.rounds {
        let cpu = own_cpu();
        pause(Duration::from_secs(1)).await;
        // Dropping it is `kill -9`.
        stage.replica = None;
        let replica = Replica::spawn(&stage.product, "api", None)?;
        stage.product.api = format!("http://{}/api/v1", replica.api);
        door.restarts_at(stage.product.host());
        stage.replica = Some(replica);
        let seconds = door.reopened().await?;
        eprintln!("recovery of a process, round {round}: {seconds:.2} s");
        figure.push(seconds, None, mood.asking(own_cpu() - cpu));
    }
    settled(&door, people, &stage.cluster.url("berth")).await?;
    stage.check().await?;
    Ok(figure.note("Postgres goes on"))
}

async fn whole(plan: Plan) -> anyhow::Result<Figure> {
    let mut product = Product::start("recovery-up", 0, "0").await?;
    product.until_announced().await?;
    let mut sql = PgConnection::connect(&product.database()).await?;
    raw::insist_on_durability(&mut sql).await?;
    raw::each(&mut sql, &fleet(NODES)).await?;
    sql.close().await?;
    let door = Door::new(&product);
    // Before anybody asks, who would be taken for somebody else.
    let mood = Mood::look().await;
    let people = crowd(&door);
    let mut figure = Figure::less("P21", "recovery.of_everything", "s").goal(2.0, 1.0);
    for round in 1..=plan.rounds {
        let cpu = own_cpu();
        pause(Duration::from_secs(1)).await;
        product.kill()?;
        door.restarts_at(product.host());
        product.begin().await?;
        let seconds = door.reopened().await?;
        eprintln!("recovery of everything, round {round}: {seconds:.2} s");
        figure.push(seconds, None, mood.asking(own_cpu() - cpu));
    }
    settled(&door, people, &product.database()).await?;
    let sql = sqlx::PgPool::connect(&product.database()).await?;
    crate::outbox::drained(&sql).await?;
    sql.close().await;
    product.check().await?;
    Ok(figure.note("berth up with its Postgres"))
}

type People = JoinSet<anyhow::Result<Vec<(Uuid, Uuid)>>>;

fn crowd(door: &Arc<Door>) -> People {
    let mut people = JoinSet::new();
    for _ in 0..PEOPLE {
        people.spawn(person(Arc::clone(door)));
    }
    people
}

/// Asks again and again, each time with the same key until there is an answer; says which key was promised which allocation.
async fn person(door: Arc<Door>) -> anyhow::Result<Vec<(Uuid, Uuid)>> {
    let (mut promised, mut client) = (Vec::new(), None);
    while !door.over.load(Ordering::Relaxed) {
        let key = new_id();
        // By its name it is seen whether one request was ever two.
        let wish = serde_json::json!({ "project_id": door.project, "sku": "h100.slice", "gpus": 1, "region": "eu-1",
            "ssh_key_ids": [], "name": key.to_string() });
        promised.push((key, insist(&door, &mut client, key, &wish.to_string()).await?));
    }
    Ok(promised)
}

async fn insist(
    door: &Door,
    kept: &mut Option<Client>,
    key: Uuid,
    wish: &str,
) -> anyhow::Result<Uuid> {
    let begun = now();
    while begun.elapsed() < AWAY_MAX * 2 {
        let host = door.place().host.clone();
        let connected = match kept.take() {
            Some(client) => Ok(client),
            None => Client::connect_to(&host, &door.token).await,
        };
        let asked = now();
        if let Ok(mut client) = connected
            && let Ok(Ok(reply)) = timeout(ANSWER_MAX, client.post("/allocations", key, wish)).await
        {
            *kept = Some(client);
            if reply.status == 201 {
                door.answers(asked);
                let id = reply.json()?["id"].as_str().context("an id")?.parse()?;
                return Ok(id);
            }
            // It is being done, or can't be done now: both say to ask again.
            let again = reply.status == 503
                || (reply.status == 409 && reply.json()?["code"] == "idempotency_in_flight");
            ensure!(again, "a wrong answer: {}", reply.words());
        }
        pause(AGAIN).await;
    }
    bail!("a request was never answered")
}

/// Everybody stops; each key has led to the one allocation that was promised for it, and no slot is held twice.
async fn settled(door: &Door, people: People, database: &str) -> anyhow::Result<()> {
    door.over.store(true, Ordering::Relaxed);
    let mut promised = Vec::new();
    for said in people.join_all().await {
        promised.extend(said?);
    }
    let (keys, ids): (Vec<String>, Vec<Uuid>) =
        promised.iter().map(|(key, id)| (key.to_string(), *id)).unzip();
    let mut sql = PgConnection::connect(database).await?;
    let kept: i64 = sqlx::query_scalar(
        "SELECT count(*)
           FROM unnest($1::text[], $2::uuid[]) AS promised (key, id)
           JOIN allocations ON allocations.id = promised.id AND allocations.name = promised.key",
    )
    .bind(&keys)
    .bind(&ids)
    .fetch_one(&mut sql)
    .await?;
    let all: i64 =
        sqlx::query_scalar("SELECT count(*) FROM allocations").fetch_one(&mut sql).await?;
    let twice: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT slot_id FROM claims WHERE status <> 'freed' GROUP BY slot_id HAVING count(*) > 1) AS twice",
    )
    .fetch_one(&mut sql)
    .await?;
    sql.close().await?;
    let asked = i64::try_from(promised.len())?;
    ensure!(
        (kept, all, twice) == (asked, asked, 0),
        "{asked} promised, {kept} of them there, {all} there at all, {twice} slots held twice"
    );
    eprintln!("recovery: {asked} promised and kept");
    Ok(())
}
