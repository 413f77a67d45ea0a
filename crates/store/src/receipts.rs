//! Release receipts: the signed text of each, which never changes.

use domain::ids::AllocationId;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::company::Question;
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
    tx.ask(Keep { id: id.uuid(), receipt: receipt.clone() }).await
}

/// See [`insert`].
struct Keep {
    id: Uuid,
    receipt: Receipt,
}

impl Question for Keep {
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        receipts: Vec<Keep>,
    ) -> Result<Vec<bool>, Error> {
        let ids: Vec<Uuid> = receipts.iter().map(|one| one.id).collect();
        let of = |value: fn(&Receipt) -> &str| {
            receipts.iter().map(|one| value(&one.receipt)).collect::<Vec<_>>()
        };
        let rows = sqlx::query(
            "INSERT INTO release_receipts (allocation_id, document, signature, public_key)
             SELECT *
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[])
             ON CONFLICT (allocation_id) DO NOTHING
             RETURNING allocation_id",
        )
        .bind(&ids)
        .bind(of(|receipt| &receipt.document))
        .bind(of(|receipt| &receipt.signature))
        .bind(of(|receipt| &receipt.public_key))
        .fetch_all(connection)
        .await?;
        let kept: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(ids.iter().map(|id| kept.contains(id)).collect())
    }
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
