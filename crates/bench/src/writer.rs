//! What one transition costs: sixteen who report at once, as the product's stories do, in company, against the least that a transition
//! can be; and each in a transaction of its own, against the same SQL typed by hand into `pgbench`, once on the very same tables and once
//! on copies without any trigger.

use std::time::Instant;

use anyhow::ensure;
use domain::ids::{AllocationId, EventId, OperationId};
use domain::machines::allocation::Event;
use lifecycle::Source;
use sqlx::{Connection as _, PgConnection, Row as _};
use store::cluster::Cluster;
use store::lifecycle::{Actor, Birth, Report};
use store::{Company, Options, Store, allocations};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Plan;
use crate::figure::Figure;
use crate::machine::{Mood, own_cpu};
use crate::raw::{self, CAS_ONE, FLOOR, Length, Run, insist_on_durability};

const CLIENTS: usize = 16;
/// How many allocations each side has: the first are for `pgbench`, the others for us.
const ROWS: usize = 8_000;
/// How many the raw table has.
const FLOOR_ROWS: usize = 100_000;
const DATABASE: &str = "bench";
const SAME_SQL: &str = include_str!("sql/same.sql");

/// The figures of the writer.
pub(crate) async fn figures(cluster: &Cluster, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let store = prepare(cluster).await?;
    let of = |name: &str| Figure::more("P8", name, "/s").note(format!("{CLIENTS} at once"));
    let mut figures = [
        of("writer.in_company_vs_cas_one").goal(0.6, 2.0),
        of("writer.alone_vs_cas_one"),
        of("writer.alone_vs_same_sql").goal(0.6, 0.8),
        of("writer.alone_vs_same_sql_without_triggers").goal(0.5, 0.8),
    ];
    let mut clients = vec![vec![false; ROWS / CLIENTS]; CLIENTS];
    let bare = without_triggers(SAME_SQL);
    for round in 1..=plan.rounds {
        let mood = Mood::look().await;
        let before = by_hand(cluster, FLOOR, CAS_ONE, plan)?;
        let floor_same = by_hand(cluster, DATABASE, SAME_SQL, plan)?;
        let cpu = own_cpu();
        let together = ours(&store, plan, &mut clients, true).await?;
        let mood = mood.asking(own_cpu() - cpu);
        let alone = ours(&store, plan, &mut clients, false).await?;
        let floor_bare = by_hand(cluster, DATABASE, &bare, plan)?;
        let after = by_hand(cluster, FLOOR, CAS_ONE, plan)?;
        eprintln!(
            "writer, round {round}: {together:.0}/s in company, {alone:.0}/s alone; one statement {before:.0} and {after:.0}/s, the same SQL {floor_same:.0}/s, without triggers {floor_bare:.0}/s"
        );
        let least = (before + after) / 2.0;
        let taken = [(together, least), (alone, least), (alone, floor_same), (alone, floor_bare)];
        for (figure, (ours, floor)) in figures.iter_mut().zip(taken) {
            figure.push(ours, Some(floor), mood);
        }
    }
    check(cluster).await?;
    store.close().await;
    Ok(figures.into())
}

/// Transactions a second of one script.
fn by_hand(cluster: &Cluster, database: &str, script: &str, plan: Plan) -> anyhow::Result<f64> {
    let rows = if database == FLOOR { FLOOR_ROWS } else { ROWS };
    let defines = [("rows", rows), ("clients", CLIENTS)];
    let length = Length::Time(plan.round);
    let run = Run { database, scripts: &[script], clients: CLIENTS, length, defines: &defines };
    Ok(raw::pgbench(cluster, &run)?.rate)
}

/// The same script on the copies of the tables that have no triggers.
fn without_triggers(script: &str) -> String {
    let copies = [
        ("allocations ", "bare_allocations "),
        ("lifecycle_log ", "bare_log "),
        ("outbox_events ", "bare_outbox "),
    ];
    copies.iter().fold(script.to_owned(), |script, (table, copy)| {
        script.replace(&format!(" {table}"), &format!(" {copy}"))
    })
}

fn row(number: usize) -> AllocationId {
    AllocationId(Uuid::from_u128(
        0x0000_0000_0000_7000_8000_0000_0000_0000 + decimal_as_hex(number),
    ))
}

/// `pgbench` writes the row's number as digits of the identifier, so we read it that way too.
fn decimal_as_hex(mut number: usize) -> u128 {
    let (mut hex, mut place) = (0, 0);
    while number > 0 {
        hex |= ((number % 10) as u128) << place;
        number /= 10;
        place += 4;
    }
    hex
}

#[expect(clippy::disallowed_methods, reason = "a bench makes its own identities")]
fn new_id() -> Uuid {
    Uuid::now_v7()
}

fn worker() -> Actor {
    Actor::new(Source::Worker, "bench")
}

