//! Invariants of money: everything is computed again, from the steps of allocations and from payments, to the minor unit. Windows are
//! kept for a time, and what rests on them is computed from then on: a window has no memory, so the sum of those that are kept is what
//! is owed at the end less what was owed when they begin.

use super::Invariant;

/// Records without an account are nobody's bill.
pub(super) const I12: Invariant = Invariant {
    name: "I12",
    holds: "the windows of a record are its minutes, without gap or overlap, none before it begins and none behind its end",
    sql: "SELECT 'usage ' || record.id || ': ' || counted.windows || ' windows, ' || counted.micros || ' µs'
            FROM (SELECT coalesce(max(windows_since), '-infinity') AS windows_since FROM usage_kept) AS kept,
                 usage_records AS record
           CROSS JOIN LATERAL (
                 SELECT count(*) AS windows, coalesce(sum(micros), 0) AS micros, min(window_at) AS first_at, max(window_at) AS last_at
                   FROM usage_windows
                  WHERE usage_record_id = record.id AND window_at >= kept.windows_since
                 ) AS counted
           WHERE record.account_id IS NOT NULL
             AND NOT EXISTS (SELECT 1 FROM ledger_postings WHERE key = 'overrun/' || record.id)
             AND (counted.micros <> greatest(0, micros_between(greatest(record.started_at, kept.windows_since), record.charged_until))
                  OR (counted.windows > 0
                      AND (counted.first_at <> date_trunc('minute', greatest(record.started_at, kept.windows_since), 'UTC')
                           OR counted.last_at >= record.charged_until
                           OR extract(epoch FROM counted.last_at - counted.first_at) / 60 + 1 <> counted.windows))
                  OR record.charged_until > record.ended_at
                  OR (record.settled_at IS NOT NULL AND record.charged_until <> record.ended_at))
          UNION ALL
          SELECT 'window ' || lost.window_at || ' is of no record'
            FROM usage_windows AS lost
           WHERE NOT EXISTS (SELECT 1 FROM usage_records WHERE id = lost.usage_record_id)",
};

pub(super) const I13: Invariant = Invariant {
    name: "I13",
    holds: "every balance is the sum of its entries, every posting sums to zero, and so does the ledger",
    sql: "SELECT 'account ' || account.id || ' has ' || account.balance_minor || ', its entries sum to ' || coalesce(entered.sum, 0)
            FROM accounts AS account
            LEFT JOIN (SELECT account_id, sum(amount_minor) FROM ledger_entries GROUP BY account_id) AS entered
                 ON entered.account_id = account.id
           WHERE account.balance_minor <> coalesce(entered.sum, 0)
          UNION ALL
          SELECT 'book ' || coalesce(entered.book, kept.book) || ' ' || coalesce(entered.currency, kept.currency)
            FROM ledger_books AS kept
            FULL JOIN (
                 SELECT entry.book, posting.currency, sum(entry.amount_minor)
                   FROM ledger_entries AS entry
                   JOIN ledger_postings AS posting ON posting.id = entry.posting_id
                  WHERE entry.book <> 'tenant'
                  GROUP BY entry.book, posting.currency
                 ) AS entered ON entered.book = kept.book AND entered.currency = kept.currency
           WHERE kept.balance_minor IS DISTINCT FROM entered.sum
          UNION ALL
          SELECT 'posting ' || posting.id || ' sums to ' || coalesce(entered.sum::text, 'nothing')
            FROM ledger_postings AS posting
            FULL JOIN (SELECT posting_id, sum(amount_minor) FROM ledger_entries GROUP BY posting_id) AS entered
                 ON entered.posting_id = posting.id
           WHERE posting.id IS NULL OR entered.sum IS DISTINCT FROM 0",
};

