//! Messages that come out of turn, again, or not at all.

use anyhow::Context as _;
use spine::workflow::{Happened, Workflows as _};
use uuid::Uuid;
use wire::bus::Message;

use super::chain;
use super::people::COMING;
use crate::sim::{Sim, short};
use crate::story::{Heard, Plan};

/// Any message that is or was on its way, whoever has it and whatever comes before it, to its consumer.
pub(super) async fn out_of_turn(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let messages: Vec<(sqlx::types::Json<Message>,)> = sqlx::query_as(
        "SELECT jsonb_build_object('id', id, 'subject', subject, 'fact', payload)
           FROM outbox_events
          WHERE published_at IS NOT NULL OR $1
          ORDER BY position",
    )
    .bind(sim.dice.chance(20))
    .fetch_all(&mut sim.bed.sql)
    .await?;
    let chosen = sim.dice.below(messages.len());
    let Some((sqlx::types::Json(message),)) = messages.into_iter().nth(chosen) else {
        return Ok(None);
    };
    let forgotten = sim.dice.chance(50);
    let what = format!("{} of {} out of turn", message.subject.0, short(&message.fact.id));
    Ok(Some(Plan::new(what, move |assembled| {
        let spine = assembled.spine.clone();
        async move {
            let mut heard = 0;
            for subscription in &spine.subscriptions {
                if !subscription.subjects.contains(&message.subject.0) {
                    continue;
                }
                if let Err(error) = (subscription.handle)(message.clone()).await {
                    return Heard::Moved(Err(error.reason));
                }
                heard += 1;
                let done = [message.id];
                if !forgotten {
                    let consumer = subscription.consumer;
                    let gone = store::deliveries::handled(&spine.store, consumer, &done).await;
                    if let Err(error) = gone {
                        return Heard::Moved(Err(chain(&error)));
                    }
                }
            }
            Heard::Moved(Ok(heard))
        }
    })))
}

/// A consumer has tried a message as often as it may, without anybody hearing of it.
pub(super) async fn give_up(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let waiting: Vec<(String, sqlx::types::Json<Message>)> = sqlx::query_as(
        "SELECT consumer, message FROM bus_deliveries WHERE dead_at IS NULL ORDER BY event_id, consumer",
    )
    .fetch_all(&mut sim.bed.sql)
    .await?;
    // A group whose members are given up one after the other goes ways that it seldom goes.
    let coming: Vec<Uuid> = sqlx::query_scalar(COMING).fetch_all(&mut sim.bed.sql).await?;
    let (of_groups, others): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(|(_, message)| coming.contains(&message.fact.id));
    let first = !of_groups.is_empty() && (others.is_empty() || sim.dice.chance(50));
    let from = if first { of_groups } else { others };
    let chosen = sim.dice.below(from.len());
    let Some((consumer, sqlx::types::Json(message))) = from.into_iter().nth(chosen) else {
        return Ok(None);
    };
    let what = format!("{} of {} is given up", message.subject.0, short(&message.fact.id));
    Ok(Some(Plan::new(what, move |assembled| {
        let spine = assembled.spine.clone();
        async move {
            let gives_up = spine.subscriptions.iter().find(|each| each.consumer == consumer);
            let Some(exhausted) = gives_up.and_then(|each| each.exhausted.clone()) else {
                return Heard::Moved(Ok(0));
            };
            if let Err(error) = exhausted(message.clone()).await {
                return Heard::Moved(Err(error.reason));
            }
            let done = [message.id];
            let gone = store::deliveries::handled(&spine.store, &consumer, &done).await;
            Heard::Moved(gone.map(|()| 1).map_err(|error| chain(&error)))
        }
    })))
}

/// A run is told once more that a task of its has ended.
pub(super) async fn word_again(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let told: Vec<(String, Uuid)> = sqlx::query_as(
        "SELECT run_id, id FROM node_tasks
          WHERE run_id IS NOT NULL AND status NOT IN ('queued', 'dispatched')
          ORDER BY id",
    )
    .fetch_all(&mut sim.bed.sql)
    .await
    .context("the tasks that have ended")?;
    let Some((run, task_id)) = sim.dice.pick(&told).cloned() else {
        return Ok(None);
    };
    Ok(Some(Plan::new(format!("word of {} again", short(&task_id)), move |assembled| {
        let workflows = assembled.spine.workflows.clone();
        async move {
            let told = workflows.tell(&run, Happened::TaskFinished { task_id }).await;
            Heard::Moved(told.map(u64::from).map_err(|error| chain(&error)))
        }
    })))
}
