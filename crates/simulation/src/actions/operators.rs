//! What operators do: they take back, clean up, set aside, empty nodes, compare, and turn policies.

use uuid::Uuid;

use super::asking::ask;
use super::people::known;
use crate::books::What;
use crate::sim::Sim;
use crate::story::Plan;

/// No node is taken away before this event.
const RETIRED_FROM: usize = 100;
/// Policies that a run turns, and what to.
const TURNED: &[(&str, [i64; 3])] = &[
    ("release.max_deliver", [1, 2, 4]),
    ("provision.attempts_max", [1, 2, 3]),
    ("release.attempt_seconds", [30, 120, 300]),
    ("restart.timeout_seconds", [60, 300, 900]),
    ("task.lease_seconds", [30, 60, 300]),
    ("retry.seconds", [1, 2, 10]),
    ("node.offline_after_seconds", [30, 60, 120]),
];

pub(super) fn force(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = known(sim)?;
    Some(ask(sim, What::Force, id))
}

pub(super) fn look(sim: &mut Sim<'_>) -> Option<Plan> {
    Some(ask(sim, What::Look, Uuid::nil()))
}

pub(super) fn turn(sim: &mut Sim<'_>) -> Option<Plan> {
    let (policy, values) = *sim.dice.pick(TURNED)?;
    let value = *sim.dice.pick(&values)?;
    Some(ask(sim, What::Turn(policy, value), Uuid::nil()))
}

/// Mostly something that is as it must be for this, sometimes anything at all.
async fn fitting(
    sim: &mut Sim<'_>,
    fits: &'static str,
    any: &'static str,
) -> anyhow::Result<Option<Uuid>> {
    let query = if sim.dice.chance(90) { fits } else { any };
    let found: Vec<Uuid> = sqlx::query_scalar(query).fetch_all(&mut sim.bed.sql).await?;
    Ok(sim.dice.pick(&found).copied())
}

const ALLOCATIONS: &str = "SELECT id FROM allocations ORDER BY id";
const CLAIMS: &str = "SELECT id FROM claims ORDER BY id";
const NODES: &str = "SELECT id FROM nodes ORDER BY id";

pub(super) async fn abandon(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let given_up = "SELECT id FROM allocations WHERE status = 'release_failed' ORDER BY id";
    let id = fitting(sim, given_up, ALLOCATIONS).await?;
    Ok(id.map(|id| ask(sim, What::Abandon, id)))
}

pub(super) async fn clean(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let left = "SELECT id FROM allocations
                 WHERE status = 'failed' AND id IN (SELECT allocation_id FROM claims WHERE status = 'stuck')
                 ORDER BY id";
    let id = fitting(sim, left, ALLOCATIONS).await?;
    Ok(id.map(|id| ask(sim, What::Clean, id)))
}

pub(super) async fn quarantine(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let stuck = "SELECT id FROM claims WHERE status = 'stuck' ORDER BY id";
    let id = fitting(sim, stuck, CLAIMS).await?;
    Ok(id.map(|id| ask(sim, What::Quarantine, id)))
}

pub(super) async fn clear(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let aside = "SELECT id FROM claims WHERE status = 'quarantined' ORDER BY id";
    // Of the others one that is free and stays so: what is set aside just then would be cleared by somebody who has not been at
    // the machine, and they are taken at their word.
    let free = "SELECT id FROM claims WHERE status = 'freed' ORDER BY id";
    match fitting(sim, aside, free).await? {
        Some(id) => Ok(Some(clear_one(sim, id).await?)),
        None => Ok(None),
    }
}

/// Somebody has seen to the machine, and clears the claim.
pub async fn clear_one(sim: &mut Sim<'_>, id: Uuid) -> anyhow::Result<Plan> {
    see_to(sim, id).await?;
    Ok(ask(sim, What::Clear, id))
}

/// Goes to the machine and wipes what was set aside; says whether it makes sense to clear the claim. They do not touch what
/// may be in use.
pub(super) async fn see_to(sim: &mut Sim<'_>, id: Uuid) -> anyhow::Result<bool> {
    let claim: Option<(Uuid, String)> =
        sqlx::query_as("SELECT allocation_id, status FROM claims WHERE id = $1")
            .bind(id)
            .fetch_optional(&mut sim.bed.sql)
            .await?;
    let Some((whose, status)) = claim else {
        return Ok(false);
    };
    if status == "quarantined" {
        sim.nodes.iter_mut().for_each(|node| node.see_to(whose));
    }
    Ok(status == "quarantined" || status == "freed")
}

pub(super) async fn drain(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let used = "SELECT id FROM nodes WHERE status IN ('ready', 'offline') ORDER BY id";
    let id = fitting(sim, used, NODES).await?;
    Ok(id.map(|id| ask(sim, What::Drain, id)))
}

pub(super) async fn resume(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let emptied = "SELECT id FROM nodes WHERE status = 'maintenance' ORDER BY id";
    let id = fitting(sim, emptied, NODES).await?;
    Ok(id.map(|id| ask(sim, What::Resume, id)))
}

pub(super) async fn retire(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    // One, and late: a fleet of nothing has no more stories.
    if sim.event < RETIRED_FROM {
        return Ok(None);
    }
    let empty = "SELECT id FROM nodes
                  WHERE status <> 'retired'
                    AND id NOT IN (SELECT node_id FROM claims WHERE status <> 'freed')
                    AND (SELECT count(*) FROM nodes WHERE status = 'retired') = 0
                  ORDER BY id";
    let id = fitting(sim, empty, empty).await?;
    Ok(id.map(|id| ask(sim, What::Retire, id)))
}
