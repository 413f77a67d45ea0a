-- Generated from the migrations and the machines by `cargo xtask gen`. Do not edit.

CREATE TABLE accounts (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'healthy'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    balance_minor bigint NOT NULL DEFAULT 0,
    low_balance_threshold_minor bigint NOT NULL DEFAULT 1000,
    owner_id uuid,
    currency text NOT NULL DEFAULT 'USD'::text,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT accounts_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES users(id),
    CONSTRAINT accounts_pkey PRIMARY KEY (id)
);

CREATE TABLE allocation_groups (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'requested'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    project_id uuid NOT NULL,
    release_requested_at timestamp with time zone,
    ended_at timestamp with time zone,
    name text,
    owner_id uuid,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    release_id uuid,
    release_by uuid,
    release_noted_at timestamp with time zone,
    release_passed_on_at timestamp with time zone,
    CONSTRAINT allocation_groups_pkey PRIMARY KEY (id)
);

CREATE TABLE allocation_prices (
    allocation_id uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    price_micros_per_gpu_second bigint NOT NULL,
    CONSTRAINT allocation_prices_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT allocation_prices_pkey PRIMARY KEY (allocation_id, from_at),
    CONSTRAINT allocation_prices_price_micros_per_gpu_second_check CHECK (((price_micros_per_gpu_second >= 0) AND (price_micros_per_gpu_second <= 100000000)))
);

CREATE TABLE allocations (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'requested'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    project_id uuid NOT NULL,
    group_id uuid,
    required boolean NOT NULL DEFAULT true,
    operation_id uuid NOT NULL,
    sku text NOT NULL,
    gpus smallint NOT NULL,
    active_at timestamp with time zone,
    release_requested_at timestamp with time zone,
    reason text,
    ended_at timestamp with time zone,
    name text,
    owner_id uuid,
    region text NOT NULL DEFAULT ''::text,
    image text NOT NULL DEFAULT ''::text,
    shape text NOT NULL DEFAULT 'gpu_slice'::text,
    price_micros_per_gpu_second bigint NOT NULL DEFAULT 0,
    currency text NOT NULL DEFAULT ''::text,
    ssh_keys text[] NOT NULL DEFAULT '{}'::text[],
    access jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT allocations_gpus_check CHECK ((gpus > 0)),
    CONSTRAINT allocations_group_id_fkey FOREIGN KEY (group_id) REFERENCES allocation_groups(id),
    CONSTRAINT allocations_pkey PRIMARY KEY (id)
) WITH (fillfactor=80);

CREATE TABLE api_tokens (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    name text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamp with time zone NOT NULL,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT api_tokens_pkey PRIMARY KEY (id),
    CONSTRAINT api_tokens_secret_hash_key UNIQUE (secret_hash),
    CONSTRAINT api_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);

CREATE TABLE app_instance_members (
    app_instance_id uuid NOT NULL,
    allocation_id uuid NOT NULL,
    role text NOT NULL,
    CONSTRAINT app_instance_members_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT app_instance_members_app_instance_id_fkey FOREIGN KEY (app_instance_id) REFERENCES app_instances(id),
    CONSTRAINT app_instance_members_pkey PRIMARY KEY (app_instance_id, allocation_id)
);

CREATE TABLE app_instances (
    id uuid NOT NULL,
    project_id uuid NOT NULL,
    owner_id uuid NOT NULL,
    name text NOT NULL,
    app text NOT NULL,
    allocation_id uuid,
    group_id uuid,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamp with time zone,
    CONSTRAINT app_instances_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT app_instances_bound CHECK (((allocation_id IS NULL) <> (group_id IS NULL))),
    CONSTRAINT app_instances_group_id_fkey FOREIGN KEY (group_id) REFERENCES allocation_groups(id),
    CONSTRAINT app_instances_pkey PRIMARY KEY (id),
    CONSTRAINT app_instances_project_id_fkey FOREIGN KEY (project_id) REFERENCES projects(id)
);

CREATE TABLE audit_beginning (
    one boolean NOT NULL DEFAULT true,
    position bigint NOT NULL,
    hash bytea NOT NULL,
    kept_since timestamp with time zone NOT NULL,
    CONSTRAINT audit_beginning_one_check CHECK (one),
    CONSTRAINT audit_beginning_pkey PRIMARY KEY (one)
);

CREATE TABLE audit_entries (
    id uuid NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    user_id uuid,
    token_id uuid,
    role text NOT NULL,
    action text NOT NULL,
    target_kind text NOT NULL,
    target text NOT NULL,
    project_id uuid,
    outcome text NOT NULL,
    reason text,
    detail jsonb NOT NULL DEFAULT '{}'::jsonb,
    request_id uuid,
    source text,
    CONSTRAINT audit_entries_pkey PRIMARY KEY (id)
);

CREATE TABLE audit_links (
    position bigint NOT NULL,
    entry_id uuid NOT NULL,
    hash bytea NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT audit_links_entry_id_key UNIQUE (entry_id),
    CONSTRAINT audit_links_pkey PRIMARY KEY ("position"),
    CONSTRAINT audit_links_position_check CHECK (("position" >= 1))
);

CREATE TABLE audit_unlinked (
    entry_id uuid NOT NULL,
    CONSTRAINT audit_unlinked_pkey PRIMARY KEY (entry_id)
);

CREATE TABLE bus_deliveries (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    entity_id uuid NOT NULL,
    seq bigint NOT NULL,
    message jsonb NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamp with time zone NOT NULL,
    reason text,
    dead_at timestamp with time zone,
    CONSTRAINT bus_deliveries_pkey PRIMARY KEY (consumer, event_id)
);

CREATE TABLE charging_reached (
    one boolean NOT NULL DEFAULT true,
    until timestamp with time zone NOT NULL,
    CONSTRAINT charging_reached_one_check CHECK (one),
    CONSTRAINT charging_reached_pkey PRIMARY KEY (one)
);

CREATE TABLE claims (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'reserved'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid NOT NULL,
    node_id uuid NOT NULL,
    slot_id uuid,
    operation_id uuid,
    reason text,
    ended_at timestamp with time zone,
    CONSTRAINT claims_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT claims_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT claims_pkey PRIMARY KEY (id),
    CONSTRAINT claims_slot_id_fkey FOREIGN KEY (slot_id) REFERENCES slots(id)
) WITH (fillfactor=80);

CREATE TABLE consumed_events (
    consumer text NOT NULL,
    event_id uuid NOT NULL,
    consumed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT consumed_events_pkey PRIMARY KEY (consumer, event_id)
);

CREATE TABLE findings (
    id uuid NOT NULL,
    kind text NOT NULL,
    subject text NOT NULL,
    node_id uuid,
    allocation_id uuid,
    detail text NOT NULL,
    first_seen_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamp with time zone,
    CONSTRAINT findings_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT findings_pkey PRIMARY KEY (id)
);

CREATE TABLE idempotency_keys (
    principal uuid NOT NULL,
    route text NOT NULL,
    key text NOT NULL,
    fingerprint bytea NOT NULL,
    http_status smallint,
    body jsonb,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (principal, route, key)
);

CREATE TABLE images (
    code text NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    CONSTRAINT images_pkey PRIMARY KEY (code)
);

CREATE TABLE installation_keys (
    name text NOT NULL,
    private bytea NOT NULL,
    public text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT installation_keys_pkey PRIMARY KEY (name)
);

CREATE TABLE join_tokens (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    CONSTRAINT join_tokens_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT join_tokens_pkey PRIMARY KEY (id),
    CONSTRAINT join_tokens_secret_hash_key UNIQUE (secret_hash)
);

