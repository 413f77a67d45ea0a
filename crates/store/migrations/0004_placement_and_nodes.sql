-- Why: nodes can be found without looking at the fleet, agents have identities, allocations know what was agreed.
-- Old binary: none has run outside a test.

-- How much of a ready node is free: a hint that is kept in the transaction that changes a claim, so that it is exact.
-- For a whole machine it is 1 or 0. `free_numa_max` is the most that is free on one of its NUMA nodes.
ALTER TABLE nodes
    ADD COLUMN whole         boolean  NOT NULL DEFAULT false,
    ADD COLUMN free_slots    smallint NOT NULL DEFAULT 0,
    ADD COLUMN free_numa_max smallint NOT NULL DEFAULT 0,
    ADD COLUMN boot_id       uuid,
    ADD COLUMN agent_version text,
    -- What the agent reported last: GPUs, guests, running tasks.
    ADD COLUMN inventory     jsonb;

CREATE INDEX nodes_free ON nodes (sku, region, free_slots, free_numa_max, id) WHERE status = 'ready' AND free_slots > 0;
-- Who has fallen silent is found from the oldest heartbeat on.
CREATE INDEX nodes_heartbeat ON nodes (heartbeat_at) WHERE status = 'ready';

-- The images at hand on a node.
CREATE TABLE node_images (
    node_id uuid NOT NULL REFERENCES nodes,
    image   text NOT NULL,
    PRIMARY KEY (node_id, image)
);

-- An agent is one enrolment of a node; its certificates come and go, it stays until the node is enrolled anew.
CREATE TABLE node_agents (
    id         uuid        PRIMARY KEY,
    node_id    uuid        NOT NULL REFERENCES nodes,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);

CREATE UNIQUE INDEX node_agents_live ON node_agents (node_id) WHERE revoked_at IS NULL;
CREATE INDEX node_agents_revoked ON node_agents (revoked_at) WHERE revoked_at IS NOT NULL;

