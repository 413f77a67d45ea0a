//! Invariants of records and of what travels: every step is a rule's, every message arrives, nothing waits for nobody.

use super::Invariant;

pub(super) const I05: Invariant = Invariant {
    name: "I05",
    holds: "every recorded step is one of its machine, steps are numbered without a gap, and a row stands where its last step left it",
    sql: "SELECT said.machine || ' ' || said.entity_id || ' step ' || said.seq || ': ' || said.event
            FROM lifecycle_log AS said
           WHERE NOT EXISTS (
                 SELECT 1
                   FROM edges
                  WHERE edges.machine = said.machine AND edges.event = said.event
                    AND edges.source IS NOT DISTINCT FROM said.from_status AND edges.target = said.to_status)
          UNION ALL
          SELECT chain.machine || ' ' || chain.entity_id || ' step ' || chain.seq || ' does not follow'
            FROM (
                 SELECT machine, entity_id, seq, from_status,
                        lag(seq) OVER steps AS last_seq,
                        lag(to_status) OVER steps AS last_status
                   FROM lifecycle_log
                 WINDOW steps AS (PARTITION BY machine, entity_id ORDER BY seq)
                 ) AS chain
           WHERE chain.seq <> coalesce(chain.last_seq, 0) + 1
              OR chain.from_status IS DISTINCT FROM chain.last_status
          UNION ALL
          SELECT stands.machine || ' ' || stands.id || ' stands at ' || stands.status || ' (' || stands.seq || ')'
            FROM (
                 SELECT 'allocation' AS machine, id, status, seq FROM allocations
                 UNION ALL SELECT 'allocation_group', id, status, seq FROM allocation_groups
                 UNION ALL SELECT 'claim', id, status, seq FROM claims
                 UNION ALL SELECT 'node', id, status, seq FROM nodes
                 UNION ALL SELECT 'node_task', id, status, seq FROM node_tasks
                 UNION ALL SELECT 'payment_session', id, status, seq FROM payment_sessions
                 UNION ALL SELECT 'terminal_session', id, status, seq FROM terminal_sessions
                 UNION ALL SELECT 'storage_attachment', id, status, seq FROM storage_attachments
                 UNION ALL SELECT 'usage_record', id, status, seq FROM usage_records
                 UNION ALL SELECT 'balance', id, status, seq FROM accounts
                 ) AS stands
           WHERE NOT EXISTS (
                 SELECT 1
                   FROM lifecycle_log AS said
                  WHERE said.entity_id = stands.id AND said.machine = stands.machine
                    AND said.seq = stands.seq AND said.to_status = stands.status)",
};

/// Messages are kept for a day after they were published, so the last hour has all of its own.
pub(super) const I08: Invariant = Invariant {
    name: "I08",
    holds: "every step that is to be made known has its message, and no message waits for longer than a minute",
    sql: "SELECT 'message ' || id || ' (' || subject || ') is not published'
            FROM outbox_events
           WHERE published_at IS NULL AND occurred_at < clock_timestamp() - interval '60 seconds'
          UNION ALL
          SELECT said.machine || ' ' || said.entity_id || ' step ' || said.seq || ' has no message ' || topics.topic
            FROM lifecycle_log AS said
            JOIN topics ON topics.machine = said.machine AND topics.event = said.event
           WHERE said.occurred_at > clock_timestamp() - interval '1 hour'
             AND NOT EXISTS (
                 SELECT 1
                   FROM outbox_events AS message
                  WHERE message.entity_id = said.entity_id AND message.seq = said.seq
                    AND message.machine = said.machine AND message.subject = topics.topic)",
};

pub(super) const I09: Invariant = Invariant {
    name: "I09",
    holds: "a consumer has handled a message at most once",
    sql: "SELECT consumer || ' ' || event_id
            FROM consumed_events
           GROUP BY consumer, event_id
          HAVING count(*) > 1",
};

pub(super) const I10: Invariant = Invariant {
    name: "I10",
    holds: "a task is in the hands of one agent of its node, for as long as is believed of it, or in nobody's",
    sql: "SELECT 'task ' || task.id || ' is ' || task.status
            FROM node_tasks AS task
            LEFT JOIN node_agents AS agent ON agent.id = task.agent_id
           WHERE (task.status = 'queued' AND task.agent_id IS NOT NULL)
              OR (task.status = 'dispatched'
                  AND (task.agent_id IS NULL OR task.lease_until IS NULL OR task.dispatch NOT BETWEEN 1 AND task.dispatches_max))
              OR agent.node_id <> task.node_id
          UNION ALL
          SELECT 'task ' || task.id || ' has a phase of dispatch ' || event.dispatch
            FROM node_task_events AS event
            JOIN node_tasks AS task ON task.id = event.task_id
           WHERE event.dispatch NOT BETWEEN 1 AND task.dispatch
          UNION ALL
          SELECT 'task ' || said.entity_id || ' has ended ' || count(*) || ' times'
            FROM lifecycle_log AS said
           WHERE said.machine = 'node_task' AND said.to_status IN ('succeeded', 'failed', 'cancelled', 'expired')
           GROUP BY said.entity_id
          HAVING count(*) > 1",
};