CREATE TABLE ledger_books (
    book text NOT NULL,
    currency text NOT NULL,
    balance_minor bigint NOT NULL,
    CONSTRAINT ledger_books_book_check CHECK ((book = ANY (ARRAY['revenue'::text, 'clearing'::text, 'adjustments'::text]))),
    CONSTRAINT ledger_books_pkey PRIMARY KEY (book, currency)
) WITH (fillfactor=50);

CREATE TABLE ledger_entries (
    number bigint NOT NULL,
    posting_id uuid NOT NULL,
    book text NOT NULL,
    account_id uuid,
    amount_minor bigint NOT NULL,
    balance_after_minor bigint,
    CONSTRAINT ledger_entries_book_check CHECK ((book = ANY (ARRAY['tenant'::text, 'revenue'::text, 'clearing'::text, 'adjustments'::text]))),
    CONSTRAINT ledger_entries_check CHECK (((book = 'tenant'::text) = (account_id IS NOT NULL))),
    CONSTRAINT ledger_entries_pkey PRIMARY KEY (number)
);

CREATE TABLE ledger_postings (
    id uuid NOT NULL,
    key text NOT NULL,
    kind text NOT NULL,
    account_id uuid NOT NULL,
    currency text NOT NULL,
    source_id uuid,
    from_at timestamp with time zone,
    until_at timestamp with time zone,
    actor text NOT NULL,
    reason text,
    posted_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ledger_postings_key_key UNIQUE (key),
    CONSTRAINT ledger_postings_kind_check CHECK ((kind = ANY (ARRAY['usage'::text, 'unreachable'::text, 'overrun'::text, 'payment'::text, 'refund'::text, 'adjustment'::text]))),
    CONSTRAINT ledger_postings_pkey PRIMARY KEY (id)
);

CREATE TABLE lifecycle_log (
    machine text NOT NULL,
    entity_id uuid NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    event text NOT NULL,
    from_status text,
    to_status text NOT NULL,
    operation_id uuid,
    source text NOT NULL,
    actor text NOT NULL,
    cause text,
    occurred_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    reason text,
    CONSTRAINT lifecycle_log_birth CHECK (((seq = 1) = (from_status IS NULL))),
    CONSTRAINT lifecycle_log_event UNIQUE (entity_id, event_id, machine),
    CONSTRAINT lifecycle_log_seq_check CHECK ((seq >= 1)),
    CONSTRAINT lifecycle_log_step PRIMARY KEY (entity_id, seq, machine)
);

CREATE UNLOGGED TABLE lifecycle_owed (
    machine text NOT NULL,
    entity_id uuid NOT NULL,
    seq bigint NOT NULL,
    from_status text,
    to_status text NOT NULL,
    CONSTRAINT lifecycle_owed_pkey PRIMARY KEY (entity_id, seq, machine)
);

CREATE TABLE lifecycle_refusals (
    machine text NOT NULL,
    entity_id uuid NOT NULL,
    event_id uuid NOT NULL,
    event text NOT NULL,
    status text,
    reason text NOT NULL,
    name text,
    source text NOT NULL,
    actor text NOT NULL,
    cause text,
    occurred_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT lifecycle_refusals_event PRIMARY KEY (entity_id, event_id, machine)
);

CREATE TABLE node_agents (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamp with time zone,
    CONSTRAINT node_agents_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT node_agents_pkey PRIMARY KEY (id)
);

CREATE TABLE node_certificates (
    fingerprint bytea NOT NULL,
    agent_id uuid NOT NULL,
    not_after timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT node_certificates_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES node_agents(id),
    CONSTRAINT node_certificates_pkey PRIMARY KEY (fingerprint)
);

CREATE TABLE node_images (
    node_id uuid NOT NULL,
    image text NOT NULL,
    CONSTRAINT node_images_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT node_images_pkey PRIMARY KEY (node_id, image)
);

CREATE TABLE node_listening (
    one boolean NOT NULL DEFAULT true,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT node_listening_check CHECK ((until >= since)),
    CONSTRAINT node_listening_one_check CHECK (one),
    CONSTRAINT node_listening_pkey PRIMARY KEY (one)
);

CREATE TABLE node_outages (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    until_at timestamp with time zone,
    credited_until timestamp with time zone NOT NULL,
    CONSTRAINT node_outages_check CHECK ((until_at >= from_at)),
    CONSTRAINT node_outages_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT node_outages_pkey PRIMARY KEY (id)
);

CREATE TABLE node_task_events (
    task_id uuid NOT NULL,
    dispatch bigint NOT NULL,
    seq integer NOT NULL,
    phase text NOT NULL,
    stands text NOT NULL,
    at timestamp with time zone NOT NULL,
    received_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    position bigint NOT NULL DEFAULT 0,
    CONSTRAINT node_task_events_pkey PRIMARY KEY (task_id, dispatch, seq),
    CONSTRAINT node_task_events_task_id_fkey FOREIGN KEY (task_id) REFERENCES node_tasks(id)
);

CREATE TABLE node_tasks (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'queued'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    node_id uuid NOT NULL,
    allocation_id uuid,
    operation_id uuid NOT NULL,
    kind text NOT NULL,
    fence bigint NOT NULL,
    agent_id uuid,
    dispatch bigint NOT NULL DEFAULT 0,
    dispatches_max bigint NOT NULL DEFAULT 3,
    dispatched_at timestamp with time zone,
    cleanup_complete boolean,
    reason text,
    ended_at timestamp with time zone,
    params jsonb NOT NULL DEFAULT '{}'::jsonb,
    run_id text,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    deadline_at timestamp with time zone,
    lease_until timestamp with time zone,
    envelope text,
    signature text,
    result jsonb,
    boot_id uuid,
    sku text,
    image text,
    phases_told bigint NOT NULL DEFAULT 0,
    traceparent text,
    CONSTRAINT node_tasks_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT node_tasks_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT node_tasks_pkey PRIMARY KEY (id)
) WITH (fillfactor=80);

CREATE TABLE nodes (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'enrolling'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    name text NOT NULL,
    region text NOT NULL,
    sku text NOT NULL,
    heartbeat_at timestamp with time zone,
    reason text,
    ended_at timestamp with time zone,
    whole boolean NOT NULL DEFAULT false,
    free_slots smallint NOT NULL DEFAULT 0,
    free_numa_max smallint NOT NULL DEFAULT 0,
    boot_id uuid,
    agent_version text,
    inventory jsonb,
    inventory_at timestamp with time zone,
    heard_after timestamp with time zone NOT NULL DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone,
    CONSTRAINT nodes_name_key UNIQUE (name),
    CONSTRAINT nodes_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);

CREATE TABLE notifications (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    number bigint NOT NULL,
    kind text NOT NULL,
    cause text NOT NULL,
    title text NOT NULL,
    body text NOT NULL,
    project_id uuid,
    allocation_id uuid,
    payment_session_id uuid,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    read_at timestamp with time zone,
    CONSTRAINT notifications_number_check CHECK ((number >= 1)),
    CONSTRAINT notifications_pkey PRIMARY KEY (id),
    CONSTRAINT notifications_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);

CREATE TABLE outbox_events (
    id uuid NOT NULL,
    subject text NOT NULL,
    machine text NOT NULL,
    entity_id uuid NOT NULL,
    seq bigint NOT NULL,
    payload jsonb NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    published_at timestamp with time zone,
    position bigint NOT NULL,
    traceparent text,
    heard text[],
    CONSTRAINT outbox_events_pkey PRIMARY KEY (id)
);

CREATE TABLE payment_events (
    id text NOT NULL,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    received_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    session_id uuid,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamp with time zone DEFAULT clock_timestamp(),
    done_at timestamp with time zone,
    outcome text,
    reason text,
    CONSTRAINT payment_events_pkey PRIMARY KEY (id)
);

