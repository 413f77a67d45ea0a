//! What people feel of a billing minute: they ask at a steady rate while the product charges a hundred thousand open records
//! whenever a minute is over; who asked meanwhile is compared with everybody else.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool, Row as _};
use store::{Options, Store, audit};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Plan;
use crate::charging::{ACCOUNTS, RECORDS, insert_records};
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, median, own_cpu, quantile};
use crate::product::{Product, new_id, pause};

/// How often somebody asks for an allocation, which is given back at once.
const ASK_EVERY: Duration = Duration::from_millis(40);
const NODES: usize = 30;

/// One answer: what was asked for, when it came, and how long that took from the moment at which it was to be sent.
struct Answer {
    what: &'static str,
    at: Timestamp,
    ms: f64,
}

/// From when to when the records of one minute were charged.
#[derive(Clone, Copy)]
struct Pass {
    from: Timestamp,
    until: Timestamp,
}

/// People ask while everything is charged, minute after minute.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let minutes = plan.minutes;
    eprintln!("beside: people ask while {minutes} minutes of {RECORDS} records are charged");
    let product = Arc::new(Product::start("beside", 0, "0").await?);
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    product.fleet("h100.slice", (Agents::Whole, NODES), &mut agents, &stop).await?;
    let sql = PgPoolOptions::new().max_connections(2).connect(&product.database()).await?;
    furnish(&product, &sql).await?;
    let (mood, cpu) = (Mood::look().await, own_cpu());
    let (answers, failed) = ask(&product, &sql, minutes).await?;
    let mood = mood.asking(own_cpu() - cpu);
    let passes = passes(&sql).await?;
    ensure!(passes.len() >= minutes, "{} minutes were charged, not {minutes}", passes.len());
    ensure!(failed == 0, "{failed} requests failed");
    sql.close().await;
    let broken = broken(&product).await?;
    ensure!(broken.is_empty(), "the books are not right: {}", json!(broken));
    stop.cancel();
    agents.join_all().await;
    let seconds = median(&passes.iter().map(Pass::seconds).collect::<Vec<_>>());
    let mut figures = Vec::new();
    for what in ["create", "read", "release"] {
        let (normal, beside) = sorted(&answers, &passes, what);
        let note = format!(
            "{} while {} minutes were charged, each in {seconds:.1} s; {} otherwise",
            beside.len(),
            passes.len(),
            normal.len()
        );
        let figure = Figure::less("P16", format!("charging.{what}_p99_beside"), "ms").note(note);
        let figure = if what == "create" { figure.goal(3.0, 1.5) } else { figure };
        let (ours, floor) = (quantile(&beside, 0.99), quantile(&normal, 0.99));
        figures.push(figure.once(ours, Some(floor), mood));
    }
    Ok(figures)
}

impl Pass {
    fn seconds(&self) -> f64 {
        self.until.duration_since(self.from).as_secs_f64()
    }

    fn has(&self, at: Timestamp) -> bool {
        self.from <= at && at <= self.until
    }
}

/// Accounts that can pay, and records of theirs that begin with this minute.
async fn furnish(product: &Product, sql: &PgPool) -> anyhow::Result<()> {
    as_owner(sql, &format!(
        "WITH account AS (
            INSERT INTO accounts (id) SELECT md5('account ' || n)::uuid FROM generate_series(1, {ACCOUNTS}) AS n RETURNING id
         )
         INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, to_status, source, actor, occurred_at)
         SELECT 'balance', id, 1, gen_random_uuid(), 'born', 'healthy', 'worker', 'bench', clock_timestamp() FROM account"
    ))
    .await?;
    let accounts: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM accounts WHERE owner_id IS NULL").fetch_all(sql).await?;
    for account in accounts {
        product.give(account).await?;
    }
    as_owner(sql, &insert_records("date_trunc('minute', clock_timestamp(), 'UTC')", RECORDS)).await
}

/// Writes what the product itself would have written, behind its triggers.
async fn as_owner(sql: &PgPool, statement: &str) -> anyhow::Result<()> {
    let mut connection = sql.acquire().await?;
    for statement in [
        "SET session_replication_role = replica",
        statement,
        "RESET session_replication_role",
        "ANALYZE accounts, usage_records",
    ] {
        let done = sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut *connection).await;
        done.with_context(|| statement.to_owned())?;
    }
    Ok(())
}

