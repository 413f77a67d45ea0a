-- Why: the record of every transition, of every refusal, and the outbox, before there is anything to record.
-- The first migration: there is no old binary.

CREATE TABLE lifecycle_log (
    machine      text        NOT NULL,
    entity_id    uuid        NOT NULL,
    seq          bigint      NOT NULL CHECK (seq >= 1),
    event_id     uuid        NOT NULL,
    event        text        NOT NULL,
    from_status  text,
    to_status    text        NOT NULL,
    operation_id uuid,
    source       text        NOT NULL,
    actor        text        NOT NULL,
    cause        text,
    occurred_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Two writers can never both record step n.
    CONSTRAINT lifecycle_log_step PRIMARY KEY (entity_id, seq, machine),
    -- One fact is applied once, also after the row has come back to an earlier status.
    CONSTRAINT lifecycle_log_event UNIQUE (entity_id, event_id, machine),
    CONSTRAINT lifecycle_log_birth CHECK ((seq = 1) = (from_status IS NULL))
);

CREATE TABLE lifecycle_refusals (
    machine     text        NOT NULL,
    entity_id   uuid        NOT NULL,
    event_id    uuid        NOT NULL,
    event       text        NOT NULL,
    status      text,
    reason      text        NOT NULL,
    name        text,
    source      text        NOT NULL,
    actor       text        NOT NULL,
    cause       text,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A report that is delivered a hundred times is refused once.
    CONSTRAINT lifecycle_refusals_event PRIMARY KEY (entity_id, event_id, machine)
);

CREATE TABLE outbox_events (
    id           uuid        PRIMARY KEY,
    subject      text        NOT NULL,
    machine      text        NOT NULL,
    entity_id    uuid        NOT NULL,
    seq          bigint      NOT NULL,
    payload      jsonb       NOT NULL,
    occurred_at  timestamptz NOT NULL,
    published_at timestamptz
);

CREATE INDEX outbox_events_unpublished ON outbox_events (id) WHERE published_at IS NULL;

-- What was said stays said.
CREATE FUNCTION reject_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is not allowed', TG_TABLE_NAME, TG_OP USING ERRCODE = 'BT002';
END;
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON lifecycle_log
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON lifecycle_refusals
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

-- Deferred to the end of the transaction: a row whose lifecycle moved must have its log record by then.
-- The argument is the machine's name; the triggers that call this are generated from the machines' tables.
CREATE FUNCTION require_log_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1
          FROM lifecycle_log
         WHERE entity_id = NEW.id
           AND seq = NEW.seq
           AND machine = TG_ARGV[0]
           AND to_status = NEW.status
           -- At a birth there is no old row, and no status before.
           AND from_status IS NOT DISTINCT FROM OLD.status
    ) THEN
        RAISE EXCEPTION '% % moved to % (seq %) without its record in lifecycle_log',
            TG_ARGV[0], NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT003';
    END IF;
    RETURN NULL;
END;
$$;