CREATE TABLE payment_sessions (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'initiated'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    account_id uuid NOT NULL,
    amount_minor bigint NOT NULL,
    currency text NOT NULL,
    completed_at timestamp with time zone,
    ledger_entry_id uuid,
    credited_amount_minor bigint,
    reason text,
    ended_at timestamp with time zone,
    user_id uuid,
    idempotency_key text,
    fingerprint bytea,
    stripe_checkout_session_id text,
    url text,
    asked_until timestamp with time zone,
    expires_at timestamp with time zone,
    stripe_payment_intent_id text,
    paid_amount_minor bigint,
    paid_currency text,
    refunded_minor bigint NOT NULL DEFAULT 0,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT payment_sessions_amount_minor_check CHECK ((amount_minor > 0)),
    CONSTRAINT payment_sessions_pkey PRIMARY KEY (id),
    CONSTRAINT payment_sessions_refunded_minor_check CHECK ((refunded_minor >= 0))
);

CREATE TABLE policies (
    key text NOT NULL,
    value bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    changed_by uuid,
    CONSTRAINT policies_pkey PRIMARY KEY (key)
);

CREATE TABLE project_members (
    project_id uuid NOT NULL,
    user_id uuid NOT NULL,
    role text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT project_members_pkey PRIMARY KEY (user_id, project_id),
    CONSTRAINT project_members_project_id_fkey FOREIGN KEY (project_id) REFERENCES projects(id),
    CONSTRAINT project_members_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'member'::text, 'admin'::text]))),
    CONSTRAINT project_members_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);

CREATE TABLE project_spending (
    project_id uuid NOT NULL,
    month date NOT NULL,
    spent_minor bigint NOT NULL,
    capped_at timestamp with time zone,
    CONSTRAINT project_spending_pkey PRIMARY KEY (project_id, month)
) WITH (fillfactor=70);

CREATE TABLE projects (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    account_id uuid,
    spend_cap_minor bigint,
    CONSTRAINT projects_account_id_fkey FOREIGN KEY (account_id) REFERENCES accounts(id),
    CONSTRAINT projects_pkey PRIMARY KEY (id),
    CONSTRAINT projects_spend_cap_minor_check CHECK ((spend_cap_minor >= 0))
);

CREATE TABLE regions (
    code text NOT NULL,
    name text NOT NULL,
    CONSTRAINT regions_pkey PRIMARY KEY (code)
);

CREATE TABLE release_receipts (
    allocation_id uuid NOT NULL,
    document text NOT NULL,
    signature text NOT NULL,
    public_key text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT release_receipts_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT release_receipts_pkey PRIMARY KEY (allocation_id)
);

CREATE TABLE sku_images (
    sku text NOT NULL,
    image text NOT NULL,
    position smallint NOT NULL,
    CONSTRAINT sku_images_image_fkey FOREIGN KEY (image) REFERENCES images(code),
    CONSTRAINT sku_images_pkey PRIMARY KEY (sku, "position"),
    CONSTRAINT sku_images_sku_fkey FOREIGN KEY (sku) REFERENCES skus(code),
    CONSTRAINT sku_images_sku_image_key UNIQUE (sku, image)
);

CREATE TABLE sku_prices (
    sku text NOT NULL,
    from_at timestamp with time zone NOT NULL,
    price_micros_per_gpu_second bigint NOT NULL,
    running boolean NOT NULL,
    changed_by uuid,
    reason text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT sku_prices_pkey PRIMARY KEY (sku, from_at),
    CONSTRAINT sku_prices_price_micros_per_gpu_second_check CHECK (((price_micros_per_gpu_second >= 0) AND (price_micros_per_gpu_second <= 100000000))),
    CONSTRAINT sku_prices_sku_fkey FOREIGN KEY (sku) REFERENCES skus(code)
);

CREATE TABLE skus (
    code text NOT NULL,
    name text NOT NULL,
    shape text NOT NULL,
    gpu_model text NOT NULL,
    gpus_allowed smallint[] NOT NULL,
    price_micros_per_gpu_second bigint NOT NULL,
    currency text NOT NULL,
    provision_timeout_seconds integer NOT NULL DEFAULT 600,
    CONSTRAINT skus_gpus_allowed_check CHECK ((cardinality(gpus_allowed) > 0)),
    CONSTRAINT skus_pkey PRIMARY KEY (code),
    CONSTRAINT skus_price_micros_per_gpu_second_check CHECK ((price_micros_per_gpu_second >= 0)),
    CONSTRAINT skus_provision_timeout_seconds_check CHECK ((provision_timeout_seconds > 0)),
    CONSTRAINT skus_shape_check CHECK ((shape = ANY (ARRAY['baremetal'::text, 'gpu_slice'::text])))
);

CREATE TABLE slots (
    id uuid NOT NULL,
    node_id uuid NOT NULL,
    slot_index smallint NOT NULL,
    numa_node smallint NOT NULL DEFAULT 0,
    CONSTRAINT slots_node_id_fkey FOREIGN KEY (node_id) REFERENCES nodes(id),
    CONSTRAINT slots_node_id_slot_index_key UNIQUE (node_id, slot_index),
    CONSTRAINT slots_pkey PRIMARY KEY (id)
);

CREATE TABLE ssh_keys (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    name text NOT NULL,
    public_key text NOT NULL,
    algorithm text NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ssh_keys_pkey PRIMARY KEY (id),
    CONSTRAINT ssh_keys_user_id_fingerprint_key UNIQUE (user_id, fingerprint),
    CONSTRAINT ssh_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);

CREATE TABLE storage_attachments (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'requested'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    operation_id uuid NOT NULL,
    mounted_at timestamp with time zone,
    reason text,
    ended_at timestamp with time zone,
    CONSTRAINT storage_attachments_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT storage_attachments_pkey PRIMARY KEY (id)
);

CREATE TABLE terminal_sessions (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'opening'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid NOT NULL,
    operation_id uuid NOT NULL,
    opened_at timestamp with time zone,
    reason text,
    ended_at timestamp with time zone,
    CONSTRAINT terminal_sessions_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT terminal_sessions_pkey PRIMARY KEY (id)
);

CREATE TABLE usage_credits (
    usage_record_id uuid NOT NULL,
    window_at timestamp with time zone NOT NULL,
    amount_minor bigint NOT NULL,
    posting_id uuid NOT NULL,
    outage_id uuid NOT NULL,
    CONSTRAINT usage_credits_amount_minor_check CHECK ((amount_minor >= 0)),
    CONSTRAINT usage_credits_pkey PRIMARY KEY (usage_record_id, window_at)
);

CREATE TABLE usage_kept (
    one boolean NOT NULL DEFAULT true,
    windows_since timestamp with time zone NOT NULL,
    CONSTRAINT usage_kept_one_check CHECK (one),
    CONSTRAINT usage_kept_pkey PRIMARY KEY (one)
);

CREATE TABLE usage_records (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'open'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    opened_seq bigint,
    account_id uuid,
    project_id uuid,
    node_id uuid,
    sku text,
    gpus smallint,
    price_micros_per_gpu_second bigint NOT NULL DEFAULT 0,
    micros_per_minor bigint NOT NULL DEFAULT 10000,
    repriced boolean NOT NULL DEFAULT false,
    charged_from timestamp with time zone,
    charged_until timestamp with time zone,
    charged_minor bigint NOT NULL DEFAULT 0,
    settled_at timestamp with time zone,
    CONSTRAINT usage_records_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT usage_records_micros_per_minor_check CHECK ((micros_per_minor > 0)),
    CONSTRAINT usage_records_pkey PRIMARY KEY (id)
) WITH (fillfactor=60);

