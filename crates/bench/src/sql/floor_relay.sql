-- Five hundred messages leave the outbox, in order.
WITH pending AS MATERIALIZED (SELECT id FROM floor_outbox WHERE status = 'pending' ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED) UPDATE floor_outbox SET status = 'published' FROM pending WHERE floor_outbox.id = pending.id RETURNING floor_outbox.id, floor_outbox.subject, floor_outbox.payload;
