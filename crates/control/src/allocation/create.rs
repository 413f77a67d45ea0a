//! Create: the request is judged, placed and written, together with those that came with it; what follows is the provision's story.
//! Door: POST /allocations.

use domain::ids::AllocationId;
use serde_json::json;
use wire::http::allocations::{Allocation, NewAllocation};

use super::admit::{self, CREATED, Settled, Verdict, Wish};
use super::judge::{self, Ask, Judged};
use super::view::Viewer;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Key, expired_before, replayed};
use crate::{Caller, Ctx, Error};

/// How often a request is tried alone that lost a race to somebody else.
const ATTEMPTS_MAX: usize = 4;

/// Somebody asks for GPUs. Either they are theirs when this answers, or it says why not and what would fit.
///
/// # Errors
/// What is wrong with the request; [`Error::SkuUnavailable`] when it can't be had.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    asked: &NewAllocation,
    key: &Key,
) -> Result<Answer<Allocation>, Error> {
    let ask = Ask {
        project: asked.project_id,
        sku: &asked.sku,
        gpus: asked.gpus,
        region: &asked.region,
        image: asked.image.as_deref(),
        name: asked.name.as_deref(),
        ssh_keys: &asked.ssh_key_ids,
        place: String::new(),
        keys_place: String::new(),
    };
    let faults = judge::faults(&ask);
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    key.take_off()?;
    let terms = ctx.desks.terms(judge::question(caller, &ask, Some(key.own()))).await?;
    if let Some(answer) = terms.answered.clone() {
        return replayed(key, answer);
    }
    let judged = match judge::judged(ctx, &ask, &terms) {
        Ok(judged) => judged,
        Err(unmet) => {
            let mut tx = ctx.store.begin().await?;
            return Err(unmet.told(&mut tx, &ask).await?);
        }
    };
    let sku = judged.sku.clone();
    let wish = wish(ctx, caller, (&ask, judged), key);
    trace::note("allocation_id", wish.new.id);
    let settled = match ctx.desks.admission(wish.clone()).await? {
        Verdict::Made(shown) => Settled::Made(shown),
        Verdict::Full => Settled::Full,
        Verdict::Failed(error) => return Err(error),
        Verdict::Alone => alone(ctx, &wish).await?,
    };
    match settled {
        Settled::Made(shown) => Ok(Answer { status: CREATED, body: *shown, replayed: false }),
        Settled::Answered(answer) => replayed(key, answer),
        Settled::Full => {
            let mut tx = ctx.store.begin().await?;
            Err(judge::no_capacity(&mut tx, &ask, &sku).await?)
        }
    }
}

/// Alone, until it is decided: whoever has its key elsewhere and waits for the node that it holds makes it lose a race.
async fn alone(ctx: &Ctx, wish: &Wish) -> Result<Settled, Error> {
    let mut attempts = 1;
    loop {
        let times = (ctx.clock.now(), expired_before(&ctx.clock, &ctx.current));
        match admit::alone(&ctx.store, times, wish).await {
            Err(Error::Store(store::Error::Conflict)) if attempts < ATTEMPTS_MAX => attempts += 1,
            settled => return settled,
        }
    }
}

/// Everything that will be written of it.
fn wish(ctx: &Ctx, caller: &Caller, (ask, judged): (&Ask<'_>, Judged), key: &Key) -> Wish {
    let id = AllocationId(ctx.store.new_id());
    let viewer = Viewer::of(caller, Some(judged.role));
    let (new, birth) = judge::agreed(|| ctx.store.new_id(), caller, id, (ask, judged), None);
    let deed = Deed::new(caller, Action::AllocationCreate, "allocation", id)
        .in_project(ask.project)
        .with(json!({ "sku": ask.sku, "gpus": ask.gpus, "region": ask.region }));
    Wish {
        new,
        birth,
        viewer,
        entry: deed.done(),
        key: key.own(),
        fingerprint: key.fingerprint,
        trace: trace::current(),
    }
}
