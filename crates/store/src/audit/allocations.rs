//! Invariants of allocations and what they hold: no slot twice, nothing freed without proof, nothing held by the dead.

use super::Invariant;

pub(super) const I01: Invariant = Invariant {
    name: "I01",
    holds: "a slot has at most one live claim",
    sql: "SELECT 'slot ' || slot_id
            FROM claims
           WHERE slot_id IS NOT NULL AND status <> 'freed'
           GROUP BY slot_id
          HAVING count(*) > 1",
};

pub(super) const I02: Invariant = Invariant {
    name: "I02",
    holds: "a node has at most one live claim on the whole of it, and then none on its slots",
    sql: "SELECT 'node ' || node_id
            FROM claims
           WHERE status <> 'freed'
           GROUP BY node_id
          HAVING count(*) FILTER (WHERE slot_id IS NULL) > 1
              OR (count(*) FILTER (WHERE slot_id IS NULL) = 1 AND count(*) > 1)",
};

/// A failed allocation keeps its claims while they are cleaned; a released one only those that an operator set aside. One
/// that is alive holds all that it was promised, until its release is completed.
pub(super) const I03: Invariant = Invariant {
    name: "I03",
    holds: "a live claim belongs to an allocation that is alive or being cleaned up after, and one that is alive has all its claims",
    sql: "SELECT 'claim ' || claims.id || ' is ' || claims.status || ' for an allocation that is ' || allocations.status
            FROM claims
            JOIN allocations ON allocations.id = claims.allocation_id
           WHERE claims.status <> 'freed'
             AND ((allocations.status = 'failed' AND claims.status IN ('reserved', 'held'))
               OR (allocations.status = 'released' AND claims.status <> 'quarantined')
               OR (allocations.status IN ('requested', 'provisioning', 'active', 'restarting', 'restart_failed')
                   AND claims.status NOT IN ('reserved', 'held')))
          UNION ALL
          SELECT 'allocation ' || allocations.id || ' is ' || allocations.status || ' and holds ' || held.claims
            FROM allocations
           CROSS JOIN LATERAL (
                 SELECT count(*) AS claims
                   FROM claims
                  WHERE claims.allocation_id = allocations.id AND claims.status <> 'freed'
                 ) AS held
           WHERE allocations.status NOT IN ('released', 'failed')
             AND held.claims <> CASE WHEN allocations.shape = 'baremetal' THEN 1 ELSE allocations.gpus END",
};

/// Whether one NUMA node would have sufficed can't be seen afterwards; the placement's own tests see to that.
pub(super) const I04: Invariant = Invariant {
    name: "I04",
    holds: "an allocation is on one node, a slice on as many slots as were asked for, a whole machine on no slot",
    sql: "SELECT 'allocation ' || allocations.id
            FROM allocations
            JOIN claims ON claims.allocation_id = allocations.id
            LEFT JOIN slots ON slots.id = claims.slot_id
           GROUP BY allocations.id
          HAVING count(DISTINCT claims.node_id) > 1
              OR bool_or(slots.node_id <> claims.node_id)
              OR bool_or((allocations.shape = 'baremetal') <> (claims.slot_id IS NULL))
              OR count(DISTINCT claims.slot_id) <> count(claims.slot_id)
              OR count(claims.slot_id) <> CASE WHEN allocations.shape = 'baremetal' THEN 0 ELSE allocations.gpus END",
};

pub(super) const I06: Invariant = Invariant {
    name: "I06",
    holds: "released means that the clean-up is proven, that nothing was ever handed to a node, or that an operator answers for it",
    sql: "SELECT 'allocation ' || allocations.id
            FROM allocations
           WHERE allocations.status = 'released'
             AND NOT EXISTS (
                 SELECT 1
                   FROM node_tasks AS task
                  WHERE task.allocation_id = allocations.id AND task.operation_id = allocations.operation_id
                    AND task.status = 'succeeded' AND task.cleanup_complete)
             AND EXISTS (
                 SELECT 1
                   FROM node_tasks AS task
                  WHERE task.allocation_id = allocations.id AND task.dispatch > 0)
             AND NOT EXISTS (
                 SELECT 1
                   FROM lifecycle_log AS said
                  WHERE said.entity_id = allocations.id AND said.machine = 'allocation'
                    AND said.event = 'release.abandoned')",
};

