//! Agents that wait for work, over real mTLS and with nothing to do for it: how fast a task reaches one, how fast its result becomes a
//! state, and what it costs that they are there.

use std::time::Duration;

use anyhow::ensure;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Plan;
use crate::figure::Figure;
use crate::fleet::Agents;
use crate::machine::{Mood, quantile, usage};
use crate::open;
use crate::outbox::{drained, fallen_to_none};
use crate::product::pause;
use crate::raw::{self, Length};
use crate::release::until_counted;
use crate::stage::{ALL_ROLES, Setting, Stage};

/// How many agents the goals of one task at a time are said for.
const SOME: usize = 1_000;
/// What the goal of many agents is said for.
const TASKS_PER_SECOND: f64 = 200.0;
/// What is asked for instead when that is more than there is.
const FEWER_PER_SECOND: f64 = 50.0;
const UNDER_WAY: &str =
    "SELECT count(*) FROM allocations WHERE status IN ('requested', 'provisioning')";
/// So slowly that they do not meet.
pub(crate) const SELDOM_PER_SECOND: f64 = 25.0;

/// From the row of a task to its claim, both by the database's clock.
pub(crate) const CLAIMED: &str =
    "SELECT (extract(epoch FROM log.occurred_at - task.created_at) * 1000)::float8
       FROM node_tasks AS task
       JOIN lifecycle_log AS log ON log.entity_id = task.id AND log.machine = 'node_task'
      WHERE log.to_status = 'dispatched'
      ORDER BY task.created_at";

/// From there to the first thing that the agent says of it: when it had it in its hands, and had seen that it is meant for it.
pub(crate) const RECEIVED: &str =
    "SELECT (extract(epoch FROM event.at - task.created_at) * 1000)::float8
       FROM node_tasks AS task
       JOIN node_task_events AS event ON event.task_id = task.id AND event.seq = 1
      ORDER BY task.created_at";

/// From the end of the last task for an allocation to the allocation's being usable.
const BECAME: &str = "SELECT (extract(epoch FROM allocations.active_at - done.at) * 1000)::float8
       FROM allocations
      CROSS JOIN LATERAL (
            SELECT max(ended_at) AS at FROM node_tasks WHERE allocation_id = allocations.id AND ended_at <= active_at
            ) AS done
      WHERE done.at IS NOT NULL
      ORDER BY allocations.created_at";

/// What such a query finds, sorted.
pub(crate) async fn sorted(sql: &PgPool, query: &'static str) -> anyhow::Result<Vec<f64>> {
    Ok(parted(sql, query, (0, 0)).await?.1)
}

/// Without what was found before: the first of them, and the others, each sorted.
async fn parted(
    sql: &PgPool,
    query: &'static str,
    (before, first): (usize, usize),
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let mut found: Vec<f64> = sqlx::query_scalar(query).fetch_all(sql).await?;
    let mut first_of = found.split_off(before.min(found.len()));
    let mut others = first_of.split_off(first.min(first_of.len()));
    first_of.sort_by(f64::total_cmp);
    others.sort_by(f64::total_cmp);
    Ok((first_of, others))
}

/// With some agents, and, if more are asked for, with as many as that.
pub(crate) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let mut all = waiting(plan, SOME.min(plan.agents), "P9").await?;
    if plan.agents > SOME {
        all.extend(waiting(plan, plan.agents, "P10").await?);
    }
    Ok(all)
}

/// So many wait; tasks come seldom for P9, and as fast as P10 says otherwise.
async fn waiting(plan: Plan, count: usize, goal: &'static str) -> anyhow::Result<Vec<Figure>> {
    eprintln!("agents: {count} of them are let in");
    let setting = Setting { name: "agents", nodes: 0, floor_nodes: 1, roles: ALL_ROLES };
    let stage = Stage::set(setting).await?;
    let (stop, mut agents) = (CancellationToken::new(), JoinSet::new());
    let which = (Agents::NullThatTells, count);
    stage.product.fleet("h100.slice", which, &mut agents, &stop).await?;
    pause(Duration::from_secs(15)).await;
    let mut all = idle(&stage, count, plan).await?;
    let asked = Asked::of(goal, plan);
    match tasks(&stage, count, asked).await {
        Ok(figures) => all.extend(figures),
        // Whoever is asked for more than there is says so. What half as many get says something, and not what the goal asks.
        Err(error) => {
            let figure = Figure::more(goal, format!("agents.{count}.tasks_were_measured"), "");
            let figure = figure.must(1.0).note(format!("{error:#}"));
            all.push(figure.once(0.0, None, Mood::look().await));
            match fewer_tasks(&stage, count, asked).await {
                Ok(figures) => all.extend(figures),
                Err(error) => eprintln!("agents: fewer tasks were not measured either: {error:#}"),
            }
        }
    }
    stage.product.check().await?;
    stop.cancel();
    agents.join_all().await;
    Ok(all)
}