CREATE TABLE usage_windows (
    usage_record_id uuid NOT NULL,
    window_at timestamp with time zone NOT NULL,
    micros integer NOT NULL,
    amount_minor bigint NOT NULL,
    posting_id uuid,
    heartbeat_at timestamp with time zone,
    CONSTRAINT usage_windows_amount_minor_check CHECK ((amount_minor >= 0)),
    CONSTRAINT usage_windows_micros_check CHECK (((micros >= 1) AND (micros <= 60000000))),
    CONSTRAINT usage_windows_pkey PRIMARY KEY (usage_record_id, window_at)
) PARTITION BY RANGE (window_at);

CREATE TABLE users (
    id uuid NOT NULL,
    email text NOT NULL,
    name text NOT NULL,
    password_hash text,
    operator boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    disabled_at timestamp with time zone,
    CONSTRAINT users_pkey PRIMARY KEY (id)
);

CREATE TABLE webhook_deliveries (
    webhook_id uuid NOT NULL,
    notification_id uuid NOT NULL,
    queued_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamp with time zone DEFAULT clock_timestamp(),
    delivered_at timestamp with time zone,
    given_up_at timestamp with time zone,
    http_status smallint,
    error text,
    attempted_at timestamp with time zone,
    CONSTRAINT webhook_deliveries_notification_id_fkey FOREIGN KEY (notification_id) REFERENCES notifications(id),
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (webhook_id, notification_id),
    CONSTRAINT webhook_deliveries_webhook_id_fkey FOREIGN KEY (webhook_id) REFERENCES webhooks(id)
);

CREATE TABLE webhooks (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    url text NOT NULL,
    secret text NOT NULL,
    previous_secret text,
    previous_secret_until timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamp with time zone,
    CONSTRAINT webhooks_pkey PRIMARY KEY (id),
    CONSTRAINT webhooks_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id)
);

CREATE TABLE workflow_runs (
    id text NOT NULL,
    workflow text NOT NULL,
    entity_id uuid NOT NULL,
    state jsonb NOT NULL,
    pending jsonb NOT NULL DEFAULT '[]'::jsonb,
    wake_at timestamp with time zone,
    waits_for text,
    lease_until timestamp with time zone,
    lease bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    reason text,
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    done_at timestamp with time zone,
    announced_until timestamp with time zone,
    due_since timestamp with time zone,
    traceparent text,
    CONSTRAINT workflow_runs_pkey PRIMARY KEY (id)
);

CREATE INDEX accounts_crossing ON public.accounts USING btree (id) WHERE (status <>
CASE
    WHEN (balance_minor <= 0) THEN 'depleted'::text
    WHEN (balance_minor <= low_balance_threshold_minor) THEN 'low_balance'::text
    ELSE 'healthy'::text
END);

CREATE INDEX accounts_depleted ON public.accounts USING btree (status_at) WHERE (status = 'depleted'::text);

CREATE UNIQUE INDEX accounts_owner ON public.accounts USING btree (owner_id) WHERE (owner_id IS NOT NULL);

CREATE INDEX allocation_groups_pending ON public.allocation_groups USING btree (release_noted_at) WHERE ((release_id IS NOT NULL) AND (release_passed_on_at IS NULL));

CREATE INDEX allocation_groups_project ON public.allocation_groups USING btree (project_id, id);

CREATE INDEX allocation_groups_waiting ON public.allocation_groups USING btree (status, status_at) WHERE (status <> ALL (ARRAY['active'::text, 'released'::text, 'failed'::text]));

CREATE INDEX allocations_group ON public.allocations USING btree (group_id) WHERE (group_id IS NOT NULL);

CREATE INDEX allocations_learnt ON public.allocations USING btree (sku, image, active_at) WHERE (active_at IS NOT NULL);

CREATE INDEX allocations_project ON public.allocations USING btree (project_id, id);

CREATE INDEX allocations_waiting ON public.allocations USING btree (status, status_at) WHERE (status <> ALL (ARRAY['active'::text, 'released'::text, 'failed'::text]));

CREATE INDEX api_tokens_end ON public.api_tokens USING btree (LEAST(expires_at, revoked_at));

CREATE INDEX api_tokens_user ON public.api_tokens USING btree (user_id, id);

CREATE INDEX app_instances_allocation ON public.app_instances USING btree (allocation_id) WHERE (allocation_id IS NOT NULL);

CREATE INDEX app_instances_group ON public.app_instances USING btree (group_id) WHERE (group_id IS NOT NULL);

CREATE INDEX app_instances_project ON public.app_instances USING btree (project_id, id);

CREATE INDEX audit_entries_at ON public.audit_entries USING btree (at, id);

CREATE INDEX audit_entries_project ON public.audit_entries USING btree (project_id, at) WHERE (project_id IS NOT NULL);

CREATE INDEX audit_entries_target ON public.audit_entries USING btree (target, at);

CREATE INDEX audit_entries_user ON public.audit_entries USING btree (user_id, at);

CREATE INDEX bus_deliveries_dead ON public.bus_deliveries USING btree (dead_at, event_id, consumer) WHERE (dead_at IS NOT NULL);

CREATE INDEX bus_deliveries_due ON public.bus_deliveries USING btree (consumer, due_at, event_id) WHERE (dead_at IS NULL);

CREATE INDEX bus_deliveries_entity ON public.bus_deliveries USING btree (consumer, entity_id, seq, event_id) WHERE (dead_at IS NULL);

CREATE INDEX claims_allocation ON public.claims USING btree (allocation_id);

CREATE UNIQUE INDEX claims_live_node ON public.claims USING btree (node_id) WHERE ((slot_id IS NULL) AND (status <> 'freed'::text));

CREATE INDEX claims_live_on_node ON public.claims USING btree (node_id) WHERE (status <> 'freed'::text);

CREATE UNIQUE INDEX claims_live_slot ON public.claims USING btree (slot_id) WHERE ((slot_id IS NOT NULL) AND (status <> 'freed'::text));

CREATE INDEX claims_waiting ON public.claims USING btree (status, status_at) WHERE (status <> ALL (ARRAY['held'::text, 'freed'::text]));

CREATE INDEX consumed_events_age ON public.consumed_events USING btree (consumed_at);

CREATE INDEX findings_closed ON public.findings USING btree (closed_at) WHERE (closed_at IS NOT NULL);

CREATE UNIQUE INDEX findings_open ON public.findings USING btree (kind, subject) WHERE (closed_at IS NULL);

CREATE INDEX idempotency_keys_age ON public.idempotency_keys USING btree (created_at);

CREATE INDEX join_tokens_unused ON public.join_tokens USING btree (node_id) WHERE (used_at IS NULL);

CREATE INDEX ledger_entries_account ON public.ledger_entries USING btree (account_id, number) WHERE (account_id IS NOT NULL);

CREATE UNIQUE INDEX ledger_entries_posting ON public.ledger_entries USING btree (posting_id, book);

CREATE INDEX ledger_postings_source ON public.ledger_postings USING btree (source_id) WHERE (source_id IS NOT NULL);

CREATE INDEX lifecycle_refusals_age ON public.lifecycle_refusals USING btree (occurred_at);

CREATE UNIQUE INDEX node_agents_live ON public.node_agents USING btree (node_id) WHERE (revoked_at IS NULL);

CREATE INDEX node_agents_revoked ON public.node_agents USING btree (revoked_at) WHERE (revoked_at IS NOT NULL);

CREATE INDEX node_certificates_agent ON public.node_certificates USING btree (agent_id, not_after);

CREATE INDEX node_certificates_end ON public.node_certificates USING btree (not_after);

CREATE UNIQUE INDEX node_outages_open ON public.node_outages USING btree (node_id) WHERE (until_at IS NULL);

CREATE INDEX node_outages_owed ON public.node_outages USING btree (id) WHERE ((until_at IS NULL) OR (credited_until < until_at));

