-- Why: every step keeps its reason; every deed of a person has an entry that can't be changed unnoticed; operators turn
-- policies at run time; groups and what is bound to them have names; what does not agree with the fleet is written down.
-- Old binary: writes log records without a reason, and no entries. Everything that is added is optional to it.

-- Why this step was taken: a stable word. The row keeps only the newest.
ALTER TABLE lifecycle_log ADD COLUMN reason text;

-- The boot that the node was in when the task was queued, as it had told: a reboot is proven by another one.
ALTER TABLE node_tasks ADD COLUMN boot_id uuid;

-- When it said what it has, by the clock that stamps every status: it speaks of nothing that came after.
ALTER TABLE nodes ADD COLUMN inventory_at timestamptz;

-- A run that is taken up again is named by how many there were.
DROP INDEX workflow_runs_entity;
CREATE INDEX workflow_runs_entity ON workflow_runs (entity_id);

-- Who did what to what, in the transaction that did it.
CREATE TABLE audit_entries (
    id          uuid        PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The user; null when nobody could be told.
    user_id     uuid,
    token_id    uuid,
    -- 'user', 'operator', 'agent', 'system'
    role        text        NOT NULL,
    -- What was done: a stable word, like 'allocation.release'.
    action      text        NOT NULL,
    -- To what: a kind and an identity, or a name where there is none.
    target_kind text        NOT NULL,
    target      text        NOT NULL,
    project_id  uuid,
    -- 'done', 'refused', 'denied'
    outcome     text        NOT NULL,
    -- Why, as they said it; or what changed, as words of ours.
    reason      text,
    detail      jsonb       NOT NULL DEFAULT '{}',
    request_id  uuid,
    source      text
);

CREATE INDEX audit_entries_target ON audit_entries (target, at);
CREATE INDEX audit_entries_user ON audit_entries (user_id, at);
CREATE INDEX audit_entries_project ON audit_entries (project_id, at) WHERE project_id IS NOT NULL;
CREATE INDEX audit_entries_at ON audit_entries (at, id);

-- Entries that have no link yet. A chain that every mutation had to lock would make all of them queue up, so entries are
-- written freely and linked a moment later.
CREATE TABLE audit_unlinked (
    entry_id uuid PRIMARY KEY
);

-- The chain: each link holds the hash of its entry and of the link before it. To change an entry unnoticed, every later
-- link has to be changed too.
CREATE TABLE audit_links (
    position bigint      PRIMARY KEY CHECK (position >= 1),
    entry_id uuid        NOT NULL UNIQUE,
    hash     bytea       NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_links
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

-- Policies that are not at their default.
CREATE TABLE policies (
    key        text        PRIMARY KEY,
    value      bigint      NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by uuid
);

ALTER TABLE allocation_groups
    ADD COLUMN name                 text,
    ADD COLUMN owner_id             uuid,
    ADD COLUMN created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The last wish to release what is left of it, whose it is, and when every member was asked. Pending in between.
    ADD COLUMN release_id           uuid,
    ADD COLUMN release_by           uuid,
    ADD COLUMN release_noted_at     timestamptz,
    ADD COLUMN release_passed_on_at timestamptz;

CREATE INDEX allocation_groups_pending ON allocation_groups (release_noted_at)
    WHERE release_id IS NOT NULL AND release_passed_on_at IS NULL;

CREATE INDEX allocation_groups_project ON allocation_groups (project_id, id);

-- An application of a tenant, bound to an allocation or to a group. Topology and the roles of members are its own.
CREATE TABLE app_instances (
    id            uuid        PRIMARY KEY,
    project_id    uuid        NOT NULL REFERENCES projects,
    owner_id      uuid        NOT NULL,
    name          text        NOT NULL,
    app           text        NOT NULL,
    allocation_id uuid        REFERENCES allocations,
    group_id      uuid        REFERENCES allocation_groups,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    CONSTRAINT app_instances_bound CHECK ((allocation_id IS NULL) <> (group_id IS NULL))
);

CREATE INDEX app_instances_project ON app_instances (project_id, id);
CREATE INDEX app_instances_allocation ON app_instances (allocation_id) WHERE allocation_id IS NOT NULL;
CREATE INDEX app_instances_group ON app_instances (group_id) WHERE group_id IS NOT NULL;

CREATE TABLE app_instance_members (
    app_instance_id uuid NOT NULL REFERENCES app_instances,
    allocation_id   uuid NOT NULL REFERENCES allocations,
    role            text NOT NULL,
    PRIMARY KEY (app_instance_id, allocation_id)
);

-- Something that does not agree: the database with a node, or with itself. Written down by who noticed it, closed when it
-- is noticed no more; nothing is mended silently.
CREATE TABLE findings (
    id            uuid        PRIMARY KEY,
    -- What sort of disagreement: a stable word.
    kind          text        NOT NULL,
    -- What it is about, so that the same disagreement is one finding as long as it lasts.
    subject       text        NOT NULL,
    node_id       uuid        REFERENCES nodes,
    allocation_id uuid,
    detail        text        NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at     timestamptz
);

CREATE UNIQUE INDEX findings_open ON findings (kind, subject) WHERE closed_at IS NULL;
CREATE INDEX findings_closed ON findings (closed_at) WHERE closed_at IS NOT NULL;

-- What waits for somebody: the stuck list reads these. Live tasks have an index of their own already.
CREATE INDEX claims_waiting ON claims (status, status_at) WHERE status NOT IN ('held', 'freed');
CREATE INDEX allocation_groups_waiting ON allocation_groups (status, status_at) WHERE status NOT IN ('active', 'released', 'failed');

-- What a task was for, so that how long such tasks take is found by an index, whatever the history.
ALTER TABLE node_tasks
    ADD COLUMN sku         text,
    ADD COLUMN image       text,
    -- How many phases were told: the position of the last one.
    ADD COLUMN phases_told bigint NOT NULL DEFAULT 0;

UPDATE node_tasks
   SET sku = allocations.sku, image = allocations.image
  FROM allocations
 WHERE allocations.id = node_tasks.allocation_id;

-- The oldest first, not in the order of identities that are derived from names.
DROP INDEX node_tasks_queued;
CREATE INDEX node_tasks_queued ON node_tasks (node_id, created_at, id) WHERE status = 'queued';

CREATE INDEX node_tasks_learnt ON node_tasks (kind, sku, image, ended_at)
    WHERE status = 'succeeded' AND cleanup_complete IS NOT FALSE;
CREATE INDEX allocations_learnt ON allocations (sku, image, active_at) WHERE active_at IS NOT NULL;

-- Where a phase stands among all that were told of its task, in the order of their commits: who has seen one has seen all
-- before it. What an older binary adds has no position, and is in the timeline but not in the stream.
ALTER TABLE node_task_events ADD COLUMN position bigint NOT NULL DEFAULT 0;
ALTER TABLE node_task_events DISABLE TRIGGER append_only;
UPDATE node_task_events
   SET position = counted.position
  FROM (
        SELECT task_id, dispatch, seq, row_number() OVER (PARTITION BY task_id ORDER BY dispatch, seq) AS position
          FROM node_task_events
       ) AS counted
 WHERE node_task_events.task_id = counted.task_id
   AND node_task_events.dispatch = counted.dispatch
   AND node_task_events.seq = counted.seq;
ALTER TABLE node_task_events ENABLE TRIGGER append_only;
UPDATE node_tasks
   SET phases_told = (SELECT count(*) FROM node_task_events WHERE task_id = node_tasks.id);
CREATE INDEX node_task_events_position ON node_task_events (task_id, position);