async fn prepare(cluster: &Cluster) -> anyhow::Result<Store> {
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await?;
    insist_on_durability(&mut admin).await?;
    sqlx::query("CREATE DATABASE bench").execute(&mut admin).await?;
    admin.close().await?;
    raw::furnish(cluster, 1).await?;
    let mut floor = PgConnection::connect(&cluster.url(FLOOR)).await?;
    let rows = format!(
        "INSERT INTO floor_allocations (id, project_id, sku, gpus, status, key)
         SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 1, 'h100', 1, 'active', n::text
           FROM generate_series(1, {FLOOR_ROWS}) AS n;
         VACUUM ANALYZE floor_allocations"
    );
    raw::each(&mut floor, &rows).await?;
    floor.close().await?;
    Store::migrate(&cluster.url(DATABASE)).await?;
    // Half of them plan each statement once, as where stories run.
    let options = Options { connections_max: 2 * u32::try_from(CLIENTS)?, ..Options::default() };
    let store = Store::open(&cluster.url(DATABASE), options).await?.hot();
    for chunk in (0..2 * ROWS).collect::<Vec<_>>().chunks(500) {
        let mut tx = store.begin().await?;
        for number in chunk {
            activate(&mut tx, row(*number)).await?;
        }
        tx.commit().await?;
    }
    let mut connection = PgConnection::connect(&cluster.url(DATABASE)).await?;
    for statement in [
        "CREATE TABLE bare_allocations (LIKE allocations INCLUDING ALL)",
        "CREATE TABLE bare_log (LIKE lifecycle_log INCLUDING ALL)",
        "CREATE TABLE bare_outbox (LIKE outbox_events INCLUDING ALL)",
        "INSERT INTO bare_allocations SELECT * FROM allocations",
        "INSERT INTO bare_log SELECT * FROM lifecycle_log",
        "VACUUM ANALYZE",
    ] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    Ok(store)
}

async fn activate(tx: &mut store::Tx, id: AllocationId) -> anyhow::Result<()> {
    let provision = OperationId(new_id());
    let allocation = allocations::NewAllocation {
        id,
        project_id: new_id(),
        member_of: None,
        provision,
        sku: "bench".to_owned(),
        gpus: 1,
        terms: allocations::Terms::default(),
    };
    allocations::insert(tx, &allocation, Birth::new(EventId(new_id()), worker())).await?;
    for event in [Event::ProvisionStarted, Event::ProvisionSucceeded] {
        let report = Report::new(event, EventId(new_id()), worker()).about(provision);
        allocations::report(tx, id, &report).await?.require()?;
    }
    Ok(())
}

/// What one client knows of its rows: whether each is being restarted. It lasts from round to round.
type Restarting = Vec<bool>;

/// Sixteen tasks, each with rows of its own, restart them over and over. Only what was applied and committed counts.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
async fn ours(
    store: &Store,
    plan: Plan,
    clients: &mut Vec<Restarting>,
    in_company: bool,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let until = began + plan.round;
    let mut tasks = JoinSet::new();
    for (client, mut rows) in clients.drain(..).enumerate() {
        let store = store.clone();
        tasks.spawn(async move {
            let (mut done, mut place) = (0_u64, 0);
            while Instant::now() < until {
                place = (place + 37) % rows.len();
                let id = row(ROWS + place * CLIENTS + client);
                let company = if in_company { company(id) } else { Company::Alone };
                let moved = transition(&store, id, rows[place], company).await?;
                ensure!(moved, "{id} did not move");
                rows[place] = !rows[place];
                done += 1;
            }
            Ok((client, rows, done))
        });
    }
    let mut ended = Vec::new();
    while let Some(task) = tasks.join_next().await {
        ended.push(task??);
    }
    ended.sort_by_key(|(client, _, _)| *client);
    let done: u64 = ended.iter().map(|(_, _, done)| done).sum();
    clients.extend(ended.into_iter().map(|(_, rows, _)| rows));
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

fn company(id: AllocationId) -> Company {
    Company::Same { doing: ("bench", "transition"), about: id.uuid() }
}

/// One transition, in that company: a restart is asked for, or the one under way is done.
async fn transition(
    store: &Store,
    id: AllocationId,
    restarting: bool,
    company: Company,
) -> anyhow::Result<bool> {
    let (event, actor) = if restarting {
        (Event::RestartCompleted, worker())
    } else {
        (Event::RestartRequested, Actor::new(Source::User, "bench"))
    };
    let report = Report::new(event, EventId(new_id()), actor).about(OperationId(id.uuid()));
    let mut tx = store.begin_in(company).await?;
    let outcome = allocations::report(&mut tx, id, &report).await?;
    tx.commit().await?;
    Ok(outcome.is_applied())
}

/// After the run the books must balance: every row stands where its log says.
async fn check(cluster: &Cluster) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&cluster.url(DATABASE)).await?;
    let astray: i64 = sqlx::query(
        "SELECT count(*)
           FROM allocations
          WHERE NOT EXISTS (
                SELECT 1 FROM lifecycle_log
                 WHERE entity_id = allocations.id AND seq = allocations.seq AND to_status = allocations.status)
             OR seq <> (SELECT count(*) FROM lifecycle_log WHERE entity_id = allocations.id)",
    )
    .fetch_one(&mut connection)
    .await?
    .get(0);
    ensure!(astray == 0, "{astray} allocations do not stand where their log says");
    Ok(())
}
