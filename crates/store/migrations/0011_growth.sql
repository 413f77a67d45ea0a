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
