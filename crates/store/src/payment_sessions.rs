//! Payment sessions: checkouts on their way to the ledger. One key of one user is one session; one session of the provider
//! belongs to one of ours.

use domain::ids::{AccountId, PaymentSessionId};
use domain::machines::PaymentSession;
use domain::machines::payment_session::Status;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code as _, Machine as _};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::lifecycle::{Birth, born};
use crate::{Error, Ring, Store, Tx};

/// A checkout to be.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its identity.
    pub id: PaymentSessionId,
    /// Whose balance it is for.
    pub account: AccountId,
    /// How much, in the currency's minor unit.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
}

/// Adds a checkout, before the provider hears of it: its answer may come before ours.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, session: &NewSession, birth: &Birth) -> Result<(), Error> {
    sqlx::query("INSERT INTO payment_sessions (id, account_id, amount_minor, currency) VALUES ($1, $2, $3, $4)")
        .bind(session.id.uuid())
        .bind(session.account.uuid())
        .bind(session.amount_minor)
        .bind(&session.currency)
        .execute(tx.connection())
        .await?;
    born::<PaymentSession>(tx, session.id, birth).await?;
    Ok(())
}

/// A checkout that somebody asks for, in the currency of their account.
#[derive(Clone, Debug)]
pub struct NewCheckout<'a> {
    /// Its identity.
    pub id: PaymentSessionId,
    /// Whose balance it is for.
    pub account: AccountId,
    /// Who asks.
    pub user: Uuid,
    /// By which key: the same key is the same session, for good.
    pub key: &'a str,
    /// What the request was.
    pub fingerprint: &'a [u8],
    /// How much, in the currency's minor unit.
    pub amount_minor: i64,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// Until when it may be paid.
    pub expires_at: Timestamp,
    /// Until when nobody else asks the provider for it.
    pub asked_until: Timestamp,
}

/// Adds a checkout for its key, before the provider hears of it. Answers `false` when the key has one.
///
/// # Errors
/// When the database fails.
pub async fn open(tx: &mut Tx, checkout: &NewCheckout<'_>, birth: &Birth) -> Result<bool, Error> {
    // Without a target every unique index says "known".
    let opened = sqlx::query(
        "INSERT INTO payment_sessions
                (id, account_id, amount_minor, currency, user_id, idempotency_key, fingerprint, created_at, expires_at, asked_until)
         SELECT $1, id, $3, currency, $4, $5, $6, $7, $8, $9 FROM accounts WHERE id = $2
             ON CONFLICT DO NOTHING",
    )
    .bind(checkout.id.uuid())
    .bind(checkout.account.uuid())
    .bind(checkout.amount_minor)
    .bind(checkout.user)
    .bind(checkout.key)
    .bind(checkout.fingerprint)
    .bind(checkout.created_at.to_sqlx())
    .bind(checkout.expires_at.to_sqlx())
    .bind(checkout.asked_until.to_sqlx())
    .execute(tx.connection())
    .await?
    .rows_affected();
    if opened == 1 {
        born::<PaymentSession>(tx, checkout.id, birth).await?;
    }
    Ok(opened == 1)
}

/// Whoever gets this asks the provider, and nobody else does until then. Refused while somebody else asks, and when there is
/// nothing left to ask for.
///
/// # Errors
/// When the database fails.
pub async fn lease(
    store: &Store,
    id: PaymentSessionId,
    now: Timestamp,
    until: Timestamp,
) -> Result<bool, Error> {
    let leased = sqlx::query(
        "UPDATE payment_sessions
            SET asked_until = $3
          WHERE id = $1 AND url IS NULL AND (asked_until IS NULL OR asked_until <= $2)",
    )
    .bind(id.uuid())
    .bind(now.to_sqlx())
    .bind(until.to_sqlx())
    .execute(store.pool())
    .await?;
    Ok(leased.rows_affected() == 1)
}

/// The provider has it: what it calls the session, and where people pay. Whoever waits for that is told. Refused when ours
/// belongs to another session of the provider.
///
/// # Errors
/// When the database fails; also when the provider's session belongs to another of ours.
pub async fn keep(
    tx: &mut Tx,
    id: PaymentSessionId,
    provider_id: &str,
    url: &str,
) -> Result<bool, Error> {
    let kept = sqlx::query(
        "UPDATE payment_sessions
            SET stripe_checkout_session_id = $2, url = $3, asked_until = NULL
          WHERE id = $1 AND coalesce(stripe_checkout_session_id, $2) = $2",
    )
    .bind(id.uuid())
    .bind(provider_id)
    .bind(url)
    .execute(tx.connection())
    .await?;
    tx.rings(Ring::Payment(id.uuid()));
    Ok(kept.rows_affected() == 1)
}

