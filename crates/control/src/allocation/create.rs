//! Create: the request is judged, placed and written in one transaction; what follows is the provision's story.
//! Door: POST /allocations.

use domain::ids::AllocationId;
use serde_json::json;
use wire::http::allocations::{Allocation, NewAllocation};

use super::judge::{self, Ask};
use super::view::{self, Viewer};
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::{Caller, Ctx, Error};

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
    let mut tx = match begin(ctx, Some(key)).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let judged = judge::judge(ctx, &mut tx, caller, &ask).await?;
    let Some(place) = judge::find(&mut tx, &ask, &judged).await? else {
        return Err(judge::no_capacity(&mut tx, &ask, &judged.sku).await?);
    };
    let role = judged.role;
    let id = AllocationId(tx.new_id());
    trace::note("allocation_id", id);
    judge::write(&mut tx, caller, id, (&ask, judged), (&place, None)).await?;

    let viewer = Viewer::of(caller, Some(role));
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    let deed = Deed::new(caller, Action::AllocationCreate, "allocation", id)
        .in_project(asked.project_id)
        .with(json!({ "sku": asked.sku, "gpus": asked.gpus, "region": asked.region }));
    finish(tx, &deed, Some(key), 201, shown).await
}