/// Tasks reach agents, and their results become states.
async fn tasks(stage: &Stage, agents: usize, asked: Asked) -> anyhow::Result<Vec<Figure>> {
    let Asked { goal, rate, most } = asked;
    let Dispatched { claimed, received, became, at_first, mood, queued_per_second } =
        dispatch(stage, rate, most.min(agents)).await?;
    let note = format!(
        "{agents} agents, {rate:.0} allocations/s asked for, {queued_per_second:.0} tasks/s queued, {} tasks",
        received.len()
    );
    let of =
        |goal, what: &str| Figure::less(goal, format!("agents.{agents}.{what}"), "ms").note(&note);
    let once =
        |figure: Figure, times: &[f64], share| figure.once(quantile(times, share), None, mood);
    let (p50, p99) = (of(goal, "task_reaches_agent_p50"), of(goal, "task_reaches_agent_p99"));
    let (p50, p99, state_p99) = match goal {
        "P9" => (p50.goal(5.0, 2.0), p99.goal(20.0, 10.0), of("P11", "result_to_state_p99")),
        "P10" => (p50, p99.goal(50.0, 20.0), of("P11", "result_to_state_p99")),
        _ => {
            let of = |what| of("P10", what);
            return Ok(vec![
                once(of("with_fewer_tasks_reaches_agent_p50"), &received, 0.5),
                once(of("with_fewer_tasks_reaches_agent_p99"), &received, 0.99),
            ]);
        }
    };
    Ok(vec![
        once(p50, &received, 0.5),
        once(p99, &received, 0.99),
        once(of(goal, "task_claimed_p99"), &claimed, 0.99),
        once(of("P11", "result_to_state_p50"), &became, 0.5),
        once(state_p99.goal(20.0, 10.0), &became, 0.99),
        once(of(goal, "task_reaches_agent_at_first_p99"), &at_first.received, 0.99),
        once(of("P11", "result_to_state_at_first_p99"), &at_first.became, 0.99),
    ])
}

/// The same with fewer of them, once nothing of before is under way. No goal is about it.
async fn fewer_tasks(stage: &Stage, agents: usize, asked: Asked) -> anyhow::Result<Vec<Figure>> {
    let sql = stage.sql().await?;
    fallen_to_none(&sql, UNDER_WAY).await?;
    sql.close().await;
    let fewer = Asked { goal: "", rate: FEWER_PER_SECOND, most: asked.most / 2 };
    tasks(stage, agents, fewer).await
}

/// How many tasks are asked for, and for which goal.
#[derive(Clone, Copy)]
struct Asked {
    goal: &'static str,
    rate: f64,
    most: usize,
}

impl Asked {
    fn of(goal: &'static str, plan: Plan) -> Asked {
        let (rate, most, few) = if goal == "P10" {
            (TASKS_PER_SECOND, 2_000, 600)
        } else {
            (SELDOM_PER_SECOND, 400, 100)
        };
        Asked { goal, rate, most: if plan.quick { few } else { most } }
    }
}

/// What became of some tasks, in milliseconds and sorted.
pub(crate) struct Dispatched {
    claimed: Vec<f64>,
    /// From the row of a task to the agent's first word about it.
    received: Vec<f64>,
    became: Vec<f64>,
    at_first: AtFirst,
    pub(crate) mood: Mood,
    /// How many of them there really were in a second.
    queued_per_second: f64,
}