CREATE INDEX node_task_events_age ON public.node_task_events USING btree (received_at);

CREATE INDEX node_task_events_position ON public.node_task_events USING btree (task_id, "position");

CREATE INDEX node_tasks_allocation ON public.node_tasks USING btree (allocation_id) WHERE (allocation_id IS NOT NULL);

CREATE INDEX node_tasks_deadline ON public.node_tasks USING btree (deadline_at) WHERE (status = ANY (ARRAY['queued'::text, 'dispatched'::text]));

CREATE INDEX node_tasks_learnt ON public.node_tasks USING btree (kind, sku, image, ended_at) WHERE ((status = 'succeeded'::text) AND (cleanup_complete IS NOT FALSE));

CREATE INDEX node_tasks_lease ON public.node_tasks USING btree (lease_until) WHERE (status = 'dispatched'::text);

CREATE INDEX node_tasks_queued ON public.node_tasks USING btree (node_id, created_at, id) WHERE (status = 'queued'::text);

CREATE INDEX node_tasks_succeeded ON public.node_tasks USING btree (kind, ended_at) WHERE (status = 'succeeded'::text);

CREATE INDEX nodes_free ON public.nodes USING btree (sku, region, free_slots, free_numa_max, id) WHERE ((status = 'ready'::text) AND (free_slots > 0));

CREATE INDEX nodes_heard_after ON public.nodes USING btree (heard_after) WHERE (status = 'ready'::text);

CREATE INDEX notifications_age ON public.notifications USING btree (created_at);

CREATE UNIQUE INDEX notifications_cause ON public.notifications USING btree (user_id, cause);

CREATE UNIQUE INDEX notifications_number ON public.notifications USING btree (user_id, number);

CREATE INDEX notifications_unread ON public.notifications USING btree (user_id, number) WHERE (read_at IS NULL);

CREATE INDEX outbox_events_unpublished ON public.outbox_events USING btree ("position") WHERE (published_at IS NULL);

CREATE INDEX payment_events_due ON public.payment_events USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX payment_events_open ON public.payment_events USING btree (received_at, id) WHERE (outcome = ANY (ARRAY['unmatched'::text, 'failed'::text, 'exceeds'::text]));

CREATE INDEX payment_events_received ON public.payment_events USING btree (received_at, id);

CREATE INDEX payment_events_session ON public.payment_events USING btree (session_id) WHERE (session_id IS NOT NULL);

CREATE INDEX payment_sessions_account ON public.payment_sessions USING btree (account_id, id);

CREATE UNIQUE INDEX payment_sessions_key ON public.payment_sessions USING btree (user_id, idempotency_key);

CREATE INDEX payment_sessions_open ON public.payment_sessions USING btree (status, status_at) WHERE (status <> ALL (ARRAY['credited'::text, 'expired'::text]));

CREATE UNIQUE INDEX payment_sessions_payment ON public.payment_sessions USING btree (stripe_payment_intent_id);

CREATE UNIQUE INDEX payment_sessions_stripe ON public.payment_sessions USING btree (stripe_checkout_session_id);

CREATE INDEX payment_sessions_user ON public.payment_sessions USING btree (user_id, id);

CREATE INDEX project_members_project ON public.project_members USING btree (project_id, user_id);

CREATE INDEX projects_account ON public.projects USING btree (account_id);

CREATE UNIQUE INDEX terminal_sessions_live ON public.terminal_sessions USING btree (allocation_id) WHERE (status <> ALL (ARRAY['closed'::text, 'error'::text]));

CREATE INDEX usage_credits_posting ON public.usage_credits USING btree (posting_id);

CREATE INDEX usage_records_account ON public.usage_records USING btree (account_id, started_at);

CREATE INDEX usage_records_ended ON public.usage_records USING btree (account_id, id) WHERE ((settled_at IS NULL) AND (account_id IS NOT NULL) AND (ended_at IS NOT NULL));

CREATE INDEX usage_records_node_end ON public.usage_records USING btree (node_id, COALESCE(ended_at, 'infinity'::timestamp with time zone));

CREATE UNIQUE INDEX usage_records_open ON public.usage_records USING btree (allocation_id) WHERE (status = 'open'::text);

CREATE UNIQUE INDEX usage_records_opening ON public.usage_records USING btree (allocation_id, opened_seq);

CREATE INDEX usage_records_unsettled ON public.usage_records USING btree (account_id, id) WHERE ((settled_at IS NULL) AND (account_id IS NOT NULL));

CREATE INDEX usage_windows_posting ON ONLY public.usage_windows USING btree (posting_id);

CREATE UNIQUE INDEX users_email ON public.users USING btree (lower(email));

CREATE INDEX webhook_deliveries_due ON public.webhook_deliveries USING btree (due_at) WHERE (due_at IS NOT NULL);

CREATE INDEX webhook_deliveries_notification ON public.webhook_deliveries USING btree (notification_id);

CREATE INDEX webhooks_user ON public.webhooks USING btree (user_id, id) WHERE (deleted_at IS NULL);

CREATE INDEX workflow_runs_done ON public.workflow_runs USING btree (done_at) WHERE (done_at IS NOT NULL);

CREATE INDEX workflow_runs_due ON public.workflow_runs USING btree (wake_at) WHERE (done_at IS NULL);

CREATE INDEX workflow_runs_entity ON public.workflow_runs USING btree (entity_id);

CREATE OR REPLACE FUNCTION public.count_free_of(touched uuid[])
 RETURNS void
 LANGUAGE plpgsql
 SET enable_seqscan TO 'off'
AS $function$
BEGIN
    PERFORM 1 FROM nodes WHERE id = ANY (touched) ORDER BY id FOR NO KEY UPDATE;
    UPDATE nodes
       SET free_slots = CASE WHEN nodes.whole THEN counted.untouched::int ELSE counted.in_all END,
           free_numa_max = CASE WHEN nodes.whole THEN counted.untouched::int ELSE counted.on_one END
      FROM unnest(touched) AS of_node (id)
     CROSS JOIN LATERAL (
            SELECT claimed.slots IS NULL AS untouched, coalesce(sum(free.slots), 0) AS in_all, coalesce(max(free.slots), 0) AS on_one
              FROM (
                    SELECT array_agg(slot_id) AS slots, bool_or(slot_id IS NULL) AS wholly
                      FROM claims
                     WHERE node_id = of_node.id AND status <> 'freed'
                   ) AS claimed
              LEFT JOIN LATERAL (
                    SELECT count(*) AS slots
                      FROM slots
                     WHERE slots.node_id = of_node.id
                       AND claimed.wholly IS NOT TRUE
                       AND (claimed.slots IS NULL OR slots.id <> ALL (claimed.slots))
                     GROUP BY slots.numa_node
                   ) AS free ON true
             GROUP BY claimed.slots
           ) AS counted
     WHERE nodes.id = of_node.id;
END;
$function$;

CREATE OR REPLACE FUNCTION public.count_free_of_moved()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    touched uuid[];
BEGIN
    touched := ARRAY(
        SELECT DISTINCT changed.node_id
          FROM changed
          JOIN former ON former.id = changed.id
         WHERE (changed.status = 'freed') <> (former.status = 'freed'));
    -- A claim that moves otherwise changes nothing.
    IF cardinality(touched) > 0 THEN
        PERFORM count_free_of(touched);
    END IF;
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.count_free_of_new()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM count_free_of(ARRAY(SELECT DISTINCT node_id FROM changed));
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.drop_usage_part(older_than timestamp with time zone)
 RETURNS boolean
 LANGUAGE plpgsql
 SET lock_timeout TO '1s'