pub(super) const I07: Invariant = Invariant {
    name: "I07",
    holds: "what was freed was proven clean, was never touched, or was cleared by an operator",
    sql: "SELECT 'claim ' || claims.id
            FROM claims
           WHERE claims.status = 'freed'
             AND NOT EXISTS (
                 SELECT 1
                   FROM node_tasks AS task
                  WHERE task.allocation_id = claims.allocation_id AND task.operation_id = claims.operation_id
                    AND task.status = 'succeeded' AND task.cleanup_complete)
             AND EXISTS (
                 SELECT 1
                   FROM node_tasks AS task
                  WHERE task.allocation_id = claims.allocation_id AND task.dispatch > 0)
             AND NOT EXISTS (
                 SELECT 1
                   FROM lifecycle_log AS said
                  WHERE said.entity_id = claims.id AND said.machine = 'claim' AND said.event = 'claim.cleared')",
};

pub(super) const HINT: Invariant = Invariant {
    name: "HINT",
    holds: "what a node says is free is what its claims leave",
    sql: "SELECT 'node ' || nodes.id || ' says ' || nodes.free_slots || ' and ' || nodes.free_numa_max
                 || ', its claims leave ' || truth.in_all || ' and ' || truth.on_one
            FROM nodes
           CROSS JOIN LATERAL (
                 SELECT CASE WHEN nodes.whole THEN counted.untouched ELSE counted.in_all END AS in_all,
                        CASE WHEN nodes.whole THEN counted.untouched ELSE counted.on_one END AS on_one
                   FROM (
                        SELECT coalesce(sum(per_numa.free), 0) AS in_all,
                               coalesce(max(per_numa.free), 0) AS on_one,
                               (NOT EXISTS (
                                   SELECT 1
                                     FROM claims
                                    WHERE claims.node_id = nodes.id AND claims.status <> 'freed'))::int AS untouched
                          FROM (
                               SELECT count(*) AS free
                                 FROM slots
                                WHERE slots.node_id = nodes.id
                                  AND NOT EXISTS (
                                      SELECT 1
                                        FROM claims
                                       WHERE claims.node_id = nodes.id AND claims.status <> 'freed'
                                         AND (claims.slot_id IS NULL OR claims.slot_id = slots.id))
                                GROUP BY slots.numa_node
                               ) AS per_numa
                        ) AS counted
                 ) AS truth
           WHERE (nodes.free_slots, nodes.free_numa_max) <> (truth.in_all, truth.on_one)",
};

/// What an agent reports may be older than the end of a claim, so only a heartbeat that is newer by half a minute counts.
pub(super) const GUESTS: Invariant = Invariant {
    name: "GUESTS",
    holds: "nothing runs on a node for an allocation that holds nothing there",
    sql: "SELECT 'node ' || nodes.id || ' runs allocation ' || (guest.told ->> 'allocation_id')
            FROM nodes
           CROSS JOIN LATERAL jsonb_array_elements(
                 CASE WHEN jsonb_typeof(nodes.inventory -> 'guests') = 'array' THEN nodes.inventory -> 'guests' END
                 ) AS guest (told)
           WHERE nodes.status = 'ready'
             AND NOT EXISTS (
                 SELECT 1
                   FROM claims
                  WHERE claims.allocation_id::text = guest.told ->> 'allocation_id' AND claims.node_id = nodes.id
                    AND (claims.status <> 'freed' OR claims.ended_at > nodes.heartbeat_at - interval '30 seconds'))",
};
