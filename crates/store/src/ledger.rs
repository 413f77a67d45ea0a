//! The ledger: postings of two entries or more that sum to zero, which nobody changes. One statement writes a posting, its
//! entries and the balances they move; its key is unique in the ledger itself, so that what is said twice happens once.

use domain::ids::AccountId;
use domain::ledger::PostingKind;
use lifecycle::Code as _;
use sqlx::Row as _;
use uuid::Uuid;

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