/// Somebody asks at every tick, whether or not those before have their answers, until so many minutes are charged.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn ask(
    product: &Arc<Product>,
    sql: &PgPool,
    minutes: usize,
) -> anyhow::Result<(Vec<Answer>, usize)> {
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut people, began) = (JoinSet::new(), Instant::now());
    let most = Duration::from_secs(60 * (minutes as u64 + 2));
    let mut look = began + Duration::from_secs(5);
    while began.elapsed() < most {
        let at = ticks.tick().await;
        people.spawn(person(Arc::clone(product), at));
        if Instant::now() > look {
            look = Instant::now() + Duration::from_secs(5);
            let charged = passes(sql).await?;
            // Some normal time behind the last of them.
            let last =
                charged.last().map(|pass| Timestamp::now().duration_since(pass.until).as_secs());
            if charged.len() >= minutes && last.is_some_and(|seconds| seconds > 8) {
                break;
            }
        }
    }
    let (mut answers, mut failed) = (Vec::new(), 0);
    while let Some(done) = people.join_next().await {
        match done? {
            Ok(all) => answers.extend(all),
            Err(error) => {
                failed += 1;
                eprintln!("a request failed: {error:#}");
            }
        }
    }
    Ok((answers, failed))
}

/// Asks for an allocation, looks at it, and gives it back.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn person(product: Arc<Product>, meant: Instant) -> anyhow::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    let mut done = |what: &'static str, began: Instant| {
        let (at, ms) = (Timestamp::now(), began.elapsed().as_secs_f64() * 1_000.0);
        answers.push(Answer { what, at, ms });
    };
    let wish = product.request("h100.slice", 1);
    let (status, made) = product.post(&product.token, "/allocations", new_id(), &wish).await?;
    ensure!(status == 201, "create: {status} {made}");
    done("create", meant);
    let id = made["id"].as_str().context("an id")?.to_owned();
    let began = Instant::now();
    product.get(&product.token, &format!("/allocations/{id}")).await?;
    done("read", began);
    // It is in use for a moment, so that what ends is also something that is charged for.
    pause(Duration::from_millis(400)).await;
    let (began, path) = (Instant::now(), format!("/allocations/{id}/release"));
    let (status, said) = product.post(&product.token, &path, new_id(), &json!({})).await?;
    ensure!(status == 202, "release: {status} {said}");
    done("release", began);
    Ok(answers)
}

/// When each minute of the records was charged, by the ledger. The first batch of a pass was under way for as long as a batch
/// takes before it was posted.
async fn passes(sql: &PgPool) -> anyhow::Result<Vec<Pass>> {
    let rows = sqlx::query(
        "SELECT (extract(epoch FROM min(posted_at)) * 1e6)::bigint, (extract(epoch FROM max(posted_at)) * 1e6)::bigint
           FROM ledger_postings
           JOIN accounts ON accounts.id = ledger_postings.account_id
          WHERE kind = 'usage' AND accounts.owner_id IS NULL
          GROUP BY ledger_postings.until_at
          ORDER BY 1",
    )
    .fetch_all(sql)
    .await?;
    rows.iter()
        .map(|row| {
            let (from, until): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            let batch = (until - from) / (RECORDS / store::charging::WINDOWS_MAX - 1);
            Ok(Pass {
                from: Timestamp::from_microsecond(from - batch)?,
                until: Timestamp::from_microsecond(until)?,
            })
        })
        .collect()
}

/// How long that took outside and inside of the passes, each from the shortest to the longest.
fn sorted(answers: &[Answer], passes: &[Pass], what: &str) -> (Vec<f64>, Vec<f64>) {
    let of = |beside: bool| {
        let mut took: Vec<f64> = answers
            .iter()
            .filter(|answer| answer.what == what)
            .filter(|answer| passes.iter().any(|pass| pass.has(answer.at)) == beside)
            .map(|answer| answer.ms)
            .collect();
        took.sort_by(f64::total_cmp);
        took
    };
    (of(false), of(true))
}

/// The books of the product, computed again.
async fn broken(product: &Product) -> anyhow::Result<Vec<Value>> {
    let store = Store::open(&product.database(), Options::default()).await?;
    let found = audit::ask_all(&store, audit::MONEY).await?;
    store.close().await;
    let broken = found.into_iter().filter(|(_, _, count)| *count > 0);
    Ok(broken
        .map(|(invariant, _, count)| json!({ "name": invariant.name, "count": count }))
        .collect())
}