pub(super) const I14: Invariant = Invariant {
    name: "I14",
    holds: "a window is charged once and given back once at most, a payment credited once, and what goes back to a payer came from them",
    sql: "SELECT 'usage ' || usage_record_id || ' ' || window_at || ' is charged ' || count(*) || ' times'
            FROM usage_windows
           GROUP BY usage_record_id, window_at
          HAVING count(*) > 1
          UNION ALL
          SELECT 'usage ' || given.usage_record_id || ' ' || given.window_at || ' was given back'
            FROM usage_credits AS given
            LEFT JOIN usage_windows AS charged
                 ON charged.usage_record_id = given.usage_record_id AND charged.window_at = given.window_at
           WHERE given.window_at >= (SELECT coalesce(max(windows_since), '-infinity') FROM usage_kept)
           GROUP BY given.usage_record_id, given.window_at
          HAVING count(*) <> 1 OR sum(given.amount_minor) IS DISTINCT FROM sum(charged.amount_minor)
          UNION ALL
          SELECT 'session ' || source_id || ' was credited ' || count(*) || ' times'
            FROM ledger_postings
           WHERE kind = 'payment'
           GROUP BY source_id
          HAVING count(*) > 1
          UNION ALL
          SELECT 'session ' || coalesce(back.source_id, session.id) || ' gave back ' || coalesce(back.sum, 0)
            FROM (
                 SELECT posting.source_id, -sum(entry.amount_minor) AS sum
                   FROM ledger_postings AS posting
                   JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
                  WHERE posting.kind = 'refund'
                  GROUP BY posting.source_id
                 ) AS back
            FULL JOIN (SELECT id, refunded_minor, credited_amount_minor FROM payment_sessions WHERE refunded_minor <> 0) AS session
                 ON session.id = back.source_id
           WHERE session.refunded_minor IS DISTINCT FROM back.sum OR session.credited_amount_minor IS NULL
              OR session.refunded_minor > session.credited_amount_minor",
};

pub(super) const I15: Invariant = Invariant {
    name: "I15",
    holds: "what was charged for a record is the price of its time, rounded down once; what was posted is what was charged",
    sql: "SELECT 'usage ' || due.id || ' was charged ' || charged.sum || ' for ' || owed.sum
            FROM (
                 SELECT id, allocation_id, gpus, price_micros_per_gpu_second AS price, micros_per_minor, repriced, started_at,
                        charged_until, charged_minor
                   FROM usage_records
                  WHERE account_id IS NOT NULL
                 ) AS due
           CROSS JOIN (SELECT coalesce(max(windows_since), '-infinity') AS windows_since FROM usage_kept) AS kept
           CROSS JOIN LATERAL (
                 SELECT CASE WHEN due.repriced
                             THEN repriced_minor(due.allocation_id, due.price, due.gpus, due.started_at, due.charged_until, due.micros_per_minor)
                             ELSE div(due.price::numeric * due.gpus * micros_between(due.started_at, due.charged_until),
                                      1000000::numeric * due.micros_per_minor) END AS sum,
                        -- What it owed when the windows that are kept begin.
                        CASE WHEN due.started_at >= kept.windows_since THEN 0
                             WHEN due.repriced
                             THEN repriced_minor(due.allocation_id, due.price, due.gpus, due.started_at, kept.windows_since, due.micros_per_minor)
                             ELSE div(due.price::numeric * due.gpus * micros_between(due.started_at, kept.windows_since),
                                      1000000::numeric * due.micros_per_minor) END AS before
                 ) AS owed
           CROSS JOIN LATERAL (
                 SELECT coalesce((SELECT sum(amount_minor)
                                    FROM usage_windows
                                   WHERE usage_record_id = due.id AND window_at >= kept.windows_since), 0)
                        - coalesce((SELECT entry.amount_minor
                                      FROM ledger_postings AS posting
                                      JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
                                     WHERE posting.key = 'overrun/' || due.id), 0) AS sum
                 ) AS charged
           WHERE (charged.sum <> owed.sum - owed.before AND due.charged_until >= kept.windows_since) OR due.charged_minor <> owed.sum
          UNION ALL
          SELECT 'posting ' || posting.id || ' is of ' || entry.amount_minor || ', its windows of ' || coalesce(counted.sum, 0)
            FROM ledger_postings AS posting
            JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
           CROSS JOIN LATERAL (
                 SELECT CASE posting.kind
                        WHEN 'usage' THEN -(SELECT sum(amount_minor)
                                              FROM usage_windows
                                             WHERE posting_id = posting.id AND window_at < posting.until_at
                                               AND window_at >= date_trunc('minute', posting.from_at, 'UTC'))
                        ELSE (SELECT sum(amount_minor) FROM usage_credits WHERE posting_id = posting.id) END AS sum
                 ) AS counted
           WHERE (posting.kind = 'unreachable' OR (posting.kind = 'usage' AND posting.from_at >= (SELECT coalesce(max(windows_since), '-infinity') FROM usage_kept)))
             AND counted.sum IS DISTINCT FROM entry.amount_minor
          UNION ALL
          SELECT 'project ' || coalesce(kept.project_id, counted.project_id) || ' has cost ' || coalesce(kept.spent_minor, 0)
            FROM project_spending AS kept
            FULL JOIN (
                 SELECT record.project_id, (date_trunc('month', charged.window_at, 'UTC') AT TIME ZONE 'UTC')::date AS month,
                        sum(charged.amount_minor - coalesce(given.amount_minor, 0))
                   FROM usage_windows AS charged
                   JOIN usage_records AS record ON record.id = charged.usage_record_id
                   LEFT JOIN usage_credits AS given
                        ON given.usage_record_id = charged.usage_record_id AND given.window_at = charged.window_at
                  WHERE record.project_id IS NOT NULL
                  GROUP BY 1, 2
                 ) AS counted ON counted.project_id = kept.project_id AND counted.month = kept.month
           WHERE coalesce(kept.spent_minor, 0) <> coalesce(counted.sum, 0)
             -- A month of which some windows are gone can't be computed again.
             AND coalesce(kept.month, counted.month)::timestamp AT TIME ZONE 'UTC' >= (SELECT coalesce(max(windows_since), '-infinity') FROM usage_kept)",
};

