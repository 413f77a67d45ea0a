//! Storage attachments: which namespace is bound to which allocation.

use domain::ids::{AllocationId, OperationId, StorageAttachmentId};
use domain::machines::StorageAttachment;
use uuid::Uuid;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// An attachment to be.
#[derive(Clone, Copy, Debug)]
pub struct NewAttachment {
    /// Its identity.
    pub id: StorageAttachmentId,
    /// To which allocation.
    pub allocation: AllocationId,
    /// Of which namespace.
    pub namespace_id: Uuid,
    /// The attach that its creation begins.
    pub attach: OperationId,
}

/// Adds an attachment.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, attachment: &NewAttachment, birth: Birth) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO storage_attachments (id, allocation_id, namespace_id, operation_id) VALUES ($1, $2, $3, $4)",
    )
    .bind(attachment.id.uuid())
    .bind(attachment.allocation.uuid())
    .bind(attachment.namespace_id)
    .bind(attachment.attach.uuid())
    .execute(tx.connection())
    .await?;
    born::<StorageAttachment>(tx, attachment.id, &birth.beginning(attachment.attach)).await?;
    Ok(())
}
