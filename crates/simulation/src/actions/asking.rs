//! Asking for something about what there is: who asks, under which key, and through which door.

use control::idempotency::{Answer, Key};
use control::policies::turn;
use control::{
    Caller, Ctx, Error, allocation, allocation_group, app_instance, claim, findings, node,
};
use domain::ids::{AllocationGroupId, AllocationId, ClaimId};
use serde::Serialize;
use uuid::Uuid;
use wire::http::admin::Because;
use wire::http::allocations::ForceRelease;
use wire::http::app_instances::NewAppInstance;
use wire::http::policies::NewPolicy;

use super::operators;
use crate::books::{Asked, What};
use crate::sim::{Sim, short};
use crate::story::{Heard, Plan};

/// Somebody asks, mostly under a key of its own.
pub fn ask(sim: &mut Sim<'_>, what: What, id: Uuid) -> Plan {
    let asked = match sim.dice.chance(60) {
        true => sim.books.wish(what, id),
        false => Asked { what, id, wish: None },
    };
    asking(sim, asked)
}

/// What was asked for under a key is asked for again, the unanswered rather than others.
pub(super) async fn again(sim: &mut Sim<'_>) -> anyhow::Result<Option<Plan>> {
    let wishes = &sim.books.wishes;
    let all: Vec<usize> = (0..wishes.len()).collect();
    let open: Vec<usize> =
        all.iter().copied().filter(|place| wishes[*place].answer.is_none()).collect();
    let from = if sim.dice.chance(60) { &open } else { &all };
    let Some(place) = sim.dice.pick(from).copied() else {
        return Ok(None);
    };
    let asked = sim.books.wishes[place].asked;
    // Who says that they have seen to a machine has.
    if asked.what == What::Clear && !operators::see_to(sim, asked.id).await? {
        return Ok(None);
    }
    Ok(Some(asking(sim, asked)))
}

/// Asks once, under the key if there is one.
fn asking(sim: &Sim<'_>, asked: Asked) -> Plan {
    let (caller, project) = (caller_of(sim, asked.what), sim.bed.project);
    let under = asked.wish.map(|wish| format!(" (wish {wish})")).unwrap_or_default();
    let what = format!("{:?} {}{under}", asked.what, short(&asked.id));
    Plan::new(what, move |assembled| {
        let ctx = assembled.ctx.clone();
        async move {
            let key = asked.wish.map(|wish| {
                Key::of(
                    caller.user_id,
                    "POST /wishes",
                    &format!("wish-{wish}"),
                    &wish.to_be_bytes(),
                )
            });
            let answer = match asked.what {
                What::Release
                | What::Restart
                | What::GroupRelease
                | What::Force
                | What::Abandon
                | What::Clean
                | What::Bind => of_allocation(&ctx, (&caller, project), asked, key.as_ref()).await,
                What::Quarantine
                | What::Clear
                | What::Drain
                | What::Resume
                | What::Retire
                | What::Look
                | What::Turn(..) => of_fleet(&ctx, &caller, asked, key.as_ref()).await,
            };
            Heard::Asked(asked, answer)
        }
    })
}

fn caller_of(sim: &Sim<'_>, what: What) -> Caller {
    match what {
        What::Release | What::Restart | What::GroupRelease | What::Bind => {
            sim.bed.asking(&sim.bed.tenant)
        }
        What::Force
        | What::Abandon
        | What::Clean
        | What::Quarantine
        | What::Clear
        | What::Drain
        | What::Resume
        | What::Retire
        | What::Look
        | What::Turn(..) => sim.bed.asking(&sim.bed.operator),
    }
}

const WHY: &str = "the dice fell so";

fn because() -> Because {
    Because { reason: WHY.to_owned() }
}

async fn of_allocation(
    ctx: &Ctx,
    (caller, project): (&Caller, Uuid),
    Asked { what, id, .. }: Asked,
    key: Option<&Key>,
) -> Result<String, Error> {
    let allocation = AllocationId(id);
    match what {
        What::Release => told(allocation::release::request(ctx, caller, allocation, key).await),
        What::Restart => told(allocation::restart::request(ctx, caller, allocation, key).await),
        What::GroupRelease => {
            let group = AllocationGroupId(id);
            told(allocation_group::release::request(ctx, caller, group, key).await)
        }
        What::Abandon => {
            told(allocation::abandon::request(ctx, caller, allocation, &because(), key).await)
        }
        What::Clean => {
            told(allocation::clean::request(ctx, caller, allocation, &because(), key).await)
        }
        What::Bind => {
            let new = NewAppInstance {
                project_id: project,
                name: format!("app-{}", short(&id)),
                app: "notebook".to_owned(),
                allocation_id: Some(id),
                group_id: None,
                members: Vec::new(),
            };
            told(app_instance::create(ctx, caller, &new, key).await)
        }
        What::Force
        | What::Quarantine
        | What::Clear
        | What::Drain
        | What::Resume
        | What::Retire
        | What::Look
        | What::Turn(..) => {
            let because = ForceRelease { reason: WHY.to_owned() };
            told(allocation::release::force(ctx, caller, allocation, &because, key).await)
        }
    }
}

async fn of_fleet(
    ctx: &Ctx,
    caller: &Caller,
    Asked { what, id, .. }: Asked,
    key: Option<&Key>,
) -> Result<String, Error> {
    match what {
        What::Quarantine => {
            told(claim::aside::quarantine(ctx, caller, ClaimId(id), &because(), key).await)
        }
        What::Clear => told(claim::aside::clear(ctx, caller, ClaimId(id), &because(), key).await),
        What::Drain => told(node::drain::drain(ctx, caller, id, &because(), key).await),
        What::Resume => told(node::drain::resume(ctx, caller, id, &because(), key).await),
        What::Retire => told(node::drain::retire(ctx, caller, id, &because(), key).await),
        What::Turn(policy, value) => {
            let new = NewPolicy { value, reason: WHY.to_owned() };
            told(turn::set(ctx, caller, policy, &new, key).await)
        }
        What::Look
        | What::Release
        | What::Restart
        | What::GroupRelease
        | What::Force
        | What::Abandon
        | What::Clean
        | What::Bind => told(findings::look(ctx, caller, key).await),
    }
}

fn told<T: Serialize>(answer: Result<Answer<T>, Error>) -> Result<String, Error> {
    let answer = answer?;
    serde_json::to_string(&answer.body).map_err(|error| Error::Broken(error.to_string()))
}