pub(super) const I16: Invariant = Invariant {
    name: "I16",
    holds: "a record begins at a step into active and ends at the step that ended it; nothing is metered after it was given back",
    sql: "SELECT 'usage ' || record.id || ' of allocation ' || record.allocation_id
            FROM usage_records AS record
            JOIN allocations AS allocation ON allocation.id = record.allocation_id
           WHERE record.opened_seq IS NOT NULL
             AND (NOT EXISTS (
                      SELECT 1
                        FROM lifecycle_log AS said
                       WHERE said.entity_id = record.allocation_id AND said.machine = 'allocation'
                         AND said.seq = record.opened_seq AND said.to_status = 'active' AND said.occurred_at = record.started_at)
                  OR (record.ended_at IS NOT NULL AND NOT EXISTS (
                      SELECT 1
                        FROM lifecycle_log AS said
                       WHERE said.entity_id = record.allocation_id AND said.machine = 'allocation'
                         AND said.seq > record.opened_seq AND said.to_status IN ('releasing', 'restart_failed')
                         AND said.occurred_at = record.ended_at))
                  OR coalesce(record.ended_at, record.started_at) > allocation.release_requested_at)",
};

pub(super) const I17: Invariant = Invariant {
    name: "I17",
    holds: "a credited session has one posting, of what was credited, which is what was asked for unless an operator answers for it",
    sql: "SELECT 'session ' || session.id || ' is ' || session.status
            FROM payment_sessions AS session
            LEFT JOIN LATERAL (
                 SELECT posting.id, entry.amount_minor
                   FROM ledger_postings AS posting
                   JOIN ledger_entries AS entry ON entry.posting_id = posting.id AND entry.book = 'tenant'
                  WHERE posting.kind = 'payment' AND posting.source_id = session.id
                 ) AS posted ON true
           WHERE (session.status = 'credited'
                  AND (posted.id IS DISTINCT FROM session.ledger_entry_id
                       OR posted.amount_minor IS DISTINCT FROM session.credited_amount_minor
                       OR (session.credited_amount_minor <> session.amount_minor
                           AND NOT EXISTS (
                               SELECT 1
                                 FROM lifecycle_log AS said
                                WHERE said.entity_id = session.id AND said.machine = 'payment_session'
                                  AND said.event = 'reconcile.resolved'))))
              OR (session.status <> 'credited' AND posted.id IS NOT NULL)",
};

/// Two minutes are allowed for the sweep.
pub(super) const I18: Invariant = Invariant {
    name: "I18",
    holds: "an account that is depleted has nothing running for longer than the grace",
    sql: "SELECT 'allocation ' || allocation.id || ' of account ' || account.id
            FROM accounts AS account
            JOIN projects AS project ON project.account_id = account.id
            JOIN allocations AS allocation ON allocation.project_id = project.id
           WHERE account.status = 'depleted'
             AND allocation.status IN ('active', 'restarting')
             AND allocation.price_micros_per_gpu_second > 0
             AND coalesce((SELECT value FROM policies WHERE key = 'billing.enforced'), 1) = 1
             AND greatest(account.status_at, allocation.status_at) < clock_timestamp() - interval '120 seconds'
                 - make_interval(secs => coalesce((SELECT value FROM policies WHERE key = 'billing.depletion_grace_seconds'), 0))",
};
