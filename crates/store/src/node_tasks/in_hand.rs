//! Tasks that a transaction has locked, and what is reported of them.

use std::collections::HashMap;

use domain::ids::{NodeId, NodeTaskId};
use domain::machines::NodeTask;
use domain::machines::node_task::{Event, Status};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Outcome;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use super::{COLUMNS, COLUMNS_COUNT, Task, task};
use crate::company::Question;
use crate::lifecycle::stored::{self, Locked};
use crate::lifecycle::{Report, ToRow, write_all, write_locked};
use crate::{Error, Tx};

/// A task that is locked, and where it stands.
#[derive(Clone, Debug)]
pub struct InHand {
    /// The task.
    pub task: Task,
    row: Locked<Status>,
}

/// Locks the tasks of a node that have waited longest and are still wanted, at most `most` of them. What somebody else is handing out
/// is passed by.
///
/// # Errors
/// When the database fails.
pub async fn lock_queued(
    tx: &mut Tx,
    node: NodeId,
    now: Timestamp,
    most: u16,
) -> Result<Vec<InHand>, Error> {
    tx.ask(LockQueued { node, now, most }).await
}

/// See [`lock_queued`].
struct LockQueued {
    node: NodeId,
    now: Timestamp,
    most: u16,
}

impl Question for LockQueued {
    type Answer = Vec<InHand>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<LockQueued>,
    ) -> Result<Vec<Vec<InHand>>, Error> {
        let statement = format!(
            "SELECT {COLUMNS}, {}
               FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[]) WITH ORDINALITY AS wish (of_node, now, most, place)
              CROSS JOIN LATERAL (
                    SELECT *
                      FROM node_tasks
                     WHERE node_tasks.node_id = wish.of_node
                       AND node_tasks.status = 'queued'
                       AND (node_tasks.deadline_at IS NULL OR node_tasks.deadline_at > wish.now)
                     ORDER BY node_tasks.created_at, node_tasks.id
                     LIMIT wish.most
                       FOR UPDATE SKIP LOCKED
                   ) AS task
              ORDER BY place, created_at, id",
            stored::columns::<NodeTask>("")
        );
        let nodes: Vec<Uuid> = questions.iter().map(|question| question.node.uuid()).collect();
        let times: Vec<_> = questions.iter().map(|question| question.now.to_sqlx()).collect();
        let most: Vec<i64> = questions.iter().map(|question| i64::from(question.most)).collect();
        let query = sqlx::query(AssertSqlSafe(statement)).bind(&nodes).bind(times).bind(most);
        let mut of: HashMap<Uuid, Vec<InHand>> = HashMap::with_capacity(nodes.len());
        for row in &query.fetch_all(connection).await? {
            let one = in_hand(row)?;
            of.entry(one.task.node.uuid()).or_default().push(one);
        }
        Ok(nodes.iter().map(|node| of.remove(node).unwrap_or_default()).collect())
    }
}

/// Locks a task.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, id: NodeTaskId) -> Result<Option<InHand>, Error> {
    tx.ask(Lock(id)).await
}

/// See [`lock`].
struct Lock(NodeTaskId);

impl Question for Lock {
    type Answer = Option<InHand>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Lock>,
    ) -> Result<Vec<Option<InHand>>, Error> {
        let ids: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let statement = format!(
            "SELECT {COLUMNS}, {} FROM node_tasks WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
            stored::columns::<NodeTask>("")
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(&ids).fetch_all(connection).await?;
        let found: Vec<InHand> = rows.iter().map(in_hand).collect::<Result<_, _>>()?;
        let of = |id: &Uuid| found.iter().find(|one| one.task.id.uuid() == *id).cloned();
        Ok(ids.iter().map(of).collect())
    }
}

fn in_hand(row: &PgRow) -> Result<InHand, Error> {
    let task = task(row)?;
    let first = COLUMNS_COUNT;
    Ok(InHand { row: stored::locked::<NodeTask>(row, task.id.uuid(), first)?, task })
}

/// Reports an event to a task that is locked.
///
/// # Errors
/// Only what is broken; see [`apply`](crate::lifecycle::apply).
pub async fn report(
    tx: &mut Tx,
    InHand { task, row }: InHand,
    report: &Report<Event>,
) -> Result<Outcome<Status>, Error> {
    write_locked::<NodeTask>(tx, task.id.uuid(), report, Some(row)).await
}

/// [`report`] for several tasks, each with a report of its own. An outcome each, in their order.
///
/// # Errors
/// Only what is broken; see [`apply`](crate::lifecycle::apply).
pub async fn report_all(
    tx: &mut Tx,
    reports: Vec<(InHand, Report<Event>)>,
) -> Result<Vec<Outcome<Status>>, Error> {
    let rows = reports.iter().map(|(held, report)| ToRow {
        id: held.task.id.uuid(),
        report,
        row: Some(held.row.clone()),
    });
    write_all::<NodeTask>(tx, rows.collect()).await
}
