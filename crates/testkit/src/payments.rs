//! What tests of payments look up behind the product's back: the books, and what was written down of what was told.

use domain::ids::{EventId, PaymentSessionId};
use lifecycle::Source;
use store::lifecycle::{Actor, Birth};
use store::payment_sessions;
use uuid::Uuid;

use crate::{Database, House};

/// Postings whose entries do not sum to zero, accounts whose balance is not the sum of their entries, and books that are not.
const FAULTS: &str = "
    SELECT 'posting ' || posting_id || ' is off by ' || sum(amount_minor)
      FROM ledger_entries GROUP BY posting_id HAVING sum(amount_minor) <> 0
     UNION ALL
    SELECT 'account ' || id || ' has ' || balance_minor || ' and its entries have ' || entered
      FROM (SELECT accounts.id, accounts.balance_minor,
                   coalesce((SELECT sum(amount_minor) FROM ledger_entries WHERE account_id = accounts.id), 0) AS entered
              FROM accounts) AS kept
     WHERE balance_minor <> entered
     UNION ALL
    SELECT 'book ' || book || ' has ' || balance_minor || ' and its entries have ' || entered
      FROM (SELECT ledger_books.book, ledger_books.balance_minor,
                   (SELECT sum(entry.amount_minor)
                      FROM ledger_entries AS entry JOIN ledger_postings AS posting ON posting.id = entry.posting_id
                     WHERE entry.book = ledger_books.book AND posting.currency = ledger_books.currency) AS entered
              FROM ledger_books) AS kept
     WHERE balance_minor <> entered";

/// An event of the payment provider, as it was written down.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct PaymentEvent {
    /// What came of it.
    pub outcome: Option<String>,
    /// How often it was tried.
    pub attempts: i32,
    /// Whether it is tried again.
    pub due: bool,
    /// What was in the way.
    pub reason: Option<String>,
}

impl Database {
    /// What does not add up in the ledger.
    pub async fn ledger_faults(&self) -> Vec<String> {
        sqlx::query_scalar(FAULTS).fetch_all(&self.sql).await.expect("the books are read")
    }

    /// What the account of a user has.
    pub async fn funds_of(&self, user: Uuid) -> i64 {
        sqlx::query_scalar("SELECT balance_minor FROM accounts WHERE owner_id = $1")
            .bind(user)
            .fetch_one(&self.sql)
            .await
            .expect("an account")
    }

    /// An event of the payment provider; none when it was never written down.
    pub async fn payment_event(&self, id: &str) -> Option<PaymentEvent> {
        sqlx::query_as(
            "SELECT outcome, attempts, due_at IS NOT NULL AS due, reason FROM payment_events WHERE id = $1",
        )
        .bind(id)
        .fetch_optional(&self.sql)
        .await
        .expect("a look")
    }

    /// Gives a session that page of the provider, or none, behind everybody's back; whether the database lets it.
    pub async fn has_page(&self, session: Uuid, page: Option<&str>) -> bool {
        sqlx::query("UPDATE payment_sessions SET stripe_checkout_session_id = $2 WHERE id = $1")
            .bind(session)
            .bind(page)
            .execute(&self.sql)
            .await
            .is_ok()
    }
}

impl House {
    /// A payment session of the tenant that the provider was never asked for.
    pub async fn payment_session(&self) -> Uuid {
        let ctx = &self.ctx;
        let mut tx = ctx.store.begin().await.expect("it begins");
        let user = self.tenant.user_id;
        let account = control::billing::account::ensure(ctx, &mut tx, user).await;
        let id = tx.new_id();
        let new = payment_sessions::NewCheckout {
            id: PaymentSessionId(id),
            account: account.expect("an account"),
            user,
            key: &id.to_string(),
            fingerprint: b"of the test",
            amount_minor: 2_500,
            created_at: ctx.clock.now(),
            expires_at: ctx.after_seconds(3_600),
            asked_until: ctx.after_seconds(60),
        };
        let birth = Birth::new(EventId(tx.new_id()), Actor::new(Source::User, "the test"));
        let opened = payment_sessions::open(&mut tx, &new, &birth).await.expect("it is tried");
        assert!(opened, "its key is its own");
        tx.commit().await.expect("it is committed");
        id
    }

    /// The one payment session that there is.
    pub async fn only_session(&self) -> Uuid {
        sqlx::query_scalar("SELECT id FROM payment_sessions")
            .fetch_one(&self.database.sql)
            .await
            .expect("there is one")
    }
}
