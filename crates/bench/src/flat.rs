//! Whether a create costs the same whatever the number of nodes: the same binary on two stages, one after the other and again.

use crate::Plan;
use crate::create::{Until, ask};
use crate::figure::Figure;
use crate::machine::Mood;
use crate::stage::{Setting, Stage};

const FEW: usize = 1_000;
const CLIENTS: usize = 8;
/// How many are made in a round: all rounds together must leave room where there are few nodes.
const ASKED: usize = 1_000;

/// The rate and the p99 with many nodes, against those with few.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let many = if plan.quick { 10_000 } else { 100_000 };
    let set = async |name: &str, nodes| {
        Stage::set(Setting { name, nodes, floor_nodes: 1, roles: "api" }).await
    };
    let stages = [set("flat-few", FEW).await?, set("flat-many", many).await?];
    let sqls = [stages[0].sql().await?, stages[1].sql().await?];
    let note = format!("{many} nodes against {FEW}, {CLIENTS} clients");
    let mut rate = Figure::more("P6", "flat.per_second", "/s").goal(0.8, 0.95).note(&note);
    let mut p99 = Figure::less("P6", "flat.p99", "ms").must(1.5).note(&note);
    for (stage, sql) in stages.iter().zip(&sqls) {
        // The first requests of a process fill its caches.
        ask(&stage.product, sql, CLIENTS, Until::Asked(ASKED / 4)).await?;
    }
    for round in 1..=plan.rounds.min(5) {
        let mood = Mood::look().await;
        let few = ask(&stages[0].product, &sqls[0], CLIENTS, Until::Asked(ASKED)).await?;
        let ours = ask(&stages[1].product, &sqls[1], CLIENTS, Until::Asked(ASKED)).await?;
        eprintln!(
            "flat, round {round}: {:.0}/s, p99 {:.2} ms with {FEW} nodes; {:.0}/s, p99 {:.2} ms with {many}",
            few.rate,
            few.p99(),
            ours.rate,
            ours.p99()
        );
        let mood = mood.asking(ours.client_cpu);
        rate.push(ours.rate, Some(few.rate), mood);
        p99.push(ours.p99(), Some(few.p99()), mood);
    }
    for (stage, sql) in stages.iter().zip(sqls) {
        sql.close().await;
        stage.check().await?;
    }
    Ok(vec![rate, p99])
}
