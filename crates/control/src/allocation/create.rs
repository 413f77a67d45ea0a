//! Create: the request is judged, placed and written, together with those that came with it; what follows is the provision's story.
//! Door: POST /allocations.

use wire::http::allocations::{Allocation, NewAllocation};

use super::admit::{self, CREATED, Request, Settled, Verdict};
use super::judge;
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
    let request = Request::new(caller, asked, key);
    let ask = request.ask();
    let faults = judge::faults(&ask);
    if !faults.is_empty() {
        return Err(Error::Invalid(faults));
    }
    key.take_off()?;
    let settled = match ctx.desks.admission(request.clone()).await? {
        Verdict::Settled(settled) => settled,
        Verdict::Failed(error) => return Err(error),
        Verdict::Alone => alone(ctx, &request).await?,
    };
    match settled {
        Settled::Made(shown) => {
            trace::note("allocation_id", shown.id);
            Ok(Answer { status: CREATED, body: *shown, replayed: false })
        }
        Settled::Answered(answer) => replayed(key, answer),
        Settled::Unmet(unmet) => {
            let mut tx = ctx.store.begin().await?;
            Err(unmet.told(&mut tx, &ask).await?)
        }
        Settled::Full(sku) => {
            let mut tx = ctx.store.begin().await?;
            Err(judge::no_capacity(&mut tx, &ask, &sku).await?)
        }
    }
}

/// Alone, until it is decided: whoever has its key elsewhere and waits for the node that it holds makes it lose a race.
async fn alone(ctx: &Ctx, request: &Request) -> Result<Settled, Error> {
    let mut attempts = 1;
    loop {
        let times = (ctx.clock.now(), expired_before(&ctx.clock, &ctx.current));
        match admit::alone(&ctx.store, &ctx.policies(), times, request).await {
            Err(Error::Store(store::Error::Conflict)) if attempts < ATTEMPTS_MAX => attempts += 1,
            settled => return settled,
        }
    }
}
