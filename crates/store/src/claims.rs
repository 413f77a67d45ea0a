//! Claims: what an allocation holds. A slot is free exactly when it has no claim outside `freed`.

use domain::ids::{AllocationId, ClaimId, NodeId, SlotId};
use domain::machines::Claim;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// A claim to be: on one slot, or on the whole node.
#[derive(Clone, Copy, Debug)]
pub struct NewClaim {
    /// Its identity.
    pub id: ClaimId,
    /// Who holds it.
    pub allocation: AllocationId,
    /// On which node.
    pub node: NodeId,
    /// On which slot; none for the whole node.
    pub slot: Option<SlotId>,
}

/// Claims a slot or a node, if the node takes placements. The node is locked against leaving `ready` meanwhile, because
/// a foreign key alone would let a claim in under a node that is just being drained.
///
/// # Errors
/// When the database fails: also when the slot has a live claim.
pub async fn insert(tx: &mut Tx, claim: &NewClaim, birth: &Birth) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO claims (id, allocation_id, node_id, slot_id)
         SELECT $1, $2, id, $4 FROM nodes WHERE id = $3 AND status = 'ready' FOR SHARE",
    )
    .bind(claim.id.uuid())
    .bind(claim.allocation.uuid())
    .bind(claim.node.uuid())
    .bind(claim.slot.map(SlotId::uuid))
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 1 {
        born::<Claim>(tx, claim.id, birth).await?;
    }
    Ok(inserted == 1)
}
