//! People who do not wait for each other: requests are sent at moments that were fixed before, and the time of each is counted from its
//! moment, so that no stall is hidden by who would have asked during it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sqlx::PgPool;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::create::{Seen, Tally};
use crate::machine::{milliseconds, now};
use crate::product::{Product, new_id};

/// So many can wait for their answers at once; who comes then waits for a connection, and that counts.
const CONNECTIONS: usize = 128;

type Moments = Arc<Mutex<mpsc::UnboundedReceiver<Instant>>>;

/// Requests at so many a second for so many GPUs each, for so long.
pub(crate) async fn ask(
    product: &Product,
    sql: &PgPool,
    (rate, gpus): (f64, i16),
    time: Duration,
) -> anyhow::Result<Seen> {
    let wish: Arc<str> = product.request("h100.slice", gpus).to_string().into();
    let (tell, told) = mpsc::unbounded_channel();
    let told = Arc::new(Mutex::new(told));
    let mut people = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let client = Client::connect(product).await?;
        people.spawn(person(client, Arc::clone(&wish), Arc::clone(&told)));
    }
    let tally = Tally::begin(sql).await?;
    let began = tally.began;
    // A thread of its own, because timers of the runtime are a millisecond late, which would be counted as ours.
    let telling = tokio::task::spawn_blocking(move || keep_time(began, rate, time, &tell));
    telling.await?;
    tally.end(sql, people.join_all().await).await
}

/// Tells each moment when it has come.
#[expect(clippy::disallowed_methods, reason = "it is the clock")]
fn keep_time(began: Instant, rate: f64, time: Duration, tell: &mpsc::UnboundedSender<Instant>) {
    let all = (rate * time.as_secs_f64()) as u64;
    for number in 0..all {
        let moment = began + Duration::from_secs_f64(number as f64 / rate);
        let early = moment.saturating_duration_since(now());
        if !early.is_zero() {
            std::thread::sleep(early);
        }
        // Nobody listens any more only when somebody failed, who says so.
        let _ = tell.send(moment);
    }
}

async fn person(mut client: Client, wish: Arc<str>, told: Moments) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    loop {
        let moment = told.lock().await.recv().await;
        let Some(moment) = moment else { return Ok(took) };
        let reply = client.post("/allocations", new_id(), &wish).await.context("no answer")?;
        ensure!(reply.status == 201, "a wrong answer: {}", reply.words());
        took.push(milliseconds(moment));
    }
}
