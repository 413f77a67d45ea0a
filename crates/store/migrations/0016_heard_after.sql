-- Why: every heartbeat changed a column that an index was on, so that it wrote four indexes and three times the log. What is silent is
-- found by a moment after which a node was heard of, which moves once in a few heartbeats; the heartbeats between are written into the
-- page that they are on and into no index.
-- An old binary does not move it: its nodes are looked at one by one by who sweeps, and found to be well.

ALTER TABLE nodes
    -- `heartbeat_at` is never before it.
    ADD COLUMN heard_after timestamptz NOT NULL DEFAULT 'epoch';

ALTER TABLE nodes SET (fillfactor = 70);
CREATE INDEX nodes_heard_after ON nodes (heard_after) WHERE status = 'ready';
DROP INDEX nodes_heartbeat;
