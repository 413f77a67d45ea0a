-- Why: an engine outside Postgres is told of runs that are due, and not by every process that notices; and one trace leads
-- through all processes.
-- Old binary: steps runs itself, and neither reads nor writes the columns.

-- An engine was told that the run is due, and nobody need tell it again before this time. Null when something has happened since.
ALTER TABLE workflow_runs ADD COLUMN announced_until timestamptz;

-- Since when a run is due that is due at once, for whoever measures how long it waits. Null when an old binary wrote it.
ALTER TABLE workflow_runs ADD COLUMN due_since timestamptz;

-- Where what was done stood in its trace (W3C's traceparent), so that what follows from it goes on in the same one, in
-- whichever process, and whatever died in between. Null when nobody traces.
ALTER TABLE outbox_events ADD COLUMN traceparent text;
ALTER TABLE workflow_runs ADD COLUMN traceparent text;
ALTER TABLE node_tasks ADD COLUMN traceparent text;