/// The provider could not be asked: somebody else may. Whoever waits for it is told.
///
/// # Errors
/// When the database fails.
pub async fn give_back(tx: &mut Tx, id: PaymentSessionId, until: Timestamp) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_sessions SET asked_until = NULL WHERE id = $1 AND asked_until = $2",
    )
    .bind(id.uuid())
    .bind(until.to_sqlx())
    .execute(tx.connection())
    .await?;
    tx.rings(Ring::Payment(id.uuid()));
    Ok(())
}

/// What the provider says was paid.
#[derive(Clone, Copy, Debug)]
pub struct Paid<'a> {
    /// How much.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: &'a str,
    /// By which payment.
    pub payment_intent: Option<&'a str>,
}

/// Notes what was paid.
///
/// # Errors
/// When the database fails; also when that payment belongs to another session.
pub async fn note_paid(tx: &mut Tx, id: PaymentSessionId, paid: Paid<'_>) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_sessions
            SET paid_amount_minor = $2, paid_currency = $3, stripe_payment_intent_id = coalesce(stripe_payment_intent_id, $4)
          WHERE id = $1",
    )
    .bind(id.uuid())
    .bind(paid.amount_minor)
    .bind(paid.currency)
    .bind(paid.payment_intent)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Notes how much was given back in all. It never becomes less.
///
/// # Errors
/// When the database fails.
pub async fn note_refunded(
    tx: &mut Tx,
    id: PaymentSessionId,
    total_minor: i64,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_sessions SET refunded_minor = greatest(refunded_minor, $2) WHERE id = $1",
    )
    .bind(id.uuid())
    .bind(total_minor)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// A session, as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its identity.
    pub id: PaymentSessionId,
    /// Whose balance it is for.
    pub account: AccountId,
    /// Who asked for it.
    pub user_id: Option<Uuid>,
    /// Where it stands.
    pub status: Status,
    /// Since when.
    pub status_at: Timestamp,
    /// How much was asked for.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
    /// What the request was.
    pub fingerprint: Option<Vec<u8>>,
    /// What the provider calls it.
    pub provider_id: Option<String>,
    /// Where people pay.
    pub url: Option<String>,
    /// Until when somebody is asking the provider for that.
    pub asked_until: Option<Timestamp>,
    /// Until when it may be paid.
    pub expires_at: Option<Timestamp>,
    /// The payment, as the provider calls it.
    pub payment_intent: Option<String>,
    /// What the provider says was paid.
    pub paid_amount_minor: Option<i64>,
    /// In which currency.
    pub paid_currency: Option<String>,
    /// What was credited.
    pub credited_amount_minor: Option<i64>,
    /// By which posting.
    pub posting_id: Option<Uuid>,
    /// What was given back since.
    pub refunded_minor: i64,
    /// Why it stands there, when there is more to say.
    pub reason: Option<String>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it was paid.
    pub completed_at: Option<Timestamp>,
    /// When it was credited.
    pub ended_at: Option<Timestamp>,
    /// Whether the provider has told something of it that is not settled, or that a payment is on its way.
    pub processing: bool,
}

/// The columns of [`Session`], in the order in which [`read`] reads them.
const COLUMNS: &str = "session.id, session.account_id, session.user_id, session.status, session.status_at, session.amount_minor,
        session.currency, session.fingerprint, session.stripe_checkout_session_id, session.url, session.asked_until,
        session.expires_at, session.stripe_payment_intent_id, session.paid_amount_minor, session.paid_currency,
        session.credited_amount_minor, session.ledger_entry_id, session.refunded_minor, session.reason, session.created_at,
        session.completed_at, session.ended_at,
        EXISTS (SELECT 1 FROM payment_events AS event
                 WHERE event.session_id = session.id AND (event.due_at IS NOT NULL OR event.outcome = 'awaiting_payment'))";

/// The session of a user's key.
///
/// # Errors
/// When the database fails.
pub async fn find_by_key(store: &Store, user: Uuid, key: &str) -> Result<Option<Session>, Error> {
    let statement = format!(
        "SELECT {COLUMNS} FROM payment_sessions AS session WHERE session.user_id = $1 AND session.idempotency_key = $2"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(user).bind(key);
    query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()
}

/// A session; with a user, only if it is theirs.
///
/// # Errors
/// When the database fails.
pub async fn find(
    store: &Store,
    id: PaymentSessionId,
    of: Option<Uuid>,
) -> Result<Option<Session>, Error> {
    let statement = format!(
        "SELECT {COLUMNS} FROM payment_sessions AS session WHERE session.id = $1 AND ($2::uuid IS NULL OR session.user_id = $2)"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid()).bind(of);
    query.fetch_optional(store.pool()).await?.as_ref().map(read).transpose()
}

/// A session, locked.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, id: PaymentSessionId) -> Result<Option<Session>, Error> {
    lock_where(tx, "session.id = $1", id.uuid()).await
}