AS $function$
DECLARE
    oldest record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('berth usage days')) THEN
        RETURN false;
    END IF;
    SELECT part, until INTO oldest FROM usage_parts() ORDER BY until LIMIT 1;
    IF oldest.part IS NULL OR oldest.until > older_than THEN
        -- What went elsewhere goes when all of it is that old.
        SELECT 'usage_windows_other'::name AS part, windows_since AS until INTO oldest FROM usage_kept;
        IF oldest.part IS NULL OR NOT EXISTS (SELECT 1 FROM usage_windows_other)
           OR EXISTS (SELECT 1 FROM usage_windows_other WHERE window_at >= oldest.until) THEN
            RETURN false;
        END IF;
    END IF;
    IF EXISTS (
           SELECT 1
             FROM usage_records
            WHERE settled_at IS NULL AND account_id IS NOT NULL AND charged_until < oldest.until)
       OR EXISTS (
           SELECT 1
             FROM node_outages AS outage
            CROSS JOIN LATERAL (
                  SELECT id
                    FROM usage_records
                   WHERE node_id = outage.node_id AND coalesce(ended_at, 'infinity') > outage.from_at
                     AND started_at < least(outage.until_at, oldest.until) AND account_id IS NOT NULL
                  OFFSET 0
                  ) AS record
            CROSS JOIN LATERAL (
                  SELECT 1
                    FROM usage_windows AS one
                   WHERE usage_record_id = record.id
                     AND window_at >= date_trunc('minute', outage.from_at, 'UTC') AND window_at < least(outage.until_at, oldest.until)
                     AND (SELECT 1
                            FROM usage_credits AS given
                           WHERE given.usage_record_id = one.usage_record_id AND given.window_at = one.window_at
                           LIMIT 1) IS NULL
                   OFFSET 0
                  ) AS owed
            WHERE outage.until_at IS NULL OR outage.credited_until < outage.until_at) THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %I', oldest.part);
    IF oldest.part = 'usage_windows_other' THEN
        PERFORM make_usage_other();
    END IF;
    INSERT INTO usage_kept AS kept (windows_since) VALUES (oldest.until)
        ON CONFLICT (one) DO UPDATE SET windows_since = greatest(kept.windows_since, EXCLUDED.windows_since);
    RETURN true;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_allocation()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'requested' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'allocation % is born in status % (seq %): a allocation is born in requested (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'requested provisioning',
            'requested releasing',
            'requested failed',
            'provisioning active',
            'provisioning releasing',
            'provisioning failed',
            'active restarting',
            'active releasing',
            'restarting active',
            'restarting restart_failed',
            'restarting releasing',
            'restart_failed restarting',
            'restart_failed releasing',
            'releasing release_failed',
            'releasing released',
            'release_failed releasing',
            'release_failed released'
        ) THEN
        RAISE EXCEPTION 'allocation %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_allocation_group()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'requested' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'allocation_group % is born in status % (seq %): a allocation_group is born in requested (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'requested provisioning',
            'requested releasing',
            'requested failed',
            'provisioning active',
            'provisioning degraded',
            'provisioning releasing',
            'provisioning release_failed',
            'provisioning released',
            'provisioning failed',
            'active degraded',
            'active releasing',
            'degraded active',
            'degraded releasing',
            'releasing release_failed',
            'releasing released',
            'release_failed releasing',
            'release_failed released'
        ) THEN
        RAISE EXCEPTION 'allocation_group %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_balance()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'healthy' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'balance % is born in status % (seq %): a balance is born in healthy (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'healthy low_balance',
            'healthy depleted',
            'low_balance healthy',
            'low_balance depleted',
            'depleted healthy',
            'depleted low_balance'
        ) THEN
        RAISE EXCEPTION 'balance %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_claim()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'reserved' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'claim % is born in status % (seq %): a claim is born in reserved (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'reserved held',
            'reserved cleaning',
            'held cleaning',
            'cleaning stuck',
            'cleaning freed',
            'stuck cleaning',
            'stuck quarantined',
            'quarantined freed'
        ) THEN
        RAISE EXCEPTION 'claim %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_node()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'enrolling' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'node % is born in status % (seq %): a node is born in enrolling (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'enrolling ready',
            'enrolling retired',
            'ready offline',
            'ready draining',
            'ready retired',
            'offline ready',
            'offline draining',
            'offline retired',
            'draining maintenance',
            'draining retired',
            'maintenance ready',
            'maintenance retired'
        ) THEN
        RAISE EXCEPTION 'node %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_node_task()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'queued' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'node_task % is born in status % (seq %): a node_task is born in queued (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'queued dispatched',
            'queued cancelled',
            'queued expired',
            'dispatched queued',
            'dispatched succeeded',
            'dispatched failed',
            'dispatched cancelled',
            'dispatched expired'
        ) THEN
        RAISE EXCEPTION 'node_task %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_payment_session()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'initiated' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'payment_session % is born in status % (seq %): a payment_session is born in initiated (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'initiated checkout_completed',
            'initiated expired',
            'checkout_completed credited',
            'checkout_completed failed_reconcile',
            'expired checkout_completed',
            'failed_reconcile credited'
        ) THEN
        RAISE EXCEPTION 'payment_session %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_storage_attachment()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'requested' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'storage_attachment % is born in status % (seq %): a storage_attachment is born in requested (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'requested prechecking',
            'requested failed',
            'prechecking grant_applying',
            'prechecking failed',
            'grant_applying grant_applied',
            'grant_applying failed',
            'grant_applied mounting',
            'grant_applied failed',
            'mounting mounted',
            'mounting failed',
            'mounted detaching',
            'mounted detach_failed',
            'detaching detached',
            'detaching detach_failed',
            'failed detaching',
            'detach_failed detaching'
        ) THEN
        RAISE EXCEPTION 'storage_attachment %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_terminal_session()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'opening' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'terminal_session % is born in status % (seq %): a terminal_session is born in opening (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'opening active',
            'opening error',
            'active closing',
            'active error',
            'closing closed'
        ) THEN
        RAISE EXCEPTION 'terminal_session %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.enforce_usage_record()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'open' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION 'usage_record % is born in status % (seq %): a usage_record is born in open (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN (
            'open closed'
        ) THEN
        RAISE EXCEPTION 'usage_record %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
$function$;

CREATE OR REPLACE FUNCTION public.make_usage_day(day timestamp with time zone)
 RETURNS boolean
 LANGUAGE plpgsql
 SET lock_timeout TO '1s'
AS $function$
DECLARE
    begins timestamptz := date_trunc('day', day, 'UTC');
    ends   timestamptz := begins + interval '24 hours';
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('berth usage days')) THEN
        RETURN false;
    END IF;
    IF EXISTS (SELECT 1 FROM usage_parts() AS known WHERE known.since < ends AND known.until > begins)
       OR EXISTS (SELECT 1 FROM usage_windows_other WHERE window_at >= begins AND window_at < ends) THEN
        RETURN false;
    END IF;
    PERFORM make_usage_part(('usage_windows_' || to_char(begins AT TIME ZONE 'UTC', 'YYYYMMDD'))::name,
                            format('FOR VALUES FROM (%L) TO (%L)', begins, ends));
    RETURN true;
END;
$function$;

CREATE OR REPLACE FUNCTION public.make_usage_other()
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM make_usage_part('usage_windows_other', 'DEFAULT');
    CREATE INDEX usage_windows_other_at ON usage_windows_other (window_at);
END;
$function$;

