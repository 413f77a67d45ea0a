-- Why: an engine outside Postgres is told of runs that are due, and not by every process that notices.
-- Old binary: steps runs itself, and neither reads nor writes the column.

-- An engine was told that the run is due, and nobody need tell it again before this time. Null when something has happened since.
ALTER TABLE workflow_runs ADD COLUMN announced_until timestamptz;
