-- Why: what is given back for an outage is found by the records of its node that ended after it began. By their beginning, all that
-- the node ever had would be read.
-- Old binary: asks the same questions, and is answered as fast.

CREATE INDEX usage_records_node_end ON usage_records (node_id, (coalesce(ended_at, 'infinity')));
DROP INDEX usage_records_node;