CREATE TABLE node_certificates (
    -- SHA-256 of the certificate.
    fingerprint bytea       PRIMARY KEY,
    agent_id    uuid        NOT NULL REFERENCES node_agents,
    not_after   timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX node_certificates_agent ON node_certificates (agent_id, not_after);

CREATE TABLE join_tokens (
    id          uuid        PRIMARY KEY,
    node_id     uuid        NOT NULL REFERENCES nodes,
    secret_hash bytea       NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz NOT NULL,
    used_at     timestamptz
);

CREATE INDEX join_tokens_unused ON join_tokens (node_id) WHERE used_at IS NULL;

ALTER TABLE allocations
    ADD COLUMN name                        text,
    ADD COLUMN owner_id                    uuid,
    ADD COLUMN region                      text     NOT NULL DEFAULT '',
    ADD COLUMN image                       text     NOT NULL DEFAULT '',
    ADD COLUMN shape                       text     NOT NULL DEFAULT 'gpu_slice',
    ADD COLUMN price_micros_per_gpu_second bigint   NOT NULL DEFAULT 0,
    ADD COLUMN currency                    text     NOT NULL DEFAULT '',
    ADD COLUMN ssh_keys                    text[]   NOT NULL DEFAULT '{}',
    -- How it is reached, once something is there to reach.
    ADD COLUMN access                      jsonb,
    ADD COLUMN created_at                  timestamptz NOT NULL DEFAULT clock_timestamp();

CREATE INDEX allocations_project ON allocations (project_id, id);
-- What waits for somebody. Small, because nothing rests in it.
CREATE INDEX allocations_waiting ON allocations (status, status_at) WHERE status NOT IN ('active', 'released', 'failed');

ALTER TABLE node_tasks
    ADD COLUMN params      jsonb NOT NULL DEFAULT '{}',
    -- The workflow that waits for it.
    ADD COLUMN run_id      text,
    ADD COLUMN created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- After this nobody need do it any more.
    ADD COLUMN deadline_at timestamptz,
    -- Until when the agent that holds it is believed to be at it.
    ADD COLUMN lease_until timestamptz,
    -- What was signed for the present dispatch.
    ADD COLUMN envelope    text,
    ADD COLUMN signature   text,
    -- How it ended, as the agent told it.
    ADD COLUMN result      jsonb;

CREATE INDEX node_tasks_lease ON node_tasks (lease_until) WHERE status = 'dispatched';
CREATE INDEX node_tasks_deadline ON node_tasks (deadline_at) WHERE status IN ('queued', 'dispatched');

-- Phases as the agent streams them.
CREATE TABLE node_task_events (
    task_id     uuid        NOT NULL REFERENCES node_tasks,
    dispatch    bigint      NOT NULL,
    seq         integer     NOT NULL,
    phase       text        NOT NULL,
    -- How the phase stands. Not a status: nothing moves here, reports are added.
    stands      text        NOT NULL,
    -- By the node's clock, and by ours.
    at          timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, dispatch, seq)
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON node_task_events
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

-- The proof a tenant can take home.
CREATE TABLE release_receipts (
    allocation_id uuid        PRIMARY KEY REFERENCES allocations,
    document      text        NOT NULL,
    signature     text        NOT NULL,
    public_key    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON release_receipts
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

-- Writes down how much of a node is free, from its claims. The lock comes first and the count in a statement of its own,
-- so that it sees what was committed while it waited.
CREATE FUNCTION count_free(of_node uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM nodes WHERE id = of_node FOR NO KEY UPDATE;
    WITH claimed AS (
        SELECT slot_id FROM claims WHERE node_id = of_node AND status <> 'freed'
    ), free AS (
        SELECT slots.numa_node, count(*) AS slots
          FROM slots
         WHERE slots.node_id = of_node
           AND NOT EXISTS (SELECT 1 FROM claimed WHERE claimed.slot_id IS NULL OR claimed.slot_id = slots.id)
         GROUP BY slots.numa_node
    ), counted AS (
        SELECT NOT EXISTS (SELECT 1 FROM claimed) AS untouched,
               coalesce((SELECT sum(slots) FROM free), 0) AS in_all,
               coalesce((SELECT max(slots) FROM free), 0) AS on_one
    )
    UPDATE nodes
       SET free_slots = CASE WHEN whole THEN untouched::int ELSE in_all END,
           free_numa_max = CASE WHEN whole THEN untouched::int ELSE on_one END
      FROM counted
     WHERE nodes.id = of_node;
END;
$$;

-- A claim that comes or goes changes what is free, and so does a slot that is added; a claim that moves otherwise does not.
CREATE FUNCTION count_free_of_new() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_free(node_id) FROM (SELECT DISTINCT node_id FROM changed ORDER BY node_id) AS touched;
    RETURN NULL;
END;
$$;

CREATE FUNCTION count_free_of_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM count_free(node_id)
       FROM (
            SELECT DISTINCT changed.node_id
              FROM changed
              JOIN former ON former.id = changed.id
             WHERE (changed.status = 'freed') <> (former.status = 'freed')
             ORDER BY changed.node_id
       ) AS touched;
    RETURN NULL;
END;
$$;

CREATE TRIGGER count_free_of_new AFTER INSERT ON claims
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_new();
CREATE TRIGGER count_free_of_moved AFTER UPDATE ON claims
    REFERENCING OLD TABLE AS former NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_moved();

CREATE TRIGGER count_free_of_new AFTER INSERT ON slots
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_new();

-- Finds and locks the node on which `wanted` slots fit best: on one NUMA node first, then with the fewest left over, then
-- by a stable order. Every probe is one look into an index, and there are at most two for each count of free slots,
-- whatever the fleet's size.
--
-- Nodes that others are looking at are passed by. Only if nothing else is left does it wait for them, one by one, and then
-- any node with enough will do: what it waits for may come back with less than it had, and still be enough.
--
-- Each look is undone when it comes to nothing, because Postgres keeps the lock of a row that has changed and no longer
-- fits, and two who wait with such locks in their hands would wait for each other.
CREATE FUNCTION pick_node(in_region text, of_sku text, with_image text, wanted smallint)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    most      smallint;
    found_id  uuid;
    candidate uuid;
BEGIN
    SELECT free_slots INTO most
      FROM nodes
     WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
     ORDER BY free_slots DESC
     LIMIT 1;
    IF most IS NULL OR most < wanted THEN
        RETURN NULL;
    END IF;
    BEGIN
        FOR free IN wanted..most LOOP
            SELECT id INTO found_id
              FROM nodes
             WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
               AND free_slots = free AND free_numa_max >= wanted
               AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
             ORDER BY free_numa_max, id
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
        END LOOP;
        FOR free IN wanted..most LOOP
            SELECT id INTO found_id
              FROM nodes
             WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
               AND free_slots = free AND free_numa_max < wanted
               AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
             ORDER BY free_numa_max DESC, id
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
        END LOOP;
        RAISE EXCEPTION 'nothing was found' USING ERRCODE = 'BT010';
    EXCEPTION WHEN SQLSTATE 'BT010' THEN
        NULL;
    END;
    FOR candidate IN
        SELECT id
          FROM nodes
         WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
           AND free_slots >= wanted
           AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
         ORDER BY free_slots, free_numa_max, id
    LOOP
        BEGIN
            PERFORM 1 FROM nodes WHERE id = candidate FOR NO KEY UPDATE;
            SELECT id INTO found_id FROM nodes WHERE id = candidate AND status = 'ready' AND free_slots >= wanted;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
            RAISE EXCEPTION 'somebody else took it' USING ERRCODE = 'BT010';
        EXCEPTION WHEN SQLSTATE 'BT010' THEN
            NULL;
        END;
    END LOOP;
    RETURN NULL;
END;
$$;
