//! Nodes and their slots. Status: through [`lifecycle`](crate::lifecycle).

use domain::ids::{NodeId, SlotId};
use domain::machines::Node;
use uuid::Uuid;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// A node to be.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Its identity.
    pub id: NodeId,
    /// Its name, unique in the fleet.
    pub name: String,
    /// Where it stands.
    pub region: String,
    /// What it is sold as.
    pub sku: String,
    /// How many slots it has.
    pub slots: u16,
}

/// Adds a node with its slots, which are numbered from 0.
///
/// # Errors
/// What the database refuses: a name that is taken, for one.
pub async fn insert(tx: &mut Tx, node: &NewNode, birth: &Birth) -> Result<Vec<SlotId>, Error> {
    sqlx::query("INSERT INTO nodes (id, name, region, sku) VALUES ($1, $2, $3, $4)")
        .bind(node.id.uuid())
        .bind(&node.name)
        .bind(&node.region)
        .bind(&node.sku)
        .execute(tx.connection())
        .await?;
    let slots: Vec<Uuid> = (0..node.slots).map(|_| tx.new_id()).collect();
    sqlx::query(
        "INSERT INTO slots (id, node_id, slot_index)
         SELECT id, $1, position - 1 FROM unnest($2::uuid[]) WITH ORDINALITY AS slot (id, position)",
    )
    .bind(node.id.uuid())
    .bind(&slots)
    .execute(tx.connection())
    .await?;
    born::<Node>(tx, node.id, birth).await?;
    Ok(slots.into_iter().map(SlotId).collect())
}

/// The node was heard of just now. Not a transition: only the silence and its end are.
///
/// # Errors
/// When the database fails.
pub async fn heard_of(tx: &mut Tx, node: NodeId) -> Result<(), Error> {
    sqlx::query("UPDATE nodes SET heartbeat_at = clock_timestamp() WHERE id = $1")
        .bind(node.uuid())
        .execute(tx.connection())
        .await?;
    Ok(())
}