impl Dispatched {
    /// Of all of them, those of the first second too.
    pub(crate) fn all_received(&self) -> Vec<f64> {
        let mut all = [&self.at_first.received[..], &self.received].concat();
        all.sort_by(f64::total_cmp);
        all
    }
}

/// The same of those of the first second. After a rest the database has closed what nobody asked by, and each connection that is opened
/// plans each statement once.
struct AtFirst {
    received: Vec<f64>,
    became: Vec<f64>,
}

/// So many allocations at so many a second, each of a whole node, so that each task goes to another agent.
pub(crate) async fn dispatch(stage: &Stage, rate: f64, count: usize) -> anyhow::Result<Dispatched> {
    let (sql, mood) = (stage.sql().await?, Mood::look().await);
    let (tasks, received) =
        (sorted(&sql, CLAIMED).await?.len(), sorted(&sql, RECEIVED).await?.len());
    let became = sorted(&sql, BECAME).await?.len();
    let time = Duration::from_secs_f64(count as f64 / rate);
    let seen = open::ask(&stage.product, &sql, (rate, 8), time).await?;
    let active = "SELECT count(*) FROM allocations WHERE active_at IS NOT NULL";
    until_counted(&sql, active, became + seen.took.len()).await?;
    drained(&sql).await?;
    let first = (rate as usize).min(count / 4);
    let (_, claimed) = parted(&sql, CLAIMED, (tasks, first)).await?;
    let (first_received, received) = parted(&sql, RECEIVED, (received, first)).await?;
    let (first_became, became) = parted(&sql, BECAME, (became, first)).await?;
    let dispatched = Dispatched {
        claimed,
        received,
        became,
        at_first: AtFirst { received: first_received, became: first_became },
        mood: mood.asking(seen.client_cpu),
        queued_per_second: queued_per_second(&sql, tasks).await?,
    };
    sql.close().await;
    let Dispatched { received, became, at_first, .. } = &dispatched;
    let received = received.len() + at_first.received.len();
    let became = became.len() + at_first.became.len();
    ensure!(received >= seen.took.len(), "only {received} tasks were received");
    ensure!(became == seen.took.len(), "only {became} results became states");
    Ok(dispatched)
}

/// How many tasks were queued in a second, from the first of them to the last, without those that were there before.
async fn queued_per_second(sql: &PgPool, before: usize) -> anyhow::Result<f64> {
    let rate = sqlx::query_scalar(
        "SELECT (count(*) / nullif(extract(epoch FROM max(created_at) - min(created_at)), 0))::float8
           FROM (SELECT created_at FROM node_tasks ORDER BY created_at OFFSET $1) AS task",
    );
    let rate: Option<f64> = rate.bind(i64::try_from(before)?).fetch_one(sql).await?;
    Ok(rate.unwrap_or(f64::NAN))
}

/// What it costs that they are there: memory, CPU, and commits against what the database can do.
async fn idle(stage: &Stage, count: usize, plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let (sql, process) = (stage.sql().await?, stage.process()?);
    let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'berth'";
    let mood = Mood::look().await;
    let seconds = if plan.quick { 20.0 } else { 60.0 };
    let (before, began): (i64, f64) =
        (sqlx::query_scalar(commits).fetch_one(&sql).await?, usage(process)?.1);
    pause(Duration::from_secs_f64(seconds)).await;
    let (after, (memory, cpu)): (i64, (f64, f64)) =
        (sqlx::query_scalar(commits).fetch_one(&sql).await?, usage(process)?);
    sql.close().await;
    let per_second = (after - before) as f64 / seconds;
    let budget = stage.raw(&[raw::COMMIT], 8, Length::Time(plan.round))?.rate;
    let note = format!("{count} agents");
    let of = |goal, what: &str, unit| {
        Figure::less(goal, format!("agents.{count}.{what}"), unit).note(&note)
    };
    let percent = (cpu - began) * 100.0 / seconds;
    Ok(vec![
        of("P17", "idle_memory", "MB").goal(600.0, 300.0).once(memory, None, mood),
        of("P17", "idle_cpu", "% of a core").goal(10.0, 5.0).once(percent, None, mood),
        of("P18", "idle_commits", "/s").must(0.05).once(per_second, Some(budget), mood),
    ])
}
