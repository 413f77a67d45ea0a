//! What must hold of payments, whatever order they were heard of in.

use super::Invariant;

/// Of sessions that somebody asked for.
pub(super) const PAYMENTS: Invariant = Invariant {
    name: "PAYMENTS",
    holds: "a payment session is credited exactly when its credit is in the ledger, and what was given back is there too, and no more than was credited",
    sql: "SELECT 'payment session ' || session.id || ' is credited without its posting'
            FROM payment_sessions AS session
           WHERE session.user_id IS NOT NULL AND session.status = 'credited'
             AND NOT EXISTS (
                 SELECT 1
                   FROM ledger_postings AS posting
                   JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
                  WHERE posting.id = session.ledger_entry_id
                    AND posting.key = 'payment/' || session.id
                    AND entry.account_id = session.account_id
                    AND entry.amount_minor = session.credited_amount_minor)
          UNION ALL
          SELECT 'posting ' || posting.key || ' credits a session that is ' || session.status
            FROM payment_sessions AS session
            JOIN ledger_postings AS posting ON posting.source_id = session.id AND posting.kind = 'payment'
           WHERE session.user_id IS NOT NULL
             AND (session.status <> 'credited' OR posting.id <> session.ledger_entry_id)
          UNION ALL
          SELECT 'payment session ' || session.id || ' has ' || session.refunded_minor || ' given back, and the ledger has ' || back.minor
            FROM payment_sessions AS session
           CROSS JOIN LATERAL (
                 SELECT coalesce(-sum(entry.amount_minor), 0)::bigint AS minor
                   FROM ledger_postings AS posting
                   JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
                  WHERE posting.source_id = session.id AND posting.kind = 'refund'
                 ) AS back
           WHERE session.user_id IS NOT NULL
             AND (back.minor <> session.refunded_minor OR back.minor > coalesce(session.credited_amount_minor, 0))",
};