/// The session of ours that is the provider's, locked.
///
/// # Errors
/// When the database fails.
pub async fn lock_by_provider_id(tx: &mut Tx, id: &str) -> Result<Option<Session>, Error> {
    lock_where(tx, "session.stripe_checkout_session_id = $1", id.to_owned()).await
}

/// The session that was paid by a payment, locked.
///
/// # Errors
/// When the database fails.
pub async fn lock_by_payment(tx: &mut Tx, payment: &str) -> Result<Option<Session>, Error> {
    lock_where(tx, "session.stripe_payment_intent_id = $1", payment.to_owned()).await
}

async fn lock_where<'q, T>(
    tx: &mut Tx,
    condition: &'static str,
    value: T,
) -> Result<Option<Session>, Error>
where
    T: sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + 'q,
{
    let statement = format!(
        "SELECT {COLUMNS} FROM payment_sessions AS session WHERE {condition} ORDER BY session.id LIMIT 1 FOR UPDATE OF session"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(value);
    query.fetch_optional(tx.connection()).await?.as_ref().map(read).transpose()
}

/// Gives a session of ours the provider's, if it has none yet.
///
/// # Errors
/// When the database fails.
pub async fn bind(tx: &mut Tx, id: PaymentSessionId, provider_id: &str) -> Result<(), Error> {
    sqlx::query(
        "UPDATE payment_sessions
            SET stripe_checkout_session_id = $2
          WHERE id = $1 AND stripe_checkout_session_id IS NULL",
    )
    .bind(id.uuid())
    .bind(provider_id)
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Which sessions are listed.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// Those of a user.
    Of(Uuid),
    /// Everybody's.
    All,
    /// Those that were asked for before a moment and not paid since, and those that an operator has to see to.
    Stuck(Timestamp),
}

/// Sessions that were made before `before`, the newest first.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    which: Which,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Session>, Error> {
    let (of, stuck) = match which {
        Which::Of(user) => (Some(user), None),
        Which::All => (None, None),
        Which::Stuck(since) => (None, Some(since.to_sqlx())),
    };
    let condition = match which {
        Which::Of(_) => "session.user_id = $1 AND $2::timestamptz IS NULL",
        Which::All => "$1::uuid IS NULL AND $2::timestamptz IS NULL",
        Which::Stuck(_) => {
            "$1::uuid IS NULL
             AND (session.status IN ('failed_reconcile', 'checkout_completed')
                  OR session.status = 'initiated' AND session.created_at < $2)"
        }
    };
    let statement = format!(
        "SELECT {COLUMNS}
           FROM payment_sessions AS session
          WHERE {condition}
            AND ($4::uuid IS NULL OR session.id < $4)
          ORDER BY session.id DESC
          LIMIT $3"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(of)
        .bind(stuck)
        .bind(limit)
        .bind(before)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// Some sessions whose time is up and that nobody has paid, the longest ago first.
///
/// # Errors
/// When the database fails.
pub async fn list_overdue(
    store: &Store,
    now: Timestamp,
    limit: i64,
) -> Result<Vec<Session>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM payment_sessions AS session
          WHERE session.status = 'initiated'
            AND coalesce(session.expires_at, session.created_at + interval '24 hours') <= $1
          ORDER BY session.status_at
          LIMIT $2"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(now.to_sqlx()).bind(limit);
    query.fetch_all(store.pool()).await?.iter().map(read).collect()
}

fn read(row: &PgRow) -> Result<Session, Error> {
    let at = |position: usize| -> Result<Option<Timestamp>, Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(position)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    let (id, status): (Uuid, &str) = (row.try_get(0)?, row.try_get(3)?);
    let Some(status) = Status::parse(status) else {
        let status = status.to_owned();
        return Err(Error::UnknownStatus { machine: PaymentSession::NAME, id, status });
    };
    Ok(Session {
        id: PaymentSessionId(id),
        account: AccountId(row.try_get(1)?),
        user_id: row.try_get(2)?,
        status,
        status_at: at(4)?.unwrap_or_default(),
        amount_minor: row.try_get(5)?,
        currency: row.try_get(6)?,
        fingerprint: row.try_get(7)?,
        provider_id: row.try_get(8)?,
        url: row.try_get(9)?,
        asked_until: at(10)?,
        expires_at: at(11)?,
        payment_intent: row.try_get(12)?,
        paid_amount_minor: row.try_get(13)?,
        paid_currency: row.try_get(14)?,
        credited_amount_minor: row.try_get(15)?,
        posting_id: row.try_get(16)?,
        refunded_minor: row.try_get(17)?,
        reason: row.try_get(18)?,
        created_at: at(19)?.unwrap_or_default(),
        completed_at: at(20)?,
        ended_at: at(21)?,
        processing: row.try_get(22)?,
    })
}
