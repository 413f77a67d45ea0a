//! What is compared, one query a kind of disagreement. Each answers (kind, subject, node_id, allocation_id, detail).
//! `$1` is the grace in seconds, `$2` the present moment; `told` is what the agents have last said they have, a row for each guest and lease.

/// A common table `seen` with every disagreement there is now.
pub(super) fn seen() -> String {
    format!("WITH {TOLD}, seen AS MATERIALIZED ({})", KINDS.join("\n UNION ALL "))
}

/// What the agents say. What a node of the past said is nobody's concern, and one that was never heard of has said nothing.
const TOLD: &str = "heard AS MATERIALIZED (
        SELECT id, name, heartbeat_at - make_interval(secs => $1) AS settled_at, inventory
          FROM nodes
         WHERE heartbeat_at IS NOT NULL AND inventory IS NOT NULL AND status <> 'retired'
     ), told AS MATERIALIZED (
        SELECT heard.id AS node_id, heard.name, heard.settled_at, list.what, (thing.said ->> 'allocation_id')::uuid AS allocation_id,
               CASE WHEN jsonb_typeof(thing.said -> 'slots') = 'array' THEN thing.said -> 'slots' ELSE '[]' END AS slots
          FROM heard
         CROSS JOIN LATERAL (VALUES ('guest', heard.inventory -> 'guests'), ('lease', heard.inventory -> 'leases')) AS list (what, things)
         CROSS JOIN LATERAL jsonb_array_elements(CASE WHEN jsonb_typeof(list.things) = 'array' THEN list.things END) AS thing (said)
     ), held AS MATERIALIZED (
        SELECT told.node_id, told.what, told.allocation_id, allocation.id IS NOT NULL AS known, allocation.status AS stands,
               claim.live, claim.aside,
               greatest(allocation.status_at, claim.moved_at) <= told.settled_at AS settled, told.name
          FROM told
          LEFT JOIN allocations AS allocation ON allocation.id = told.allocation_id
          LEFT JOIN LATERAL (
               SELECT count(*) FILTER (WHERE claims.status NOT IN ('freed', 'quarantined')) AS live,
                      count(*) FILTER (WHERE claims.status = 'quarantined') AS aside,
                      max(claims.status_at) AS moved_at
                 FROM claims
                WHERE claims.allocation_id = told.allocation_id AND claims.node_id = told.node_id
               ) AS claim ON true
     )";

const KINDS: &[&str] = &[
    UNKNOWN_ALLOCATION,
    GUEST_OF_ENDED,
    GUEST_WITHOUT_CLAIM,
    LEASE_WITHOUT_CLAIM,
    CLAIM_WITHOUT_GUEST,
    SLOT_OF_ANOTHER,
    UNKNOWN_SLOT,
    GPUS_DIFFER,
    TASK_OVER,
    USAGE_OF_NOBODY,
    USAGE_MISSING,
];

/// The database may have been restored from a backup that does not know it.
const UNKNOWN_ALLOCATION: &str = "SELECT DISTINCT 'unknown_allocation' AS kind,
            'node ' || node_id || ' allocation ' || allocation_id AS subject, node_id, allocation_id,
            name || ' has a ' || what || ' of allocation ' || allocation_id || ', which is not in the database' AS detail
       FROM held
      WHERE NOT known
        AND (what = 'guest' OR NOT EXISTS (
            SELECT 1
              FROM held AS guest
             WHERE guest.what = 'guest' AND guest.node_id = held.node_id AND guest.allocation_id = held.allocation_id))";

const GUEST_OF_ENDED: &str = "SELECT DISTINCT 'guest_of_ended', 'node ' || node_id || ' allocation ' || allocation_id, node_id,
            allocation_id,
            name || ' still runs a guest of allocation ' || allocation_id || ', which is ' || stands
                || CASE WHEN aside > 0 THEN '; what it held is set aside' ELSE '' END
       FROM held
      WHERE known AND what = 'guest' AND settled AND live = 0 AND stands IN ('released', 'failed')";

const GUEST_WITHOUT_CLAIM: &str = "SELECT DISTINCT 'guest_without_claim', 'node ' || node_id || ' allocation ' || allocation_id,
            node_id, allocation_id,
            name || ' runs a guest of allocation ' || allocation_id || ', which is ' || stands || ' and holds nothing there'
       FROM held
      WHERE known AND what = 'guest' AND settled AND live = 0 AND stands NOT IN ('released', 'failed')";

/// What is set aside may have its lease: the agent is told that it is over.
const LEASE_WITHOUT_CLAIM: &str = "SELECT DISTINCT 'lease_without_claim', 'node ' || node_id || ' allocation ' || allocation_id,
            node_id, allocation_id,
            name || ' has a lease of allocation ' || allocation_id || ', which is ' || stands || ' and holds nothing there'
       FROM held
      WHERE known AND what = 'lease' AND settled AND live = 0 AND aside = 0";

