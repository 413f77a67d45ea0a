-- Why: what only grows is bounded. What nobody needs any more is found by an index and goes, a page at a time; minutes of usage rest
-- in a partition a day, which goes as a whole; and nothing that runs again and again reads what has been.
-- Old binary: prunes what it pruned before, charges into the partitions without knowing of them, and verifies a chain that begins at
-- its first link, as long as the new one has not cut it. If a record forgot how far it was charged (a restore), the old binary does
-- not know the name of the key that refuses it, and leaves that batch to the new one.

-- ── What is pruned ──────────────────────────────────────────────────────────────────────────────────────────────────────

-- What was refused, and phases: still never changed, and not removed while they are young, by nobody.
DROP TRIGGER append_only ON lifecycle_refusals;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON lifecycle_refusals
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON lifecycle_refusals
    FOR EACH ROW WHEN (OLD.occurred_at > clock_timestamp() - interval '30 days') EXECUTE FUNCTION reject_change();
CREATE INDEX lifecycle_refusals_age ON lifecycle_refusals (occurred_at);

DROP TRIGGER append_only ON node_task_events;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON node_task_events
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON node_task_events
    FOR EACH ROW WHEN (OLD.received_at > clock_timestamp() - interval '30 days') EXECUTE FUNCTION reject_change();
CREATE INDEX node_task_events_age ON node_task_events (received_at);

CREATE INDEX workflow_runs_done ON workflow_runs (done_at) WHERE done_at IS NOT NULL;
CREATE INDEX notifications_age ON notifications (created_at);
-- Deliveries go with what they deliver.
CREATE INDEX webhook_deliveries_notification ON webhook_deliveries (notification_id);
CREATE INDEX node_certificates_end ON node_certificates (not_after);
CREATE INDEX api_tokens_end ON api_tokens (least(expires_at, revoked_at));

-- ── The audit log ───────────────────────────────────────────────────────────────────────────────────────────────────────

-- Where its chain begins: behind the last link that was cut off, because its entry had got older than entries are kept. No row, as long
-- as it begins with its first link. Every step of a person since `kept_since` has its entry.
CREATE TABLE audit_beginning (
    one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
    position   bigint      NOT NULL,
    hash       bytea       NOT NULL,
    kept_since timestamptz NOT NULL
);

DROP TRIGGER append_only ON audit_entries;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON audit_entries
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON audit_entries
    FOR EACH ROW WHEN (OLD.at > clock_timestamp() - interval '30 days') EXECUTE FUNCTION reject_change();
DROP TRIGGER append_only ON audit_links;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON audit_links
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
-- A link is a little younger than its entry.
CREATE TRIGGER kept_while_young BEFORE DELETE ON audit_links
    FOR EACH ROW WHEN (OLD.at > clock_timestamp() - interval '29 days') EXECUTE FUNCTION reject_change();

-- ── Minutes of usage ────────────────────────────────────────────────────────────────────────────────────────────────────

-- From when on windows are kept: no row, as long as all are. Whatever was before it is charged, and its windows are gone: nothing is
-- charged there again.
CREATE TABLE usage_kept (
    one           boolean     PRIMARY KEY DEFAULT true CHECK (one),
    windows_since timestamptz NOT NULL
);

-- A partition a day of UTC. The window's minute is part of its key, so a key in each partition is one in all of them.
ALTER TABLE usage_windows RENAME TO usage_windows_before;
ALTER INDEX usage_windows_pkey RENAME TO usage_windows_before_pkey;
ALTER INDEX usage_windows_posting RENAME TO usage_windows_before_posting;
CREATE TABLE usage_windows (LIKE usage_windows_before INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
    CONSTRAINT usage_windows_pkey PRIMARY KEY (usage_record_id, window_at)) PARTITION BY RANGE (window_at);
CREATE INDEX usage_windows_posting ON usage_windows (posting_id);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_windows
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
REVOKE UPDATE, DELETE, TRUNCATE ON usage_windows FROM CURRENT_USER, PUBLIC;

-- What was charged so far stays where it is, and is the partition of everything before tomorrow. It is read once for that.
DO $$
BEGIN
    EXECUTE format('ALTER TABLE usage_windows ATTACH PARTITION usage_windows_before FOR VALUES FROM (MINVALUE) TO (%L)', (
        SELECT date_trunc('day', greatest(clock_timestamp(), max(charged_until)), 'UTC') + interval '24 hours' FROM usage_records));
END;
$$;

-- The partitions that have a bound, each from when until when.
CREATE FUNCTION usage_parts() RETURNS TABLE (part name, since timestamptz, until timestamptz) LANGUAGE sql STABLE AS $$
    SELECT relname,
           coalesce(substring(bound FROM 'FROM \(''([^'']+)''\)'), '-infinity')::timestamptz,
           substring(bound FROM 'TO \(''([^'']+)''\)')::timestamptz
      FROM pg_inherits
      JOIN pg_class ON pg_class.oid = inhrelid
     CROSS JOIN LATERAL pg_get_expr(relpartbound, pg_class.oid) AS bound
     WHERE inhparent = 'usage_windows'::regclass AND bound <> 'DEFAULT'
