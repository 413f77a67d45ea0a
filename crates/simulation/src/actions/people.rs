//! What tenants do: they ask for GPUs, alone and in groups, restart them, give them back, and ask again.

use control::idempotency::Key;
use control::{allocation, allocation_group};
use uuid::Uuid;
use wire::http::allocation_groups::{NewGroup, NewMember};
use wire::http::allocations::NewAllocation;

use super::asking::ask;
use crate::books::{Body, Granted, Request, What};
use crate::sim::Sim;
use crate::story::{Heard, Plan};

const REGION: &str = "eu-1";

pub(super) fn create(sim: &mut Sim<'_>) -> Option<Plan> {
    let (sku, gpus) = match sim.dice.weighted(&[5, 4, 1, 2]) {
        0 => ("l40s.slice", 1),
        1 => ("l40s.slice", 2),
        2 => ("l40s.slice", 4),
        _ => ("h100.metal", 8),
    };
    let body = wanted(sim, sku, gpus);
    let place = sim.books.ask(Body::One(body));
    Some(ask_for(sim, place))
}

/// A request that any fleet can grant; answers its place in the books.
pub fn last_request(sim: &mut Sim<'_>) -> usize {
    sim.books.ask(Body::One(wanted(sim, "l40s.slice", 1)))
}

fn wanted(sim: &Sim<'_>, sku: &str, gpus: i16) -> NewAllocation {
    NewAllocation {
        project_id: sim.bed.project,
        sku: sku.to_owned(),
        gpus,
        region: REGION.to_owned(),
        ssh_key_ids: Vec::new(),
        image: None,
        name: Some(format!("request-{}", sim.books.requests.len())),
    }
}

pub(super) fn create_group(sim: &mut Sim<'_>) -> Option<Plan> {
    let mut members = Vec::new();
    for _ in 0..1 + sim.dice.below(3) {
        let metal = sim.dice.chance(10);
        let (sku, gpus) = if metal { ("h100.metal", 8) } else { ("l40s.slice", 1) };
        members.push(NewMember {
            sku: sku.to_owned(),
            gpus,
            region: REGION.to_owned(),
            image: None,
            name: None,
            required: Some(sim.dice.chance(75)),
            ssh_key_ids: None,
            count: None,
        });
    }
    let body = NewGroup {
        project_id: sim.bed.project,
        name: Some(format!("request-{}", sim.books.requests.len())),
        members,
        ssh_key_ids: Vec::new(),
    };
    let place = sim.books.ask(Body::Group(body));
    Some(ask_for(sim, place))
}

pub(super) fn create_again(sim: &mut Sim<'_>) -> Option<Plan> {
    let unanswered = sim.books.unanswered();
    let all: Vec<usize> = (0..sim.books.requests.len()).collect();
    let from = if sim.dice.chance(70) { &unanswered } else { &all };
    let place = *sim.dice.pick(from)?;
    Some(ask_for(sim, place))
}

/// Asks for what the books say, under its key.
pub fn ask_for(sim: &Sim<'_>, place: usize) -> Plan {
    let Request { key, body, .. } = sim.books.requests[place].clone();
    let caller = sim.bed.asking(&sim.bed.tenant);
    let what = match &body {
        Body::One(body) => format!("create {place} {} x{}", body.sku, body.gpus),
        Body::Group(body) => format!("create {place} group of {}", body.members.len()),
    };
    Plan::new(what, move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let key = Key::of(caller.user_id, "POST /allocations", &key, key.as_bytes());
            let answer = match &body {
                Body::One(body) => {
                    let answer = allocation::create::request(&ctx, &caller, body, &key).await;
                    answer.map(|answer| granted(answer.body.id, vec![answer.body.id]))
                }
                Body::Group(body) => {
                    let answer = allocation_group::create::request(&ctx, &caller, body, &key).await;
                    let members = |group: &wire::http::allocation_groups::AllocationGroup| {
                        group.members.iter().map(|member| member.id).collect()
                    };
                    answer.map(|answer| granted(answer.body.id, members(&answer.body)))
                }
            };
            Heard::Created(place, answer)
        }
    })
}

fn granted(id: Uuid, allocations: Vec<Uuid>) -> Granted {
    Granted { id, allocations }
}

/// The members of groups that are on their way up.
pub(super) const COMING: &str = "SELECT member.id
       FROM allocations AS member
       JOIN allocation_groups AS whole ON whole.id = member.group_id
      WHERE whole.status IN ('requested', 'provisioning')
      ORDER BY member.id";

/// One of the allocations that people know of; the latest is the likeliest to be in the middle of something.
pub(super) fn known(sim: &mut Sim<'_>) -> Option<Uuid> {
    let all = &sim.books.known;
    let from = if sim.dice.chance(40) { all.len().saturating_sub(2) } else { 0 };
    sim.dice.pick(&all[from..]).copied()
}

/// Sometimes of one that its group still waits for.
pub(super) async fn release(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let mut coming: Vec<Uuid> = Vec::new();
    if sim.dice.chance(20) {
        coming = sqlx::query_scalar(COMING).fetch_all(&mut sim.bed.sql).await?;
    }
    let id = sim.dice.pick(&coming).copied().or_else(|| known(sim));
    Ok(id.map(|id| ask(sim, What::Release, id)))
}

pub(super) fn release_group(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = *sim.dice.pick(&sim.books.groups)?;
    Some(ask(sim, What::GroupRelease, id))
}

/// Mostly of what can be restarted.
pub(super) async fn restart(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let usable: Vec<Uuid> = sqlx::query_scalar(
        "SELECT id FROM allocations WHERE status IN ('active', 'restart_failed') ORDER BY id",
    )
    .fetch_all(&mut sim.bed.sql)
    .await?;
    let id = if sim.dice.chance(80) { sim.dice.pick(&usable).copied() } else { known(sim) };
    Ok(id.map(|id| ask(sim, What::Restart, id)))
}

pub(super) fn bind(sim: &mut Sim<'_>) -> Option<Plan> {
    let id = known(sim)?;
    Some(ask(sim, What::Bind, id))
}
