-- The writer's own work, typed by hand: lock, two inserts, update, commit. The same tables, triggers included; the record comes before
-- the move, so that it is there when it is asked for.
\set row random(0, :rows / :clients - 1) * :clients + :client_id
BEGIN;
SELECT id, status, seq, operation_id FROM allocations WHERE sku = 'bench' AND gpus = 1 AND id = ('00000000-0000-7000-8000-' || lpad(:row::text, 12, '0'))::uuid FOR UPDATE \gset
INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, operation_id, source, actor) VALUES ('allocation', :id::uuid, :seq::bigint + 1, gen_random_uuid(), 'restart.completed', :status::text, CASE WHEN :status::text = 'active' THEN 'restarting' ELSE 'active' END, :operation_id::uuid, 'worker', 'pgbench');
UPDATE allocations SET status = CASE WHEN status = 'active' THEN 'restarting' ELSE 'active' END, seq = seq + 1, status_at = clock_timestamp() WHERE id = :id::uuid AND status = :status::text AND seq = :seq::bigint;
INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at) VALUES (gen_random_uuid(), 'provisioning.restart.completed', 'allocation', :id::uuid, :seq::bigint + 1, jsonb_build_object('machine', 'allocation', 'id', :id::uuid, 'seq', :seq::bigint + 1), clock_timestamp());
COMMIT;