$$;

-- What was entered stays entered, also for who goes past the table that they are partitions of.
CREATE FUNCTION make_usage_part(part name, bound text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE usage_windows INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION reject_change()', part);
    EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON %I FROM CURRENT_USER, PUBLIC', part);
    EXECUTE format('ALTER TABLE usage_windows ATTACH PARTITION %I %s', part, bound);
END;
$$;

-- Where minutes go that no day was made for, by a clock that has jumped: nothing is ever not charged for lack of a place.
CREATE FUNCTION make_usage_other() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM make_usage_part('usage_windows_other', 'DEFAULT');
    CREATE INDEX usage_windows_other_at ON usage_windows_other (window_at);
END;
$$;
SELECT make_usage_other();

-- Makes the partition of a day; says whether. One that somebody makes, that is there, or whose minutes have gone elsewhere already is
-- not made: they are found there as well. Nobody is kept waiting for it for longer than a second.
CREATE FUNCTION make_usage_day(day timestamptz) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '1s' AS $$
DECLARE
    begins timestamptz := date_trunc('day', day, 'UTC');
    ends   timestamptz := begins + interval '24 hours';
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('berth usage days')) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM usage_parts() AS known WHERE known.since < ends AND known.until > begins)
       OR EXISTS (SELECT 1 FROM usage_windows_other WHERE window_at >= begins AND window_at < ends) THEN
        RETURN false;
    END IF;
    PERFORM make_usage_part(('usage_windows_' || to_char(begins AT TIME ZONE 'UTC', 'YYYYMMDD'))::name,
                            format('FOR VALUES FROM (%L) TO (%L)', begins, ends));
    RETURN true;
END;
$$;

-- Drops the oldest partition, if all of it is before that moment and nobody needs it; says whether. It is needed as long as a record has
-- yet to be charged there, or a minute of it to be given back.
CREATE FUNCTION drop_usage_part(older_than timestamptz) RETURNS boolean LANGUAGE plpgsql
SET lock_timeout = '1s' AS $$
DECLARE
    oldest record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('berth usage days')) THEN
        RETURN false;
    END IF;
    SELECT part, until INTO oldest FROM usage_parts() ORDER BY until LIMIT 1;
    IF oldest.part IS NULL OR oldest.until > older_than THEN
        -- What went elsewhere goes when all of it is that old.
        SELECT 'usage_windows_other'::name AS part, windows_since AS until INTO oldest FROM usage_kept;
        IF oldest.part IS NULL OR NOT EXISTS (SELECT 1 FROM usage_windows_other)
           OR EXISTS (SELECT 1 FROM usage_windows_other WHERE window_at >= oldest.until) THEN
            RETURN false;
        END IF;
    END IF;
    IF EXISTS (
           SELECT 1
             FROM usage_records
            WHERE settled_at IS NULL AND account_id IS NOT NULL AND charged_until < oldest.until)
       OR EXISTS (
           SELECT 1
             FROM node_outages AS outage
            CROSS JOIN LATERAL (
                  SELECT id
                    FROM usage_records
                   WHERE node_id = outage.node_id AND coalesce(ended_at, 'infinity') > outage.from_at
                     AND started_at < least(outage.until_at, oldest.until) AND account_id IS NOT NULL
                  OFFSET 0
                  ) AS record
            CROSS JOIN LATERAL (
                  SELECT 1
                    FROM usage_windows AS one
                   WHERE usage_record_id = record.id
                     AND window_at >= date_trunc('minute', outage.from_at, 'UTC') AND window_at < least(outage.until_at, oldest.until)
                     AND (SELECT 1
                            FROM usage_credits AS given
                           WHERE given.usage_record_id = one.usage_record_id AND given.window_at = one.window_at
                           LIMIT 1) IS NULL
                   OFFSET 0
                  ) AS owed
            WHERE outage.until_at IS NULL OR outage.credited_until < outage.until_at) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', oldest.part);
    IF oldest.part = 'usage_windows_other' THEN
        PERFORM make_usage_other();
    END IF;
    INSERT INTO usage_kept AS kept (windows_since) VALUES (oldest.until)
        ON CONFLICT (one) DO UPDATE SET windows_since = greatest(kept.windows_since, EXCLUDED.windows_since);
    RETURN true;
END;
$$;

SELECT make_usage_day(clock_timestamp() + days * interval '24 hours') FROM generate_series(0, 3) AS days;

-- ── Charging when nothing is due ────────────────────────────────────────────────────────────────────────────────────────

-- Up to which minute everybody was charged who was there. Until the next one is over, only what has ended is due.
CREATE TABLE charging_reached (
    one   boolean     PRIMARY KEY DEFAULT true CHECK (one),
    until timestamptz NOT NULL
);
CREATE INDEX usage_records_ended ON usage_records (account_id, id)
    WHERE settled_at IS NULL AND account_id IS NOT NULL AND ended_at IS NOT NULL;
