//! Invariants of groups and of what is bound to them.

use super::Invariant;

/// The fold of `domain::derived::allocation_group`, told a second time by another hand.
pub(super) const I21: Invariant = Invariant {
    name: "I21",
    holds: "a group stands where its members and the wish to release it put it",
    sql: "SELECT 'group ' || grouped.id || ' is ' || grouped.status || ', its members make it ' || told.status
            FROM allocation_groups AS grouped
           CROSS JOIN LATERAL (
                 SELECT count(*) AS members,
                        count(*) FILTER (WHERE status IN ('released', 'failed')) AS ended,
                        count(*) FILTER (WHERE status = 'release_failed') AS left_behind
                   FROM allocations
                  WHERE group_id = grouped.id
                 ) AS every
           CROSS JOIN LATERAL (
                 SELECT count(*) AS members,
                        count(*) FILTER (WHERE status = 'failed') AS failed,
                        count(*) FILTER (WHERE status IN ('releasing', 'release_failed', 'released', 'failed')) AS going,
                        count(*) FILTER (WHERE status = 'requested') AS untouched,
                        count(*) FILTER (WHERE status IN ('requested', 'provisioning')) AS coming,
                        count(*) FILTER (WHERE status IN ('active', 'restarting')) AS usable
                   FROM allocations
                  WHERE group_id = grouped.id
                    AND (required OR NOT EXISTS (
                        SELECT 1 FROM allocations AS other WHERE other.group_id = grouped.id AND other.required))
                 ) AS needed
           CROSS JOIN LATERAL (
                 SELECT CASE
                        WHEN every.members = 0 AND grouped.release_requested_at IS NULL THEN 'requested'
                        WHEN grouped.release_requested_at IS NULL AND needed.failed = needed.members THEN 'failed'
                        WHEN grouped.release_requested_at IS NOT NULL OR needed.going = needed.members THEN
                             CASE
                             WHEN every.ended = every.members THEN 'released'
                             WHEN every.ended + every.left_behind = every.members THEN 'release_failed'
                             ELSE 'releasing'
                             END
                        WHEN needed.untouched = needed.members THEN 'requested'
                        WHEN needed.coming > 0 THEN 'provisioning'
                        WHEN needed.usable = needed.members THEN 'active'
                        ELSE 'degraded'
                        END AS status
                 ) AS told
           WHERE grouped.status <> told.status",
};

pub(super) const APPS: Invariant = Invariant {
    name: "APPS",
    holds: "what has a role in an app instance is what the instance is bound to, or a member of it",
    sql: "SELECT 'app instance ' || instance.id || ' gives allocation ' || part.allocation_id || ' a role'
            FROM app_instances AS instance
            JOIN app_instance_members AS part ON part.app_instance_id = instance.id
            JOIN allocations ON allocations.id = part.allocation_id
           WHERE part.allocation_id IS DISTINCT FROM instance.allocation_id
             AND (instance.group_id IS NULL OR allocations.group_id IS DISTINCT FROM instance.group_id)
          UNION ALL
          SELECT 'app instance ' || instance.id || ' is bound to something of another project'
            FROM app_instances AS instance
            LEFT JOIN allocations ON allocations.id = instance.allocation_id
            LEFT JOIN allocation_groups AS grouped ON grouped.id = instance.group_id
           WHERE coalesce(allocations.project_id, grouped.project_id) IS DISTINCT FROM instance.project_id",
};
