-- Generated from the migrations and the machines by `cargo xtask gen`. Do not edit.

CREATE TABLE accounts (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'healthy'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    balance_minor bigint NOT NULL DEFAULT 0,
    low_balance_threshold_minor bigint NOT NULL DEFAULT 1000,
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
    CONSTRAINT allocation_groups_pkey PRIMARY KEY (id)
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
    CONSTRAINT allocations_gpus_check CHECK ((gpus > 0)),
    CONSTRAINT allocations_group_id_fkey FOREIGN KEY (group_id) REFERENCES allocation_groups(id),
    CONSTRAINT allocations_pkey PRIMARY KEY (id)
) WITH (fillfactor=80);

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
    CONSTRAINT lifecycle_log_birth CHECK (((seq = 1) = (from_status IS NULL))),
    CONSTRAINT lifecycle_log_event UNIQUE (entity_id, event_id, machine),
    CONSTRAINT lifecycle_log_seq_check CHECK ((seq >= 1)),
    CONSTRAINT lifecycle_log_step PRIMARY KEY (entity_id, seq, machine)
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
    CONSTRAINT nodes_name_key UNIQUE (name),
    CONSTRAINT nodes_pkey PRIMARY KEY (id)
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
    CONSTRAINT outbox_events_pkey PRIMARY KEY (id)
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
    CONSTRAINT payment_sessions_amount_minor_check CHECK ((amount_minor > 0)),
    CONSTRAINT payment_sessions_pkey PRIMARY KEY (id)
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

CREATE TABLE usage_records (
    id uuid NOT NULL,
    status text NOT NULL DEFAULT 'open'::text,
    seq bigint NOT NULL DEFAULT 1,
    status_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    allocation_id uuid NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT usage_records_allocation_id_fkey FOREIGN KEY (allocation_id) REFERENCES allocations(id),
    CONSTRAINT usage_records_pkey PRIMARY KEY (id)
);

CREATE INDEX allocations_group ON public.allocations USING btree (group_id) WHERE (group_id IS NOT NULL);

CREATE INDEX claims_allocation ON public.claims USING btree (allocation_id);

CREATE UNIQUE INDEX claims_live_node ON public.claims USING btree (node_id) WHERE ((slot_id IS NULL) AND (status <> 'freed'::text));

CREATE INDEX claims_live_on_node ON public.claims USING btree (node_id) WHERE (status <> 'freed'::text);

CREATE UNIQUE INDEX claims_live_slot ON public.claims USING btree (slot_id) WHERE ((slot_id IS NOT NULL) AND (status <> 'freed'::text));

CREATE INDEX node_tasks_allocation ON public.node_tasks USING btree (allocation_id) WHERE (allocation_id IS NOT NULL);

CREATE INDEX node_tasks_queued ON public.node_tasks USING btree (node_id, id) WHERE (status = 'queued'::text);

CREATE INDEX outbox_events_unpublished ON public.outbox_events USING btree (id) WHERE (published_at IS NULL);

CREATE UNIQUE INDEX terminal_sessions_live ON public.terminal_sessions USING btree (allocation_id) WHERE (status <> ALL (ARRAY['closed'::text, 'error'::text]));

CREATE UNIQUE INDEX usage_records_open ON public.usage_records USING btree (allocation_id) WHERE (status = 'open'::text);

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

CREATE OR REPLACE FUNCTION public.reject_change()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION '% is append-only: % is not allowed', TG_TABLE_NAME, TG_OP USING ERRCODE = 'BT002';
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

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.accounts FOR EACH ROW EXECUTE FUNCTION enforce_balance();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.accounts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('balance');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.accounts FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.accounts FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_balance();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.accounts DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('balance');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.allocation_groups FOR EACH ROW EXECUTE FUNCTION enforce_allocation_group();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.allocation_groups DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('allocation_group');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.allocation_groups FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.allocation_groups FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_allocation_group();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.allocation_groups DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('allocation_group');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.allocations FOR EACH ROW EXECUTE FUNCTION enforce_allocation();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.allocations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('allocation');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.allocations FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.allocations FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_allocation();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.allocations DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('allocation');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.claims FOR EACH ROW EXECUTE FUNCTION enforce_claim();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.claims DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('claim');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.claims FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.claims FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_claim();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.claims DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('claim');

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.lifecycle_log FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.lifecycle_refusals FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.node_tasks FOR EACH ROW EXECUTE FUNCTION enforce_node_task();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.node_tasks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('node_task');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.node_tasks FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.node_tasks FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_node_task();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.node_tasks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('node_task');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.nodes FOR EACH ROW EXECUTE FUNCTION enforce_node();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.nodes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('node');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.nodes FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.nodes FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_node();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.nodes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('node');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.payment_sessions FOR EACH ROW EXECUTE FUNCTION enforce_payment_session();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.payment_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('payment_session');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.payment_sessions FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.payment_sessions FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_payment_session();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.payment_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('payment_session');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.storage_attachments FOR EACH ROW EXECUTE FUNCTION enforce_storage_attachment();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.storage_attachments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('storage_attachment');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.storage_attachments FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.storage_attachments FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_storage_attachment();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.storage_attachments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('storage_attachment');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.terminal_sessions FOR EACH ROW EXECUTE FUNCTION enforce_terminal_session();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.terminal_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('terminal_session');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.terminal_sessions FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.terminal_sessions FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_terminal_session();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.terminal_sessions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('terminal_session');

CREATE TRIGGER lifecycle_birth BEFORE INSERT ON public.usage_records FOR EACH ROW EXECUTE FUNCTION enforce_usage_record();

CREATE CONSTRAINT TRIGGER lifecycle_birth_record AFTER INSERT ON public.usage_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION require_log_record('usage_record');

CREATE TRIGGER lifecycle_end BEFORE DELETE OR TRUNCATE ON public.usage_records FOR EACH STATEMENT EXECUTE FUNCTION reject_change();

CREATE TRIGGER lifecycle_move BEFORE UPDATE ON public.usage_records FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq) OR (old.id IS DISTINCT FROM new.id))) EXECUTE FUNCTION enforce_usage_record();

CREATE CONSTRAINT TRIGGER lifecycle_move_record AFTER UPDATE ON public.usage_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((old.status IS DISTINCT FROM new.status) OR (old.seq IS DISTINCT FROM new.seq))) EXECUTE FUNCTION require_log_record('usage_record');
