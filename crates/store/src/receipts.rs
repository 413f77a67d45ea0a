//! Release receipts: the signed text of each, which never changes.

use domain::ids::AllocationId;
use sqlx::Row as _;

use crate::{Error, Store, Tx};

/// A receipt as it was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The exact text that was signed.
    pub document: String,
    /// The signature, in URL-safe base64.
    pub signature: String,
    /// The public key that verifies it, in URL-safe base64.
    pub public_key: String,
}

/// Keeps the receipt of an allocation; says whether it is its first. A second one changes nothing.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, id: AllocationId, receipt: &Receipt) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO release_receipts (allocation_id, document, signature, public_key)
         VALUES ($1, $2, $3, $4)
         ON CONFLICT (allocation_id) DO NOTHING",
    )
    .bind(id.uuid())
    .bind(&receipt.document)
    .bind(&receipt.signature)
    .bind(&receipt.public_key)
    .execute(tx.connection())
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// The receipt of an allocation, if it has one. Whether the caller may see it is for the story to say.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, id: AllocationId) -> Result<Option<Receipt>, Error> {
    let row = sqlx::query(
        "SELECT document, signature, public_key
           FROM release_receipts
          WHERE allocation_id = $1",
    )
    .bind(id.uuid())
    .fetch_optional(store.pool())
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    Ok(Some(Receipt {
        document: row.try_get(0)?,
        signature: row.try_get(1)?,
        public_key: row.try_get(2)?,
    }))
}
