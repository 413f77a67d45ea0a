//! R34: ten times as many requests as can be served. Who serves and who asks have cores of their own, in the peak as in the crowd: what
//! is compared is what one and the same product makes of the same cores, without a crowd and with one.

use anyhow::ensure;
use sqlx::PgPool;

use crate::Plan;
use crate::client::Client;
use crate::create::create;
use crate::crowd::{Come, Cores, Saw, send};
use crate::figure::Figure;
use crate::machine::{Mood, median, now};
use crate::stage::{Setting, Stage};

/// How many times as many come as can be served. So many of them must really have asked, or the crowd must have had all its
/// connections waiting for an answer for so much of the time: who is held until they are told no can't ask again meanwhile.
const FACTOR: f64 = 10.0;
const FACTOR_MIN: f64 = 9.0;
const FULL_MIN: f64 = 0.9;
/// How many ask at once for the peak, each again as soon as they are answered: the best of these is the peak.
const AT_ONCE: [usize; 2] = [32, 128];
/// The peak is what is served for so many times as long: a few seconds are over before the database has to write anything back,
/// and a crowd stays for a minute.
const SUSTAINED: f64 = 5.0;
/// So often in a row a lone request must be as fast as before: so many times the median before.
const IN_A_ROW: usize = 10;
const AS_FAST: f64 = 3.0;
/// How long everything may take to be as before, in seconds.
const RECOVERY: f64 = 10.0;

/// How long and how often.
struct Length {
    rounds: usize,
    peak: f64,
    crowd: f64,
    nodes: usize,
}

const fn length(plan: Plan) -> Length {
    if plan.quick {
        return Length { rounds: 3, peak: 2.0, crowd: 5.0, nodes: 50_000 };
    }
    Length { rounds: 3, peak: 4.0, crowd: 60.0, nodes: 225_000 }
}

/// The share of the peak that is still served, how long it takes until all is as before, and how soon people are turned away.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let length = length(plan);
    let cores = Cores::shared_out()?;
    cores.serve()?;
    let setting = Setting { name: "overload", nodes: length.nodes, floor_nodes: 1, roles: "api" };
    let stage = Stage::set(setting).await;
    cores.free()?;
    let stage = stage?;
    let sql = stage.sql().await?;
    let mut goodput = Figure::more("R34", "overload.goodput", "/s").must(0.8);
    let mut recovered = Figure::less("R34", "overload.recovered", "s").must(RECOVERY);
    let mut turned_away = Figure::less("R34", "overload.turned_away_p99", "ms");
    let mut asking = Figure::more("R34", "overload.asked", "times the peak");
    for round in 1..=length.rounds {
        let mood = Mood::look().await;
        let before = lone(&stage, 40).await?;
        let peak = peak(&stage, &sql, &cores, length.peak).await?;
        let come = Come::Open(peak * FACTOR);
        let saw = counted(&stage, &sql, &cores, (come, length.crowd)).await?;
        let recovery = recovery(&stage, before).await?;
        let rate = saw.served_meanwhile as f64 / saw.lasted;
        let times = |count: u64| count as f64 / saw.lasted / peak;
        let (factor, asked) = (times(saw.came), times(saw.asked));
        asking.push(asked, None, mood);
        eprintln!(
            "overload, round {round}: {rate:.0}/s of {peak:.0}/s, {factor:.1} times as many came, {asked:.1} times asked, all connections waited \
             for {:.2} of the time; {:?}; served {:?}, turned away {:?}, \
             watched {:?}; lone {before:.2} ms, as before after {recovery:.2} s; the crowd {:.1} s of CPU",
            saw.full, saw.answers, saw.served, saw.turned_away, saw.watched, saw.cpu
        );
        let is_crowd = factor >= FACTOR_MIN && (asked >= FACTOR_MIN || saw.full >= FULL_MIN);
        ensure!(is_crowd, "it was no crowd: {asked:.1} times the peak asked");
        let mood = mood.asking(saw.cpu);
        goodput.push(rate, Some(peak), mood);
        recovered.push(recovery, None, mood);
        turned_away.push(saw.turned_away.p99, None, mood);
    }
    sql.close().await;
    stage.check().await?;
    let note = format!(
        "{FACTOR} times the peak for {} s, as a ratio of the peak; who serves has one half of the cores, the crowd the other",
        length.crowd
    );
    let asking = asking.note("of those who came; the others found all 4,096 connections of the crowd waiting for an answer");
    Ok(vec![goodput.note(note), recovered, turned_away, asking])
}

/// The most that is served in a second, for as long as it takes to be sure: the better of these many at once, once more for longer.
async fn peak(stage: &Stage, sql: &PgPool, cores: &Cores, seconds: f64) -> anyhow::Result<f64> {
    let (mut most, mut best): (f64, usize) = (0.0, 0);
    for clients in AT_ONCE {
        let rate = served(stage, sql, cores, (clients, seconds)).await?;
        if rate > most {
            (most, best) = (rate, clients);
        }
    }
    served(stage, sql, cores, (best, seconds * SUSTAINED)).await
}

/// What so many at once are served in a second.
async fn served(
    stage: &Stage,
    sql: &PgPool,
    cores: &Cores,
    (clients, seconds): (usize, f64),
) -> anyhow::Result<f64> {
    let saw = counted(stage, sql, cores, (Come::Closed(clients), seconds)).await?;
    // On a slow machine some may be turned away: then the most is what fewer get.
    let known = saw.answers.keys().all(|status| [201, 503].contains(status));
    ensure!(known, "{clients} at once were answered {:?}", saw.answers);
    let rate = saw.served_meanwhile as f64 / saw.lasted;
    eprintln!("overload: {clients} at once, {rate:.0}/s for {seconds} s");
    Ok(rate)
}

/// A crowd; what is answered with 201 is in the database, and nothing else.
async fn counted(
    stage: &Stage,
    sql: &PgPool,
    cores: &Cores,
    (come, seconds): (Come, f64),
) -> anyhow::Result<Saw> {
    let count = "SELECT count(*) FROM allocations";
    let before: i64 = sqlx::query_scalar(count).fetch_one(sql).await?;
    let saw = send(&stage.product, cores, come, seconds).await?;
    let after: i64 = sqlx::query_scalar(count).fetch_one(sql).await?;
    saw.is_clean()?;
    let (granted, made) = (saw.granted(), after - before);
    ensure!(i64::try_from(granted)? == made, "{granted} were answered, {made} were made");
    Ok(saw)
}

/// The median of so many lone requests, one after the other, in milliseconds.
async fn lone(stage: &Stage, requests: usize) -> anyhow::Result<f64> {
    let wish = stage.product.request("h100.slice", 1).to_string();
    let mut client = Client::connect(&stage.product).await?;
    let mut took = Vec::new();
    for _ in 0..requests {
        took.push(create(&mut client, &wish, false).await?);
    }
    Ok(median(&took))
}

/// How long it takes until lone requests are as fast as before, in seconds.
async fn recovery(stage: &Stage, before: f64) -> anyhow::Result<f64> {
    let wish = stage.product.request("h100.slice", 1).to_string();
    let mut client = Client::connect(&stage.product).await?;
    let (began, mut row) = (now(), 0);
    while row < IN_A_ROW {
        let took = create(&mut client, &wish, false).await?;
        row = if took <= before * AS_FAST { row + 1 } else { 0 };
        let lasted = began.elapsed().as_secs_f64();
        ensure!(lasted < 2.0 * RECOVERY, "not as before: {before:.2} ms, and now {took:.2} ms");
    }
    Ok(began.elapsed().as_secs_f64())
}
