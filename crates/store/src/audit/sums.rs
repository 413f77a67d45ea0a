//! The ledger against what it rests on: each sum as the ledger has it, and as it comes out of usage and payments.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use wire::http::money::LedgerSum;

use crate::{Error, Store};

/// Each sum as it is posted, and as it comes out when it is computed; then all balances, and everything.
const SUMS: &str = "WITH posted AS MATERIALIZED (
            SELECT posting.currency, posting.kind, sum(entry.amount_minor)::bigint AS minor, count(*) AS postings
              FROM ledger_postings AS posting
              JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
             GROUP BY posting.currency, posting.kind
         ), computed AS (
            SELECT account.currency, 'usage, less what was charged behind an end' AS what,
                   -sum(CASE WHEN record.repriced
                             THEN repriced_minor(record.allocation_id, record.price_micros_per_gpu_second, record.gpus, record.started_at,
                                                 record.charged_until, record.micros_per_minor)
                             ELSE div(record.price_micros_per_gpu_second::numeric * record.gpus
                                          * micros_between(record.started_at, record.charged_until),
                                      1000000::numeric * record.micros_per_minor) END)::bigint AS minor,
                   count(*) AS records, ARRAY['usage', 'overrun'] AS kinds
              FROM usage_records AS record
              JOIN accounts AS account ON account.id = record.account_id
             GROUP BY account.currency
            UNION ALL
            SELECT account.currency, 'minutes given back', sum(given.amount_minor)::bigint, count(*), ARRAY['unreachable']
              FROM usage_credits AS given
              JOIN usage_records AS record ON record.id = given.usage_record_id
              JOIN accounts AS account ON account.id = record.account_id
             GROUP BY account.currency
            UNION ALL
            SELECT currency, 'payments', sum(credited_amount_minor)::bigint, count(*), ARRAY['payment']
              FROM payment_sessions
             WHERE status = 'credited'
             GROUP BY currency
            UNION ALL
            SELECT currency, 'refunds', -sum(refunded_minor)::bigint, count(*), ARRAY['refund']
              FROM payment_sessions
             WHERE refunded_minor > 0
             GROUP BY currency
            UNION ALL
            SELECT currency, 'adjustments', minor, postings, ARRAY['adjustment'] FROM posted WHERE kind = 'adjustment'
         )
         SELECT coalesce(computed.currency, said.currency), coalesce(computed.what, said.kind),
                coalesce((SELECT sum(minor)::bigint
                            FROM posted
                           WHERE posted.currency = computed.currency AND posted.kind = ANY (computed.kinds)), said.minor, 0),
                coalesce(computed.minor, 0), coalesce(computed.records, said.postings)
           FROM computed
           FULL JOIN posted AS said ON said.currency = computed.currency AND said.kind = ANY (computed.kinds)
          WHERE said.kind IS DISTINCT FROM 'overrun' OR computed.what IS NULL
         UNION ALL
         SELECT account.currency, 'balances of tenants', sum(account.balance_minor)::bigint,
                coalesce((SELECT sum(minor)::bigint FROM posted WHERE posted.currency = account.currency), 0), count(*)
           FROM accounts AS account
          GROUP BY account.currency
         UNION ALL
         SELECT posting.currency, 'everything', sum(entry.amount_minor)::bigint, 0, count(*)
           FROM ledger_postings AS posting
           JOIN ledger_entries AS entry ON entry.posting_id = posting.id
          GROUP BY posting.currency
          ORDER BY 1, 2";

/// Every sum twice, currency by currency.
///
/// # Errors
/// When the database fails.
pub async fn sums(store: &Store) -> Result<Vec<LedgerSum>, Error> {
    let rows = sqlx::query(SUMS).fetch_all(store.pool()).await?;
    let sum = |row: &PgRow| {
        Ok(LedgerSum {
            currency: row.try_get(0)?,
            what: row.try_get(1)?,
            ledger_minor: row.try_get(2)?,
            computed_minor: row.try_get(3)?,
            count: row.try_get(4)?,
        })
    };
    rows.iter().map(sum).collect()
}
