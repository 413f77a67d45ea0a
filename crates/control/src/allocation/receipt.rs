//! The release receipt: written and signed in the transaction that completes the release, fetched by the tenant.
//! Doors: the release's story, GET …/receipt.

use domain::ids::{AllocationId, OperationId};
use lifecycle::Code as _;
use store::claims::Live;
use store::receipts;
use store::{Tx, allocations};
use wire::node::CleanupProof;
use wire::receipt::{Receipt, SignedReceipt};
use wire::seal::Purpose;

use super::reason::OurReason;
use super::view;
use crate::{Caller, Ctx, Error};

/// The version of what is written today.
const VERSION: u16 = 1;

/// Writes the receipt of an allocation that has just been released.
pub(super) async fn write(
    ctx: &Ctx,
    tx: &mut Tx,
    id: AllocationId,
    (operation, proof, claims): (OperationId, Option<CleanupProof>, &[Live]),
) -> Result<(), Error> {
    let Some(held) = allocations::hold(tx, id).await? else {
        return Err(Error::NotFound("allocation"));
    };
    let receipt = Receipt {
        version: VERSION,
        allocation_id: id.uuid(),
        project_id: held.project_id,
        sku: held.sku,
        gpus: held.gpus,
        region: held.region,
        slots: claims.iter().filter_map(|claim| Some(claim.slot?.1)).collect(),
        operation_id: operation.uuid(),
        active_at: held.active_at,
        billed_until: held.active_at.and(held.release_requested_at),
        released_at: held.ended_at.unwrap_or_else(|| ctx.clock.now()),
        proof,
    };
    let document =
        serde_json::to_string(&receipt).map_err(|error| Error::Broken(error.to_string()))?;
    let signature = ctx.keys.sign(Purpose::Receipt, document.as_bytes());
    let public_key = ctx.keys.verifying(Purpose::Receipt).text();
    let kept = receipts::Receipt { document, signature, public_key };
    receipts::insert(tx, id, &kept).await?;
    Ok(())
}

/// The receipt of an allocation.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs; [`Error::Conflict`] when it is not released, or an operator has abandoned it.
pub async fn show(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<SignedReceipt, Error> {
    let allocation = view::show(ctx, caller, id).await?;
    let Some(found) = receipts::find(&ctx.store, id).await? else {
        if allocation.status_reason.as_deref() == Some(OurReason::Abandoned.code()) {
            return Err(Error::Conflict(
                "an operator has abandoned its release: the clean-up was never proven, so there is no receipt. \
                 Nobody else gets the machine until an operator has cleared it"
                    .to_owned(),
            ));
        }
        return Err(Error::Conflict(format!(
            "it is {}: a receipt is written when its clean-up is proven",
            allocation.status
        )));
    };
    let receipt: Receipt = serde_json::from_str(&found.document)
        .map_err(|_| Error::Broken("a receipt can't be read".to_owned()))?;
    Ok(SignedReceipt {
        receipt,
        document: found.document,
        signature: found.signature,
        public_key: found.public_key,
    })
}
