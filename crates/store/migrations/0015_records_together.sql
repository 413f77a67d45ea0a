-- Why: that each row which was born or has moved has its record was asked row by row when the transaction ended, which cost a statement
-- that moves sixteen rows a good part of its time. It is asked once for all rows of a statement now, when the statement ends; what has
-- no record by then owes one until the transaction ends, as it always did. Where most changes are no moves (a heartbeat, a minute that
-- is charged) moves are still asked about row by row.
-- An old binary notices nothing: what it writes before its record is owed.

-- What was written before its record. Nobody ever sees a row of it: it is gone when the transaction ends, or the transaction is.
CREATE UNLOGGED TABLE lifecycle_owed (
    machine text NOT NULL,
    entity_id uuid NOT NULL,
    seq bigint NOT NULL,
    from_status text,
    to_status text NOT NULL,
    PRIMARY KEY (entity_id, seq, machine)
);

CREATE FUNCTION require_owed_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1
          FROM lifecycle_log
         WHERE entity_id = NEW.entity_id
           AND seq = NEW.seq
           AND machine = NEW.machine
           AND to_status = NEW.to_status
           AND from_status IS NOT DISTINCT FROM NEW.from_status
    ) THEN
        RAISE EXCEPTION '% % moved to % (seq %) without its record in lifecycle_log',
            NEW.machine, NEW.entity_id, NEW.to_status, NEW.seq USING ERRCODE = 'BT003';
    END IF;
    DELETE FROM lifecycle_owed WHERE entity_id = NEW.entity_id AND seq = NEW.seq AND machine = NEW.machine;
    RETURN NULL;
END;
$$;

CREATE CONSTRAINT TRIGGER owed AFTER INSERT ON lifecycle_owed DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION require_owed_record();

-- The argument of both is the machine's name; the triggers that call them are generated from the machines' tables. The log is asked by
-- an expression, and not by a join: one that is planned while the log is empty would read all of it.
CREATE FUNCTION require_birth_records() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lifecycle_owed (machine, entity_id, seq, to_status)
    SELECT TG_ARGV[0], id, seq, status
      FROM changed
     WHERE (SELECT true
              FROM lifecycle_log AS log
             WHERE log.entity_id = changed.id
               AND log.seq = changed.seq
               AND log.machine = TG_ARGV[0]
               AND log.to_status = changed.status
               AND log.from_status IS NULL) IS NULL;
    RETURN NULL;
END;
$$;

CREATE FUNCTION require_move_records() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO lifecycle_owed (machine, entity_id, seq, from_status, to_status)
    SELECT TG_ARGV[0], id, seq, from_status, status
      FROM (
            -- A full join is never made by comparing each with each, however few rows it is planned for.
            SELECT changed.id, changed.seq, former.status AS from_status, changed.status
              FROM changed
              FULL JOIN former ON former.id = changed.id
             WHERE changed.status IS DISTINCT FROM former.status OR changed.seq IS DISTINCT FROM former.seq
           ) AS moved
     WHERE (SELECT true
              FROM lifecycle_log AS log
             WHERE log.entity_id = moved.id
               AND log.seq = moved.seq
               AND log.machine = TG_ARGV[0]
               AND log.to_status = moved.status
               AND log.from_status = moved.from_status) IS NULL;
    RETURN NULL;
END;
$$;
