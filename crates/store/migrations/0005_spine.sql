-- Why: the embedded bus and the embedded workflow engine rest in the database.
-- Old binary: none has run outside a test.

-- The order in which facts were written down. Identities are made by processes, whose clocks differ; this is counted here,
-- while the row it is about is locked, so that of two facts about one row the later one always has the greater number. It
-- has gaps, and numbers become visible out of order: nobody may read on from the last one seen.
ALTER TABLE outbox_events
    ADD COLUMN position bigint GENERATED ALWAYS AS IDENTITY;

DROP INDEX outbox_events_unpublished;
CREATE INDEX outbox_events_unpublished ON outbox_events (position) WHERE published_at IS NULL;

-- One message on its way to one consumer. Gone when it was handled; dead when it could not be.
CREATE TABLE bus_deliveries (
    consumer   text        NOT NULL,
    event_id   uuid        NOT NULL,
    -- Messages about one row reach a consumer in order.
    entity_id  uuid        NOT NULL,
    seq        bigint      NOT NULL,
    message    jsonb       NOT NULL,
    -- Begun, not failed: also those that nobody lived to tell of.
    attempts   integer     NOT NULL DEFAULT 0,
    -- Who begins an attempt moves it ahead, so that somebody else tries if nothing is heard.
    due_at     timestamptz NOT NULL,
    reason     text,
    dead_at    timestamptz,
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX bus_deliveries_due ON bus_deliveries (consumer, due_at, event_id) WHERE dead_at IS NULL;
CREATE INDEX bus_deliveries_entity ON bus_deliveries (consumer, entity_id, seq, event_id) WHERE dead_at IS NULL;
CREATE INDEX bus_deliveries_dead ON bus_deliveries (dead_at, event_id, consumer) WHERE dead_at IS NOT NULL;

-- This consumer has handled this message: written in the transaction of the effect.
CREATE TABLE consumed_events (
    consumer    text        NOT NULL,
    event_id    uuid        NOT NULL,
    consumed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, event_id)
);

CREATE INDEX consumed_events_age ON consumed_events (consumed_at);

-- A workflow that runs: its state, what was said to it and not yet heard, when it wakes up by itself, who has it.
CREATE TABLE workflow_runs (
    id          text        PRIMARY KEY,
    workflow    text        NOT NULL,
    -- The row it is about.
    entity_id   uuid        NOT NULL,
    state       jsonb       NOT NULL,
    -- What just happened, oldest first.
    pending     jsonb       NOT NULL DEFAULT '[]',
    -- When it is due; null when it waits for a word alone, or is done.
    wake_at     timestamptz,
    -- Why it waits, for people.
    waits_for   text,
    lease_until timestamptz,
    -- Raised by everybody who takes it: what somebody else has taken since can't be saved.
    lease       bigint      NOT NULL DEFAULT 0,
    attempts    integer     NOT NULL DEFAULT 0,
    reason      text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at     timestamptz
);

CREATE INDEX workflow_runs_due ON workflow_runs (wake_at) WHERE done_at IS NULL;
CREATE INDEX workflow_runs_entity ON workflow_runs (entity_id) WHERE done_at IS NULL;
