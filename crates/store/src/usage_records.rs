//! Usage records: stretches of billable time, at most one open an allocation.

use domain::ids::{AllocationId, UsageRecordId};
use domain::machines::UsageRecord;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// Opens a record at the moment at which the allocation last became active. Answers `false` when it never did.
///
/// # Errors
/// When the database fails: also when the allocation has an open record.
pub async fn insert(
    tx: &mut Tx,
    id: UsageRecordId,
    allocation: AllocationId,
    birth: &Birth,
) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO usage_records (id, allocation_id, started_at)
         SELECT $1, entity_id, occurred_at
           FROM lifecycle_log
          WHERE entity_id = $2 AND machine = 'allocation' AND to_status = 'active'
          ORDER BY seq DESC
          LIMIT 1",
    )
    .bind(id.uuid())
    .bind(allocation.uuid())
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 1 {
        born::<UsageRecord>(tx, id, birth).await?;
    }
    Ok(inserted == 1)
}
