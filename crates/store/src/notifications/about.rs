//! What notifications are made of: the few facts about an allocation, an account or a payment that people are told, and who
//! these people are.

use domain::ids::{AccountId, AllocationId, PaymentSessionId};
use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::company::Question;
use crate::{Error, Tx};

/// An allocation, as its owner is told of it.
#[derive(Clone, Debug)]
pub struct OfAllocation {
    /// Whose it is.
    pub owner: Option<Uuid>,
    /// Its project.
    pub project: Uuid,
    /// What its owner calls it.
    pub name: Option<String>,
    /// What it consists of.
    pub sku: String,
    /// How many of them.
    pub gpus: i16,
    /// Where.
    pub region: String,
    /// What a GPU costs a second, in millionths of the currency's unit.
    pub price_micros_per_gpu_second: i64,
    /// In which currency.
    pub currency: String,
    /// Since when nobody pays for it.
    pub release_requested_at: Option<Timestamp>,
    /// Why it took the step that is told of.
    pub reason: Option<String>,
    /// Whether a clean-up of it was given up before that step.
    pub failed_before: bool,
}

/// The facts about an allocation and the step of that number.
///
/// # Errors
/// When the database fails.
pub async fn allocation(
    tx: &mut Tx,
    id: AllocationId,
    seq: i64,
) -> Result<Option<OfAllocation>, Error> {
    tx.ask(Step { id, seq }).await
}

/// See [`allocation`].
struct Step {
    id: AllocationId,
    seq: i64,
}

impl Question for Step {
    type Answer = Option<OfAllocation>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Step>,
    ) -> Result<Vec<Option<OfAllocation>>, Error> {
        let ids: Vec<Uuid> = questions.iter().map(|one| one.id.uuid()).collect();
        let seqs: Vec<i64> = questions.iter().map(|one| one.seq).collect();
        let rows = sqlx::query(
            "SELECT owner_id, project_id, name, sku, gpus, region, price_micros_per_gpu_second, currency, release_requested_at,
                    (SELECT step.reason
                       FROM lifecycle_log AS step
                      WHERE step.machine = 'allocation' AND step.entity_id = allocation.id AND step.seq = wish.seq),
                    EXISTS (
                        SELECT 1
                          FROM lifecycle_log AS step
                         WHERE step.machine = 'allocation' AND step.entity_id = allocation.id AND step.seq < wish.seq
                           AND step.to_status = 'release_failed'),
                    wish.place
               FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS wish (id, seq, place)
               JOIN allocations AS allocation ON allocation.id = wish.id",
        )
        .bind(&ids)
        .bind(seqs)
        .fetch_all(connection)
        .await?;
        let mut found: Vec<Option<OfAllocation>> = ids.iter().map(|_| None).collect();
        for row in &rows {
            let place = usize::try_from(row.try_get::<i64, _>(11)?).unwrap_or_default();
            if let Some(here) = found.get_mut(place.wrapping_sub(1)) {
                *here = Some(of_allocation(row)?);
            }
        }
        Ok(found)
    }
}

fn of_allocation(row: &PgRow) -> Result<OfAllocation, Error> {
    let released = row.try_get::<Option<jiff_sqlx::Timestamp>, _>(8)?;
    Ok(OfAllocation {
        owner: row.try_get(0)?,
        project: row.try_get(1)?,
        name: row.try_get(2)?,
        sku: row.try_get(3)?,
        gpus: row.try_get(4)?,
        region: row.try_get(5)?,
        price_micros_per_gpu_second: row.try_get(6)?,
        currency: row.try_get(7)?,
        release_requested_at: released.map(jiff_sqlx::Timestamp::to_jiff),
        reason: row.try_get(9)?,
        failed_before: row.try_get(10)?,
    })
}

/// An account, as its owner is told of it.
#[derive(Clone, Debug)]
pub struct OfAccount {
    /// Whose it is.
    pub owner: Option<Uuid>,
    /// What it has.
    pub balance_minor: i64,
    /// In which currency.
    pub currency: String,
    /// What it spends a second now, in millionths of the currency's unit.
    pub burn_micros_per_second: i64,
}

/// The facts about an account.
///
/// # Errors
/// When the database fails.
pub async fn account(tx: &mut Tx, id: AccountId) -> Result<Option<OfAccount>, Error> {
    let row = sqlx::query(
        "SELECT owner_id, balance_minor, currency,
                (SELECT coalesce(sum(record.gpus * coalesce(changed.price, record.price_micros_per_gpu_second)), 0)::bigint
                   FROM usage_records AS record
                   LEFT JOIN LATERAL (
                        SELECT price_micros_per_gpu_second AS price
                          FROM allocation_prices
                         WHERE allocation_id = record.allocation_id AND from_at <= clock_timestamp()
                         ORDER BY from_at DESC
                         LIMIT 1
                        ) AS changed ON record.repriced
                  WHERE record.account_id = account.id AND record.settled_at IS NULL AND record.status = 'open')
           FROM accounts AS account
          WHERE account.id = $1",
    )
    .bind(id.uuid())
    .fetch_optional(tx.connection())
    .await?;
    let of = |row: PgRow| {
        Ok(OfAccount {
            owner: row.try_get(0)?,
            balance_minor: row.try_get(1)?,
            currency: row.try_get(2)?,
            burn_micros_per_second: row.try_get(3)?,
        })
    };
    row.map(of).transpose()
}

/// A payment, as its payer is told of it.
#[derive(Clone, Debug)]
pub struct OfPayment {
    /// Whose account it is for.
    pub owner: Option<Uuid>,
    /// What was asked for.
    pub amount_minor: i64,
    /// What was credited.
    pub credited_minor: Option<i64>,
    /// In which currency.
    pub currency: String,
    /// What the account has now.
    pub balance_minor: i64,
}

/// The facts about a payment.
///
/// # Errors
/// When the database fails.
pub async fn payment(tx: &mut Tx, id: PaymentSessionId) -> Result<Option<OfPayment>, Error> {
    let row = sqlx::query(
        "SELECT account.owner_id, session.amount_minor, session.credited_amount_minor, session.currency, account.balance_minor
           FROM payment_sessions AS session
           JOIN accounts AS account ON account.id = session.account_id
          WHERE session.id = $1",
    )
    .bind(id.uuid())
    .fetch_optional(tx.connection())
    .await?;
    let of = |row: PgRow| {
        Ok(OfPayment {
            owner: row.try_get(0)?,
            amount_minor: row.try_get(1)?,
            credited_minor: row.try_get(2)?,
            currency: row.try_get(3)?,
            balance_minor: row.try_get(4)?,
        })
    };
    row.map(of).transpose()
}

/// The admins of a project.
///
/// # Errors
/// When the database fails.
pub async fn admins(tx: &mut Tx, project: Uuid) -> Result<Vec<Uuid>, Error> {
    let rows =
        sqlx::query("SELECT user_id FROM project_members WHERE project_id = $1 AND role = 'admin'")
            .bind(project)
            .fetch_all(tx.connection())
            .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Those who run the platform.
///
/// # Errors
/// When the database fails.
pub async fn operators(tx: &mut Tx) -> Result<Vec<Uuid>, Error> {
    let rows = sqlx::query("SELECT id FROM users WHERE operator AND disabled_at IS NULL")
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
