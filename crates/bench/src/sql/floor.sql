-- The least that an allocation needs of Postgres, without anything of ours: what a hand would type. `{nodes}` nodes of eight slots.
CREATE TABLE floor_slots (id bigint PRIMARY KEY, node_id integer NOT NULL, sku text NOT NULL, status text NOT NULL, allocation_id uuid,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()) WITH (fillfactor = 70);
CREATE TABLE floor_allocations (id uuid PRIMARY KEY, project_id integer NOT NULL, sku text NOT NULL, gpus integer NOT NULL, status text NOT NULL,
    key text NOT NULL, version integer NOT NULL DEFAULT 1, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz,
    UNIQUE (project_id, key)) WITH (fillfactor = 80);
CREATE TABLE floor_claims (allocation_id uuid NOT NULL, slot_id bigint NOT NULL, status text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (allocation_id, slot_id));
CREATE UNIQUE INDEX floor_claims_held ON floor_claims (slot_id) WHERE status = 'held';
CREATE TABLE floor_outbox (id bigserial PRIMARY KEY, subject text NOT NULL, key uuid NOT NULL, payload jsonb NOT NULL,
    status text NOT NULL DEFAULT 'pending', created_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX floor_outbox_pending ON floor_outbox (id) WHERE status = 'pending';
CREATE TABLE floor_log (id bigserial PRIMARY KEY, allocation_id uuid NOT NULL, event text NOT NULL, from_status text NOT NULL, to_status text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE floor_commits (id bigserial PRIMARY KEY, v integer NOT NULL);
INSERT INTO floor_slots (id, node_id, sku, status) SELECT n, (n - 1) / 8, 'h100', 'free' FROM generate_series(1, 8 * {nodes}) AS n;
CREATE INDEX floor_slots_free ON floor_slots (sku, id) WHERE status = 'free';
CREATE INDEX floor_slots_free_node ON floor_slots (node_id) WHERE status = 'free';
VACUUM ANALYZE;