/// Whether the signature is ours is for whoever has the keys to say.
pub(super) const I11: Invariant = Invariant {
    name: "I11",
    holds: "a task is for the node that its allocation was placed on, and what was handed out was signed",
    sql: "SELECT 'task ' || task.id
            FROM node_tasks AS task
           WHERE (task.allocation_id IS NOT NULL
                  AND NOT EXISTS (
                      SELECT 1
                        FROM claims
                       WHERE claims.allocation_id = task.allocation_id AND claims.node_id = task.node_id))
              OR (task.status = 'dispatched' AND (task.envelope IS NULL OR task.signature IS NULL))",
};

pub(super) const I22: Invariant = Invariant {
    name: "I22",
    holds: "a key has one answer, which is a success, to a request that is known by its fingerprint",
    sql: "SELECT route || ' ' || key || ' of ' || principal
            FROM idempotency_keys
           GROUP BY principal, route, key
          HAVING count(*) > 1
              OR bool_or(octet_length(fingerprint) <> 32)
              OR bool_or(http_status NOT BETWEEN 200 AND 299)
              OR bool_or(http_status IS NULL AND body IS NOT NULL)",
};

/// A second is allowed for a clock that was set back.
pub(super) const I25: Invariant = Invariant {
    name: "I25",
    holds: "moments follow each other as their events do, and a release ends after the work for it",
    sql: "SELECT 'allocation ' || id
            FROM allocations
           WHERE active_at < created_at - interval '1 second'
              OR release_requested_at < greatest(created_at, active_at) - interval '1 second'
              OR ended_at < greatest(created_at, active_at, release_requested_at) - interval '1 second'
          UNION ALL
          SELECT 'task ' || id
            FROM node_tasks
           WHERE dispatched_at < created_at - interval '1 second'
              OR ended_at < greatest(created_at, dispatched_at) - interval '1 second'
          UNION ALL
          SELECT 'allocation ' || allocations.id || ' ended before task ' || task.id
            FROM allocations
            JOIN node_tasks AS task ON task.allocation_id = allocations.id
           WHERE allocations.status = 'released' AND task.ended_at > allocations.ended_at + interval '1 second'
          UNION ALL
          SELECT chain.machine || ' ' || chain.entity_id || ' step ' || chain.seq
            FROM (
                 SELECT machine, entity_id, seq, occurred_at,
                        lag(occurred_at) OVER (PARTITION BY machine, entity_id ORDER BY seq) AS last_at
                   FROM lifecycle_log
                 ) AS chain
           WHERE chain.occurred_at < chain.last_at - interval '1 second'",
};

/// What nobody is at is taken up by a sweep within half a minute; after two minutes nobody did.
pub(super) const I26: Invariant = Invariant {
    name: "I26",
    holds: "whatever waits has a run that is at it, a message on its way, or is due to be taken up",
    sql: "SELECT 'allocation ' || allocations.id || ' is ' || allocations.status
            FROM allocations
           WHERE allocations.status IN ('requested', 'provisioning', 'releasing', 'restarting')
             AND allocations.status_at < clock_timestamp() - interval '120 seconds'
             AND NOT EXISTS (
                 SELECT 1
                   FROM workflow_runs
                  WHERE workflow_runs.entity_id = allocations.id AND workflow_runs.done_at IS NULL)
             AND NOT EXISTS (
                 SELECT 1
                   FROM outbox_events
                  WHERE outbox_events.entity_id = allocations.id AND outbox_events.published_at IS NULL)
             AND NOT EXISTS (
                 SELECT 1
                   FROM bus_deliveries
                  WHERE bus_deliveries.entity_id = allocations.id AND bus_deliveries.dead_at IS NULL)
          UNION ALL
          SELECT 'claim ' || claims.id || ' is cleaning'
            FROM claims
           WHERE claims.status = 'cleaning'
             AND claims.status_at < clock_timestamp() - interval '120 seconds'
             AND NOT EXISTS (
                 SELECT 1
                   FROM workflow_runs
                  WHERE workflow_runs.entity_id = claims.allocation_id AND workflow_runs.done_at IS NULL)
          UNION ALL
          SELECT 'group ' || grouped.id || ' has a release that nobody passes on'
            FROM allocation_groups AS grouped
           WHERE grouped.release_id IS NOT NULL AND grouped.release_passed_on_at IS NULL
             AND grouped.release_noted_at < clock_timestamp() - interval '120 seconds'
             AND NOT EXISTS (
                 SELECT 1
                   FROM workflow_runs
                  WHERE workflow_runs.entity_id = grouped.id AND workflow_runs.done_at IS NULL)
          UNION ALL
          SELECT 'run ' || id || ' waits for nothing'
            FROM workflow_runs
           WHERE done_at IS NULL AND wake_at IS NULL AND pending = '[]'",
};
