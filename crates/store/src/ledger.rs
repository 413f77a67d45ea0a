//! The ledger: postings of two entries or more that sum to zero, which nobody changes. One statement writes a posting, its
//! entries and the balances they move; its key is unique in the ledger itself, so that what is said twice happens once.

use domain::ids::AccountId;
use domain::ledger::PostingKind;
use jiff::Timestamp;
use lifecycle::Code;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::Coded;
use wire::http::money::LedgerLine;

use crate::{Error, Tx, accounts};

/// Something that happens to a tenant's money.
#[derive(Clone, Copy, Debug)]
pub struct NewPosting<'a> {
    /// What names it: made of what it is about, and of nothing else.
    pub key: &'a str,
    /// What it is about.
    pub kind: PostingKind,
    /// Whose money.
    pub account: AccountId,
    /// How much they have more; less, when it is negative.
    pub amount_minor: i64,
    /// The payment session, record or outage behind it.
    pub source_id: Option<Uuid>,
    /// Who did it.
    pub actor: &'a str,
    /// Why.
    pub reason: Option<&'a str>,
}

/// A posting that is in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Its identity: the same for the same key.
    pub id: Uuid,
    /// Whether it is new; otherwise it was there before and nothing was changed.
    pub fresh: bool,
}

/// Posts, moves the balances, and lets the account's status follow. None when there is no such account.
///
/// # Errors
/// When the database fails.
pub async fn post(tx: &mut Tx, posting: &NewPosting<'_>) -> Result<Option<Posted>, Error> {
    // Without a target every unique index says "known": two at once may meet at either of them.
    let row = sqlx::query(
        "WITH held AS MATERIALIZED (
            SELECT id, currency FROM accounts WHERE id = $3 FOR UPDATE
         ), posting AS (
            INSERT INTO ledger_postings (id, key, kind, account_id, currency, source_id, actor, reason)
            SELECT md5($1)::uuid, $1, $2, id, currency, $5, $6, $7 FROM held
                ON CONFLICT DO NOTHING
            RETURNING id, currency
         ), moved AS (
            UPDATE accounts SET balance_minor = balance_minor + $4
              FROM posting
             WHERE accounts.id = $3
            RETURNING balance_minor
         ), book AS (
            INSERT INTO ledger_books (book, currency, balance_minor)
            SELECT $8, currency, -$4 FROM posting
                ON CONFLICT (book, currency) DO UPDATE
               SET balance_minor = ledger_books.balance_minor + EXCLUDED.balance_minor
         ), entered AS (
            INSERT INTO ledger_entries (posting_id, book, account_id, amount_minor, balance_after_minor)
            SELECT posting.id, 'tenant', $3, $4, moved.balance_minor FROM posting, moved
            UNION ALL
            SELECT posting.id, $8, NULL, -$4, NULL FROM posting
         )
         SELECT md5($1)::uuid, EXISTS (SELECT 1 FROM posting), EXISTS (SELECT 1 FROM held)",
    )
    .bind(posting.key)
    .bind(posting.kind.code())
    .bind(posting.account.uuid())
    .bind(posting.amount_minor)
    .bind(posting.source_id)
    .bind(posting.actor)
    .bind(posting.reason)
    .bind(posting.kind.against().code())
    .fetch_one(tx.connection())
    .await?;
    let posted = Posted { id: row.try_get(0)?, fresh: row.try_get(1)? };
    if !row.try_get::<bool, _>(2)? {
        return Ok(None);
    }
    if posted.fresh {
        let followed = accounts::refold(tx, posting.account, posting.key).await?;
        if followed.is_some_and(|followed| followed.is_retryable()) {
            return Err(Error::Conflict);
        }
    }
    Ok(Some(posted))
}

/// The tenant's line of a posting that this transaction has made.
///
/// # Errors
/// When the database fails.
pub async fn line(tx: &mut Tx, posting: Uuid) -> Result<LedgerLine, Error> {
    let statement = format!(
        "SELECT {LINE}
           FROM ledger_entries AS entry
           JOIN ledger_postings AS posting ON posting.id = entry.posting_id
          WHERE entry.posting_id = $1 AND entry.book = 'tenant'"
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(posting);
    read_line(&query.fetch_one(tx.connection()).await?)
}

/// What a line is read from.
pub(crate) const LINE: &str = "entry.number, entry.posting_id, posting.kind, entry.amount_minor,
                coalesce(entry.balance_after_minor, 0), posting.currency, posting.posted_at, posting.from_at, posting.until_at,
                posting.source_id, posting.reason";

pub(crate) fn read_line(row: &PgRow) -> Result<LedgerLine, Error> {
    Ok(LedgerLine {
        number: row.try_get(0)?,
        posting_id: row.try_get(1)?,
        kind: coded(row, 2)?,
        amount_minor: row.try_get(3)?,
        balance_after_minor: row.try_get(4)?,
        currency: row.try_get(5)?,
        posted_at: at(row, 6)?,
        from_at: may_be_at(row, 7)?,
        until_at: may_be_at(row, 8)?,
        source_id: row.try_get(9)?,
        reason: row.try_get(10)?,
    })
}

pub(crate) fn at(row: &PgRow, column: usize) -> Result<Timestamp, Error> {
    Ok(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff())
}

pub(crate) fn may_be_at(row: &PgRow, column: usize) -> Result<Option<Timestamp>, Error> {
    let at: Option<jiff_sqlx::Timestamp> = row.try_get(column)?;
    Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
}

/// A word of a closed set; the column has a check, or the writer, that knows the same words.
pub(crate) fn coded<C: Code>(row: &PgRow, column: usize) -> Result<Coded<C>, Error> {
    let text: &str = row.try_get(column)?;
    let unknown = || sqlx::Error::Decode(format!("there is no {text:?}").into());
    Ok(Coded(C::parse(text).ok_or_else(unknown)?))
}
