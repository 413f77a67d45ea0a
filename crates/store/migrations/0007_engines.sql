-- Why: an engine outside Postgres is told of runs that are due, and not by every process that notices; and one trace leads
-- through all processes; and a node's silence counts only while a gateway was there to hear it.
-- Old binary: steps runs itself, and neither reads nor writes the columns, nor the table.

-- An engine was told that the run is due, and nobody need tell it again before this time. Null when something has happened since.
ALTER TABLE workflow_runs ADD COLUMN announced_until timestamptz;

-- Since when a run is due that is due at once, for whoever measures how long it waits. Null when an old binary wrote it.
ALTER TABLE workflow_runs ADD COLUMN due_since timestamptz;

-- Where what was done stood in its trace (W3C's traceparent), so that what follows from it goes on in the same one, in
-- whichever process, and whatever died in between. Null when nobody traces.
ALTER TABLE outbox_events ADD COLUMN traceparent text;
ALTER TABLE workflow_runs ADD COLUMN traceparent text;
ALTER TABLE node_tasks ADD COLUMN traceparent text;

-- The last stretch of time in which some gateway listened to the nodes: each of them keeps the one row fresh. Without a row
-- no gateway of this version ever was, and every silence counts.
CREATE TABLE node_listening (
    one   boolean     PRIMARY KEY DEFAULT true CHECK (one),
    since timestamptz NOT NULL,
    until timestamptz NOT NULL CHECK (until >= since)
);