CREATE OR REPLACE FUNCTION public.make_usage_part(part name, bound text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
BEGIN
    EXECUTE format('CREATE TABLE %I (LIKE usage_windows INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
        FOR EACH STATEMENT EXECUTE FUNCTION reject_change()', part);
    EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON %I FROM CURRENT_USER, PUBLIC', part);
    EXECUTE format('ALTER TABLE usage_windows ATTACH PARTITION %I %s', part, bound);
END;
$function$;

CREATE OR REPLACE FUNCTION public.micros_between(since timestamp with time zone, until timestamp with time zone)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT (extract(epoch FROM until - since) * 1000000)::bigint $function$;

CREATE OR REPLACE FUNCTION public.minor_micros(currency text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
    SELECT CASE WHEN currency IN ('BIF', 'CLP', 'DJF', 'GNF', 'JPY', 'KMF', 'KRW', 'MGA', 'PYG', 'RWF', 'UGX', 'VND', 'VUV', 'XAF', 'XOF',
                                  'XPF') THEN 1000000
                WHEN currency IN ('BHD', 'JOD', 'KWD', 'OMR', 'TND') THEN 1000
                ELSE 10000 END
$function$;

CREATE OR REPLACE FUNCTION public.minor_of(rate bigint, micros bigint, micros_per_minor bigint)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$ SELECT (rate * (micros / 1000000) + (rate * (micros % 1000000)) / 1000000) / micros_per_minor $function$;

CREATE OR REPLACE FUNCTION public.pick_node(in_region text, of_sku text, with_image text, wanted smallint)
 RETURNS uuid
 LANGUAGE plpgsql
AS $function$
DECLARE
    most      smallint;
    found_id  uuid;
    candidate uuid;
BEGIN
    SELECT free_slots INTO most
      FROM nodes
     WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
     ORDER BY free_slots DESC
     LIMIT 1;
    IF most IS NULL OR most < wanted THEN
        RETURN NULL;
    END IF;
    BEGIN
        FOR free IN wanted..most LOOP
            SELECT id INTO found_id
              FROM nodes
             WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
               AND free_slots = free AND free_numa_max >= wanted
               AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
             ORDER BY free_numa_max, id
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
        END LOOP;
        FOR free IN wanted..most LOOP
            SELECT id INTO found_id
              FROM nodes
             WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
               AND free_slots = free AND free_numa_max < wanted
               AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
             ORDER BY free_numa_max DESC, id
             LIMIT 1
               FOR NO KEY UPDATE SKIP LOCKED;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
        END LOOP;
        RAISE EXCEPTION 'nothing was found' USING ERRCODE = 'BT010';
    EXCEPTION WHEN SQLSTATE 'BT010' THEN
        NULL;
    END;
    FOR candidate IN
        SELECT id
          FROM nodes
         WHERE sku = of_sku AND region = in_region AND status = 'ready' AND free_slots > 0
           AND free_slots >= wanted
           AND EXISTS (SELECT 1 FROM node_images WHERE node_id = nodes.id AND image = with_image)
         ORDER BY free_slots, free_numa_max, id
    LOOP
        BEGIN
            PERFORM 1 FROM nodes WHERE id = candidate FOR NO KEY UPDATE;
            SELECT id INTO found_id FROM nodes WHERE id = candidate AND status = 'ready' AND free_slots >= wanted;
            IF found_id IS NOT NULL THEN
                RETURN found_id;
            END IF;
            RAISE EXCEPTION 'somebody else took it' USING ERRCODE = 'BT010';
        EXCEPTION WHEN SQLSTATE 'BT010' THEN
            NULL;
        END;
    END LOOP;
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.pick_nodes(regions text[], skus text[], images text[], wanted smallint[], requests integer[])
 RETURNS TABLE(kind integer, node uuid, name text, on_one boolean, slots uuid[], indexes smallint[], numas smallint[])
 LANGUAGE plpgsql
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
AS $function$
#variable_conflict use_column
DECLARE
    most    smallint;
    missing integer;
    each    integer;
    fit     integer;
    found   uuid[];
    picked  uuid[];
    taken   uuid[] := '{}';
    lefts   integer[] := '{}';
BEGIN
    FOR k IN 1..cardinality(wanted) LOOP
        SELECT nodes.free_slots INTO most
          FROM nodes
         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
         ORDER BY nodes.free_slots DESC
         LIMIT 1;
        IF most IS NULL OR most < wanted[k] THEN
            RETURN QUERY SELECT k, NULL::uuid, NULL::text, NULL::boolean, NULL::uuid[], NULL::smallint[], NULL::smallint[];
            CONTINUE;
        END IF;
        missing := requests[k];
        IF k > 1 AND (skus[k], regions[k], images[k]) IS DISTINCT FROM (skus[k - 1], regions[k - 1], images[k - 1]) THEN
            lefts := '{}';
        END IF;
        FOR i IN 1..cardinality(lefts) LOOP
            fit := least(missing, lefts[i] / wanted[k]);
            lefts[i] := lefts[i] - fit * wanted[k];
            missing := missing - fit;
        END LOOP;
        FOR pass IN 1..2 LOOP
            EXIT WHEN missing <= 0;
            picked := '{}';
            FOR free IN wanted[k]..most LOOP
                EXIT WHEN missing <= 0;
                each := free / wanted[k];
                -- Two statements, so that each has one range of the index, in its order. The image is asked for as a value: as EXISTS
                -- it would be a join with every node that has it, because nobody knows how small the limit is.
                IF pass = 1 THEN
                    found := ARRAY(
                        SELECT nodes.id
                          FROM nodes
                         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
                           AND nodes.free_slots = free AND nodes.free_numa_max >= wanted[k]
                           AND nodes.id <> ALL (taken)
                           AND (SELECT true FROM node_images WHERE node_images.node_id = nodes.id AND node_images.image = images[k])
                         ORDER BY nodes.free_numa_max, nodes.id
                         LIMIT (missing + each - 1) / each
                           FOR NO KEY UPDATE SKIP LOCKED);
                ELSE
                    found := ARRAY(
                        SELECT nodes.id
                          FROM nodes
                         WHERE nodes.sku = skus[k] AND nodes.region = regions[k] AND nodes.status = 'ready' AND nodes.free_slots > 0
                           AND nodes.free_slots = free AND nodes.free_numa_max < wanted[k]
                           AND nodes.id <> ALL (taken)
                           AND (SELECT true FROM node_images WHERE node_images.node_id = nodes.id AND node_images.image = images[k])
                         ORDER BY nodes.free_numa_max DESC, nodes.id DESC
                         LIMIT (missing + each - 1) / each
                           FOR NO KEY UPDATE SKIP LOCKED);
                END IF;
                picked := picked || found;
                taken := taken || found;
                FOR i IN 1..cardinality(found) LOOP
                    fit := least(missing, each);
                    lefts := lefts || (free - fit * wanted[k])::integer;
                    missing := missing - fit;
                END LOOP;
            END LOOP;
            -- In a statement of its own, after the locks: it sees every claim that was there before them.
            RETURN QUERY
                SELECT k, nodes.id, nodes.name, pass = 1, free.slots, free.indexes, free.numas
                  FROM unnest(picked) AS id
                  JOIN nodes USING (id)
                 CROSS JOIN LATERAL (
                        SELECT array_agg(slots.id ORDER BY slots.slot_index) AS slots,
                               array_agg(slots.slot_index ORDER BY slots.slot_index) AS indexes,
                               array_agg(slots.numa_node ORDER BY slots.slot_index) AS numas
                          FROM slots
                         WHERE slots.node_id = nodes.id
                           -- By the node's own claims: as NOT EXISTS it is a join, which may be planned while there are no claims, and then
                           -- reads all there ever were.
                           AND slots.id <> ALL (ARRAY(
                                SELECT claims.slot_id
                                  FROM claims
                                 WHERE claims.node_id = nodes.id AND claims.status <> 'freed' AND claims.slot_id IS NOT NULL))
                       ) AS free;
        END LOOP;
    END LOOP;
END;
$function$;

CREATE OR REPLACE FUNCTION public.reject_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION '% is append-only: % is not allowed', TG_TABLE_NAME, TG_OP USING ERRCODE = 'BT002';
END;
$function$;

CREATE OR REPLACE FUNCTION public.repriced_minor(of_allocation uuid, agreed bigint, gpus smallint, since timestamp with time zone, until timestamp with time zone, micros_per_minor bigint)
 RETURNS bigint
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
    SELECT coalesce((sum(price * gpus * (micros / 1000000)) + div(sum(price * gpus * (micros % 1000000)), 1000000))::bigint / micros_per_minor, 0)
      FROM (
           SELECT price, micros_between(greatest(from_at, since), least(coalesce(lead(from_at) OVER (ORDER BY from_at), 'infinity'), until)) AS micros
             FROM (
                  SELECT '-infinity'::timestamptz AS from_at, agreed AS price
                  UNION ALL
                  SELECT from_at, price_micros_per_gpu_second FROM allocation_prices WHERE allocation_id = of_allocation
                  ) AS stretch
           ) AS priced
     WHERE micros > 0
$function$;

CREATE OR REPLACE FUNCTION public.require_balance()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    broken uuid;
BEGIN
    SELECT posting_id INTO broken FROM entered GROUP BY posting_id HAVING sum(amount_minor) <> 0 OR count(*) < 2 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the entries of posting % do not sum to zero', broken USING ERRCODE = 'BT003';
    END IF;
    SELECT posting_id INTO broken FROM entered WHERE NOT EXISTS (SELECT 1 FROM ledger_postings WHERE id = posting_id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'there is no posting %', broken USING ERRCODE = 'BT003';
    END IF;
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.require_birth_records()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION public.require_entries()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    broken uuid;
BEGIN
    SELECT id INTO broken FROM posted WHERE NOT EXISTS (SELECT 1 FROM ledger_entries WHERE posting_id = id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'posting % has no entries', broken USING ERRCODE = 'BT003';
    END IF;
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.require_log_record()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NOT EXISTS (
        SELECT 1
          FROM lifecycle_log
         WHERE entity_id = NEW.id
           AND seq = NEW.seq
           AND machine = TG_ARGV[0]
           AND to_status = NEW.status
           -- At a birth there is no old row, and no status before.
           AND from_status IS NOT DISTINCT FROM OLD.status
    ) THEN
        RAISE EXCEPTION '% % moved to % (seq %) without its record in lifecycle_log',
            TG_ARGV[0], NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT003';
    END IF;
    RETURN NULL;
END;
$function$;

CREATE OR REPLACE FUNCTION public.require_move_records()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION public.require_owed_record()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
$function$;

CREATE OR REPLACE FUNCTION public.require_won(won boolean)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF won IS NOT TRUE THEN
        RAISE EXCEPTION 'somebody else was faster' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN true;
END;
$function$;

CREATE OR REPLACE FUNCTION public.usage_parts()
 RETURNS TABLE(part name, since timestamp with time zone, until timestamp with time zone)
 LANGUAGE sql
 STABLE
AS $function$
    SELECT relname,
           coalesce(substring(bound FROM 'FROM \(''([^'']+)''\)'), '-infinity')::timestamptz,
           substring(bound FROM 'TO \(''([^'']+)''\)')::timestamptz
      FROM pg_inherits
      JOIN pg_class ON pg_class.oid = inhrelid
     CROSS JOIN LATERAL pg_get_expr(relpartbound, pg_class.oid) AS bound
     WHERE inhparent = 'usage_windows'::regclass AND bound <> 'DEFAULT'
$function$;

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.accounts FOR EACH ROW EXECUTE FUNCTION enforce_balance();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.accounts REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('balance');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.accounts FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.accounts FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_balance();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.accounts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('balance');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.allocation_groups FOR EACH ROW EXECUTE FUNCTION enforce_allocation_group();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.allocation_groups REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('allocation_group');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.allocation_groups FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.allocation_groups FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_allocation_group();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.allocation_groups DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('allocation_group');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.allocations FOR EACH ROW EXECUTE FUNCTION enforce_allocation();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.allocations REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('allocation');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.allocations FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.allocations FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_allocation();

CREATE TRIGGER lifecycle_move_record AFTER UPDATE ON public.allocations REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_move_records('allocation');

CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON public.audit_entries FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER kept_while_young BEFORE DELETE ON public.audit_entries FOR EACH ROW WHEN ((old.at > (clock_timestamp() - '30 days'::interval))) EXECUTE FUNCTION reject_change();

CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON public.audit_links FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER kept_while_young BEFORE DELETE ON public.audit_links FOR EACH ROW WHEN ((old.at > (clock_timestamp() - '29 days'::interval))) EXECUTE FUNCTION reject_change();

CREATE TRIGGER count_free_of_moved AFTER UPDATE ON public.claims REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_moved();

CREATE TRIGGER count_free_of_new AFTER INSERT ON public.claims REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_new();

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.claims FOR EACH ROW EXECUTE FUNCTION enforce_claim();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.claims REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('claim');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.claims FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.claims FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_claim();

CREATE TRIGGER lifecycle_move_record AFTER UPDATE ON public.claims REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_move_records('claim');

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.ledger_entries FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER balanced AFTER INSERT ON public.ledger_entries REFERENCING NEW TABLE AS entered FOR EACH STATEMENT EXECUTE FUNCTION require_balance();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.ledger_postings FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER entered AFTER INSERT ON public.ledger_postings REFERENCING NEW TABLE AS posted FOR EACH STATEMENT EXECUTE FUNCTION require_entries();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.lifecycle_log FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE CONSTRAINT TRIGGER owed AFTER INSERT ON public.lifecycle_owed DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_owed_record();

CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON public.lifecycle_refusals FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER kept_while_young BEFORE DELETE ON public.lifecycle_refusals FOR EACH ROW WHEN ((old.occurred_at > (clock_timestamp() - '30 days'::interval))) EXECUTE FUNCTION reject_change();

CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON public.node_task_events FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER kept_while_young BEFORE DELETE ON public.node_task_events FOR EACH ROW WHEN ((old.received_at > (clock_timestamp() - '30 days'::interval))) EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.node_tasks FOR EACH ROW EXECUTE FUNCTION enforce_node_task();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.node_tasks REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('node_task');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.node_tasks FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.node_tasks FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_node_task();

CREATE TRIGGER lifecycle_move_record AFTER UPDATE ON public.node_tasks REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_move_records('node_task');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.nodes FOR EACH ROW EXECUTE FUNCTION enforce_node();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.nodes REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('node');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.nodes FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.nodes FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_node();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.nodes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('node');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.payment_sessions FOR EACH ROW EXECUTE FUNCTION enforce_payment_session();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.payment_sessions REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('payment_session');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.payment_sessions FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.payment_sessions FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_payment_session();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.payment_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('payment_session');

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.release_receipts FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER count_free_of_new AFTER INSERT ON public.slots REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_free_of_new();

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.storage_attachments FOR EACH ROW EXECUTE FUNCTION enforce_storage_attachment();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.storage_attachments REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('storage_attachment');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.storage_attachments FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.storage_attachments FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_storage_attachment();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.storage_attachments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('storage_attachment');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.terminal_sessions FOR EACH ROW EXECUTE FUNCTION enforce_terminal_session();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.terminal_sessions REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('terminal_session');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.terminal_sessions FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.terminal_sessions FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_terminal_session();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.terminal_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('terminal_session');

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.usage_credits FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.usage_records FOR EACH ROW EXECUTE FUNCTION enforce_usage_record();

CREATE TRIGGER lifecycle_birth_record AFTER INSERT ON public.usage_records REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('usage_record');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.usage_records FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.usage_records FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_usage_record();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.usage_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('usage_record');

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.usage_windows FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
