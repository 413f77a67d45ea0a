//! Who has run out of money, or of what a project may cost, and what they still have. Whoever takes something back holds the
//! account while deciding, so that a credit is either seen or comes after.

use domain::ids::{AccountId, AllocationId};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// How much one look finds.
const LOOK_MAX: i64 = 500;

/// Something that is to be taken back, unless that changes before it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpaid {
    /// What.
    pub allocation: AllocationId,
    /// Who pays for it.
    pub account: AccountId,
    /// For which project.
    pub project: Uuid,
    /// Whether it is the project that may not cost more; otherwise the account has nothing left.
    pub capped: bool,
}

/// What runs on an account that is depleted for longer than the grace, or in a project that has cost what it may. Looks only at
/// what is metered or waits: not at every account that has nothing.
///
/// # Errors
/// When the database fails.
pub async fn list_unpaid(
    store: &Store,
    of: Option<AccountId>,
    grace_seconds: u32,
) -> Result<Vec<Unpaid>, Error> {
    let rows = sqlx::query(
        "WITH living AS MATERIALIZED (
            SELECT allocation_id, account_id, project_id
              FROM usage_records
             WHERE settled_at IS NULL AND account_id IS NOT NULL AND status = 'open'
               AND price_micros_per_gpu_second > 0
               AND ($3::uuid IS NULL OR account_id = $3)
            UNION ALL
            SELECT allocation.id, project.account_id, project.id
              FROM allocations AS allocation
              JOIN projects AS project ON project.id = allocation.project_id AND project.account_id IS NOT NULL
             WHERE allocation.status IN ('requested', 'provisioning', 'restart_failed')
               AND allocation.price_micros_per_gpu_second > 0
               AND ($3::uuid IS NULL OR project.account_id = $3)
         )
         SELECT living.allocation_id, living.account_id, living.project_id, false
           FROM living
           JOIN accounts AS account ON account.id = living.account_id
          WHERE account.status = 'depleted'
            AND account.status_at <= clock_timestamp() - make_interval(secs => $1)
         UNION ALL
         SELECT living.allocation_id, living.account_id, living.project_id, true
           FROM living
           JOIN projects AS project ON project.id = living.project_id
           JOIN project_spending AS spent ON spent.project_id = project.id AND spent.spent_minor >= project.spend_cap_minor
          WHERE spent.month = (date_trunc('month', clock_timestamp(), 'UTC') AT TIME ZONE 'UTC')::date
          LIMIT $2",
    )
    .bind(f64::from(grace_seconds))
    .bind(LOOK_MAX)
    .bind(of.map(|account| account.uuid()))
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(unpaid).collect()
}

fn unpaid(row: &PgRow) -> Result<Unpaid, Error> {
    Ok(Unpaid {
        allocation: AllocationId(row.try_get(0)?),
        account: AccountId(row.try_get(1)?),
        project: row.try_get(2)?,
        capped: row.try_get(3)?,
    })
}

/// Whether it is still so, with the account held until the transaction ends: nobody can credit it meanwhile. Answers what names
/// this time that it ran out, so that taking back twice is taking back once.
///
/// # Errors
/// When the database fails.
pub async fn is_still(
    tx: &mut Tx,
    unpaid: &Unpaid,
    grace_seconds: u32,
) -> Result<Option<String>, Error> {
    let held = sqlx::query(
        "SELECT seq, status = 'depleted' AND status_at <= clock_timestamp() - make_interval(secs => $2)
           FROM accounts
          WHERE id = $1
            FOR SHARE",
    )
    .bind(unpaid.account.uuid())
    .bind(f64::from(grace_seconds))
    .fetch_optional(tx.connection())
    .await?;
    let Some(held) = held else {
        return Ok(None);
    };
    if !unpaid.capped {
        let seq: i64 = held.try_get(0)?;
        return Ok(held
            .try_get::<bool, _>(1)?
            .then(|| format!("depleted/{}/{seq}", unpaid.account)));
    }
    // A statement of its own, after the lock: charging holds the account while it writes what a project has cost.
    let capped = sqlx::query(
        "SELECT spent.month::text
           FROM projects AS project
           JOIN project_spending AS spent ON spent.project_id = project.id AND spent.spent_minor >= project.spend_cap_minor
          WHERE project.id = $1
            AND spent.month = (date_trunc('month', clock_timestamp(), 'UTC') AT TIME ZONE 'UTC')::date
            FOR SHARE OF project",
    )
    .bind(unpaid.project)
    .fetch_optional(tx.connection())
    .await?;
    capped
        .map(|row| Ok(format!("capped/{}/{}", unpaid.project, row.try_get::<String, _>(0)?)))
        .transpose()
}