/// A report never frees anything: the claim stays, and somebody looks.
const CLAIM_WITHOUT_GUEST: &str = "SELECT 'claim_without_guest', 'node ' || claim.node_id || ' allocation ' || claim.allocation_id,
            claim.node_id, claim.allocation_id,
            'allocation ' || claim.allocation_id || ' is active on '
                || coalesce('slot ' || string_agg(slot.slot_index::text, ', ' ORDER BY slot.slot_index) || ' of ', 'all of ')
                || heard.name || ', where nothing runs for it'
       FROM claims AS claim
       JOIN allocations AS allocation ON allocation.id = claim.allocation_id AND allocation.status = 'active'
       JOIN heard ON heard.id = claim.node_id
       LEFT JOIN slots AS slot ON slot.id = claim.slot_id
      WHERE claim.status = 'held'
        AND greatest(claim.status_at, allocation.status_at) <= heard.settled_at
        AND NOT EXISTS (
            SELECT 1
              FROM told
             WHERE told.what = 'guest' AND told.node_id = claim.node_id AND told.allocation_id = claim.allocation_id
               AND (slot.id IS NULL OR told.slots = '[]' OR told.slots @> to_jsonb(slot.slot_index)))
      GROUP BY claim.node_id, claim.allocation_id, heard.name";

const SLOT_OF_ANOTHER: &str = "SELECT 'slot_of_another', 'claim ' || claim.id || ' allocation ' || told.allocation_id, claim.node_id,
            claim.allocation_id,
            coalesce('slot ' || slot.slot_index || ' of ', 'all of ') || told.name || ' is claimed by allocation '
                || claim.allocation_id || ' and occupied by a guest of allocation ' || told.allocation_id
       FROM told
       JOIN claims AS claim ON claim.node_id = told.node_id AND claim.status <> 'freed' AND claim.allocation_id <> told.allocation_id
       LEFT JOIN slots AS slot ON slot.id = claim.slot_id
      WHERE told.what = 'guest'
        AND (slot.id IS NULL OR told.slots = '[]' OR told.slots @> to_jsonb(slot.slot_index))
        AND claim.status_at <= told.settled_at";

const UNKNOWN_SLOT: &str = "SELECT DISTINCT 'unknown_slot', 'node ' || told.node_id || ' slot ' || named.slot, told.node_id,
            NULL::uuid, told.name || ' reports slot ' || named.slot || ', which its record does not have'
       FROM (
            SELECT node_id, name, slots FROM told
            UNION ALL
            SELECT heard.id, heard.name, (
                   SELECT coalesce(jsonb_agg(gpu.said -> 'index'), '[]')
                     FROM jsonb_array_elements(CASE WHEN jsonb_typeof(heard.inventory -> 'gpus') = 'array'
                                               THEN heard.inventory -> 'gpus' END) AS gpu (said))
              FROM heard
            ) AS told
      CROSS JOIN LATERAL jsonb_array_elements_text(told.slots) AS named (slot)
      WHERE NOT EXISTS (
            SELECT 1
              FROM slots
             WHERE slots.node_id = told.node_id AND slots.slot_index::text = named.slot)";

const GPUS_DIFFER: &str = "SELECT 'gpus_differ', 'node ' || heard.id, heard.id, NULL::uuid,
            heard.name || ' reports ' || jsonb_array_length(heard.inventory -> 'gpus') || ' GPUs, its record has '
                || record.slots || ' slots'
       FROM heard
      CROSS JOIN LATERAL (SELECT count(*) AS slots FROM slots WHERE slots.node_id = heard.id) AS record
      WHERE jsonb_typeof(heard.inventory -> 'gpus') = 'array'
        AND jsonb_array_length(heard.inventory -> 'gpus') <> record.slots";

const TASK_OVER: &str = "SELECT DISTINCT 'task_over', 'node ' || heard.id || ' task ' || running.task_id, heard.id, task.allocation_id,
            heard.name || ' works on task ' || running.task_id || ', which '
                || coalesce('is ' || task.status, 'is not in the database')
       FROM heard
      CROSS JOIN LATERAL jsonb_array_elements_text(CASE WHEN jsonb_typeof(heard.inventory -> 'running') = 'array'
                                                   THEN heard.inventory -> 'running' END) AS running (task_id)
       LEFT JOIN node_tasks AS task ON task.id = running.task_id::uuid
      WHERE task.id IS NULL
         OR (task.status IN ('succeeded', 'failed', 'cancelled', 'expired') AND task.status_at <= heard.settled_at)";

/// An open record whose allocation is in no status in which anybody pays.
const USAGE_OF_NOBODY: &str = "SELECT 'usage_of_nobody', 'usage ' || usage.id, NULL::uuid, usage.allocation_id,
            'allocation ' || usage.allocation_id || ' is ' || allocation.status || ' and is being charged'
       FROM usage_records AS usage
       JOIN allocations AS allocation ON allocation.id = usage.allocation_id
      WHERE usage.status = 'open'
        AND allocation.status NOT IN ('active', 'restarting')
        AND allocation.status_at <= $2 - make_interval(secs => $1)";

const USAGE_MISSING: &str =
    "SELECT 'usage_missing', 'allocation ' || allocation.id, NULL::uuid, allocation.id,
            'allocation ' || allocation.id || ' is active and is not being charged'
       FROM allocations AS allocation
      WHERE allocation.status = 'active'
        AND allocation.status_at <= $2 - make_interval(secs => $1)
        AND NOT EXISTS (
            SELECT 1
              FROM usage_records AS usage
             WHERE usage.allocation_id = allocation.id AND usage.status = 'open')";
