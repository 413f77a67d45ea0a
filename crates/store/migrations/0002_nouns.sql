-- Why: a table for every machine, with what its rules read and stamp. Later features add their own columns.
-- Old binary: none.
--
-- Every table of a machine has id, status, seq, status_at. Nobody writes the first status: it is the column's
-- default, and the trigger generated from the machine's table refuses any other.

CREATE TABLE nodes (
    id           uuid        PRIMARY KEY,
    status       text        NOT NULL DEFAULT 'enrolling',
    seq          bigint      NOT NULL DEFAULT 1,
    status_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    name         text        NOT NULL UNIQUE,
    region       text        NOT NULL,
    sku          text        NOT NULL,
    heartbeat_at timestamptz,
    reason       text,
    ended_at     timestamptz
);

CREATE TABLE slots (
    id         uuid     PRIMARY KEY,
    node_id    uuid     NOT NULL REFERENCES nodes,
    slot_index smallint NOT NULL,
    numa_node  smallint NOT NULL DEFAULT 0,
    UNIQUE (node_id, slot_index)
);

CREATE TABLE allocation_groups (
    id                   uuid        PRIMARY KEY,
    status               text        NOT NULL DEFAULT 'requested',
    seq                  bigint      NOT NULL DEFAULT 1,
    status_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    project_id           uuid        NOT NULL,
    release_requested_at timestamptz,
    ended_at             timestamptz
);

CREATE TABLE allocations (
    id                   uuid        PRIMARY KEY,
    status               text        NOT NULL DEFAULT 'requested',
    seq                  bigint      NOT NULL DEFAULT 1,
    status_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    project_id           uuid        NOT NULL,
    group_id             uuid        REFERENCES allocation_groups,
    required             boolean     NOT NULL DEFAULT true,
    operation_id         uuid        NOT NULL,
    sku                  text        NOT NULL,
    gpus                 smallint    NOT NULL CHECK (gpus > 0),
    active_at            timestamptz,
    release_requested_at timestamptz,
    reason               text,
    ended_at             timestamptz
) WITH (fillfactor = 80);

CREATE INDEX allocations_group ON allocations (group_id) WHERE group_id IS NOT NULL;

-- slot_id is null for a claim on the whole node.
CREATE TABLE claims (
    id            uuid        PRIMARY KEY,
    status        text        NOT NULL DEFAULT 'reserved',
    seq           bigint      NOT NULL DEFAULT 1,
    status_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid        NOT NULL REFERENCES allocations,
    node_id       uuid        NOT NULL REFERENCES nodes,
    slot_id       uuid        REFERENCES slots,
    operation_id  uuid,
    reason        text,
    ended_at      timestamptz
) WITH (fillfactor = 80);

-- Occupancy is derived from these two: at most one live claim on a slot, and on a whole node.
CREATE UNIQUE INDEX claims_live_slot ON claims (slot_id) WHERE slot_id IS NOT NULL AND status <> 'freed';
CREATE UNIQUE INDEX claims_live_node ON claims (node_id) WHERE slot_id IS NULL AND status <> 'freed';
CREATE INDEX claims_live_on_node ON claims (node_id) WHERE status <> 'freed';
CREATE INDEX claims_allocation ON claims (allocation_id);

CREATE TABLE node_tasks (
    id               uuid        PRIMARY KEY,
    status           text        NOT NULL DEFAULT 'queued',
    seq              bigint      NOT NULL DEFAULT 1,
    status_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    node_id          uuid        NOT NULL REFERENCES nodes,
    allocation_id    uuid        REFERENCES allocations,
    operation_id     uuid        NOT NULL,
    kind             text        NOT NULL,
    -- The number of the allocation's transition when the task was queued. Tasks of a later operation have a greater one,
    -- so an agent can refuse what is older than what it has begun.
    fence            bigint      NOT NULL,
    agent_id         uuid,
    dispatch         bigint      NOT NULL DEFAULT 0,
    dispatches_max   bigint      NOT NULL DEFAULT 3,
    dispatched_at    timestamptz,
    cleanup_complete boolean,
    reason           text,
    ended_at         timestamptz
) WITH (fillfactor = 80);

CREATE INDEX node_tasks_queued ON node_tasks (node_id, id) WHERE status = 'queued';
CREATE INDEX node_tasks_allocation ON node_tasks (allocation_id) WHERE allocation_id IS NOT NULL;

CREATE TABLE payment_sessions (
    id                    uuid        PRIMARY KEY,
    status                text        NOT NULL DEFAULT 'initiated',
    seq                   bigint      NOT NULL DEFAULT 1,
    status_at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    account_id            uuid        NOT NULL,
    amount_minor          bigint      NOT NULL CHECK (amount_minor > 0),
    currency              text        NOT NULL,
    completed_at          timestamptz,
    ledger_entry_id       uuid,
    credited_amount_minor bigint,
    reason                text,
    ended_at              timestamptz
);

CREATE TABLE terminal_sessions (
    id            uuid        PRIMARY KEY,
    status        text        NOT NULL DEFAULT 'opening',
    seq           bigint      NOT NULL DEFAULT 1,
    status_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid        NOT NULL REFERENCES allocations,
    operation_id  uuid        NOT NULL,
    opened_at     timestamptz,
    reason        text,
    ended_at      timestamptz
);

CREATE UNIQUE INDEX terminal_sessions_live ON terminal_sessions (allocation_id) WHERE status NOT IN ('closed', 'error');

CREATE TABLE storage_attachments (
    id            uuid        PRIMARY KEY,
    status        text        NOT NULL DEFAULT 'requested',
    seq           bigint      NOT NULL DEFAULT 1,
    status_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid        NOT NULL REFERENCES allocations,
    namespace_id  uuid        NOT NULL,
    operation_id  uuid        NOT NULL,
    mounted_at    timestamptz,
    reason        text,
    ended_at      timestamptz
);

CREATE TABLE usage_records (
    id            uuid        PRIMARY KEY,
    status        text        NOT NULL DEFAULT 'open',
    seq           bigint      NOT NULL DEFAULT 1,
    status_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid        NOT NULL REFERENCES allocations,
    started_at    timestamptz NOT NULL,
    ended_at      timestamptz
);

CREATE UNIQUE INDEX usage_records_open ON usage_records (allocation_id) WHERE status = 'open';

CREATE TABLE accounts (
    id                          uuid        PRIMARY KEY,
    status                      text        NOT NULL DEFAULT 'healthy',
    seq                         bigint      NOT NULL DEFAULT 1,
    status_at                   timestamptz NOT NULL DEFAULT clock_timestamp(),
    balance_minor               bigint      NOT NULL DEFAULT 0,
    low_balance_threshold_minor bigint      NOT NULL DEFAULT 1000
);
