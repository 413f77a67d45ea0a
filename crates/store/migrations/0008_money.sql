-- Why: money. Time is metered by the allocation's own transitions, charged minute by minute into a ledger that the database
-- keeps balanced and append-only; balances and spending caps have consequences; payments converge; people are told.
-- Old binary: opens no usage records and knows no account, so what it makes active is not charged for; a project that it makes
-- gets its account from the next sweep. Everything that is added is optional to it.

-- ── Who pays ────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Whose account it is, and in which currency it is kept.
ALTER TABLE accounts
    ADD COLUMN owner_id   uuid REFERENCES users,
    ADD COLUMN currency   text NOT NULL DEFAULT 'USD',
    ADD COLUMN created_at timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE UNIQUE INDEX accounts_owner ON accounts (owner_id) WHERE owner_id IS NOT NULL;
-- Those whose status does not follow from their balance yet: what the sweep looks at, and nothing else. The order of the lines
-- is that of `domain::derived::balance::derive`.
CREATE INDEX accounts_crossing ON accounts (id)
    WHERE status <> CASE WHEN balance_minor <= 0 THEN 'depleted'
                         WHEN balance_minor <= low_balance_threshold_minor THEN 'low_balance'
                         ELSE 'healthy' END;
CREATE INDEX accounts_depleted ON accounts (status_at) WHERE status = 'depleted';

-- The account that pays for a project, and what it may cost in a calendar month (UTC); null is as much as the account has.
ALTER TABLE projects
    ADD COLUMN account_id      uuid REFERENCES accounts,
    ADD COLUMN spend_cap_minor bigint CHECK (spend_cap_minor >= 0);
CREATE INDEX projects_account ON projects (account_id);

-- Everybody who is there already has an account, and pays for the projects they were the first admin of.
INSERT INTO accounts (id, owner_id)
SELECT gen_random_uuid(), id FROM users;
INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor, cause, occurred_at)
SELECT 'balance', id, 1, gen_random_uuid(), 'born', NULL, 'healthy', 'worker', 'migration', 'opened with the ledger', clock_timestamp()
  FROM accounts
 WHERE owner_id IS NOT NULL;
UPDATE projects
   SET account_id = (
       SELECT accounts.id
         FROM project_members AS member
         JOIN accounts ON accounts.owner_id = member.user_id
        WHERE member.project_id = projects.id
        ORDER BY member.role = 'admin' DESC, member.created_at, member.user_id
        LIMIT 1);
-- Where people work already, nobody loses a machine because of an upgrade: an operator turns it on.
INSERT INTO policies (key, value)
SELECT 'billing.enforced', 0 WHERE EXISTS (SELECT 1 FROM users)
    ON CONFLICT (key) DO NOTHING;

-- What a project has cost in a month, kept with every charge.
CREATE TABLE project_spending (
    project_id  uuid        NOT NULL,
    month       date        NOT NULL,
    spent_minor bigint      NOT NULL,
    -- When its cap was reached: once a month.
    capped_at   timestamptz,
    PRIMARY KEY (project_id, month)
) WITH (fillfactor = 70);

-- ── Prices ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

-- What a SKU costs from a moment on; before the first of them what the catalogue says.
CREATE TABLE sku_prices (
    sku                         text        NOT NULL REFERENCES skus,
    from_at                     timestamptz NOT NULL,
    price_micros_per_gpu_second bigint      NOT NULL CHECK (price_micros_per_gpu_second BETWEEN 0 AND 100000000),
    -- Whether those who have one already pay it too.
    running                     boolean     NOT NULL,
    changed_by                  uuid,
    reason                      text        NOT NULL,
    created_at                  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sku, from_at)
);
-- What an allocation costs from a moment on, when that is not what was agreed at the beginning.
CREATE TABLE allocation_prices (
    allocation_id               uuid        NOT NULL REFERENCES allocations,
    from_at                     timestamptz NOT NULL,
    price_micros_per_gpu_second bigint      NOT NULL CHECK (price_micros_per_gpu_second BETWEEN 0 AND 100000000),
    PRIMARY KEY (allocation_id, from_at)
);

-- ── Metering ────────────────────────────────────────────────────────────────────────────────────────────────────────────

ALTER TABLE usage_records
    -- The step of the allocation that opened it.
    ADD COLUMN opened_seq                  bigint,
    -- Who pays; null when the project has no account, and then nobody does.
    ADD COLUMN account_id                  uuid,
    ADD COLUMN project_id                  uuid,
    ADD COLUMN node_id                     uuid,
    ADD COLUMN sku                         text,
    ADD COLUMN gpus                        smallint,
    ADD COLUMN price_micros_per_gpu_second bigint   NOT NULL DEFAULT 0,
    -- How many millionths of the currency's unit are one of its minor units.
    ADD COLUMN micros_per_minor            bigint   NOT NULL DEFAULT 10000 CHECK (micros_per_minor > 0),
    -- Whether `allocation_prices` has something to say about it.
    ADD COLUMN repriced                    boolean  NOT NULL DEFAULT false,
    -- Up to when it is charged, and how much that was; and up to when it was before that, so that one statement can move it and
    -- say by how much. Only charging writes these.
    ADD COLUMN charged_from                timestamptz,
    ADD COLUMN charged_until               timestamptz,
    ADD COLUMN charged_minor               bigint   NOT NULL DEFAULT 0,
    -- Closed, and charged to its end: nothing more will come.
    ADD COLUMN settled_at                  timestamptz;
ALTER TABLE usage_records SET (fillfactor = 60);
CREATE UNIQUE INDEX usage_records_opening ON usage_records (allocation_id, opened_seq);
CREATE INDEX usage_records_unsettled ON usage_records (account_id, id) WHERE settled_at IS NULL AND account_id IS NOT NULL;
CREATE INDEX usage_records_account ON usage_records (account_id, started_at);
CREATE INDEX usage_records_node ON usage_records (node_id, started_at);

-- What was charged for one minute of a record, clipped to it, and what that rests on.
CREATE TABLE usage_windows (
    usage_record_id uuid        NOT NULL,
    window_at       timestamptz NOT NULL,
    -- How much of the minute.
    micros          integer     NOT NULL CHECK (micros BETWEEN 1 AND 60000000),
    amount_minor    bigint      NOT NULL CHECK (amount_minor >= 0),
    -- Null when nothing was due for it, nor for what was charged with it.
    posting_id      uuid,
    -- When the machine was last heard of before it was charged.
    heartbeat_at    timestamptz,
    PRIMARY KEY (usage_record_id, window_at)
);
CREATE INDEX usage_windows_posting ON usage_windows (posting_id);

-- Windows that were given back because the machine could not be reached.
CREATE TABLE usage_credits (
    usage_record_id uuid        NOT NULL,
    window_at       timestamptz NOT NULL,
    amount_minor    bigint      NOT NULL CHECK (amount_minor >= 0),
    posting_id      uuid        NOT NULL,
    outage_id       uuid        NOT NULL,
    PRIMARY KEY (usage_record_id, window_at)
);
CREATE INDEX usage_credits_posting ON usage_credits (posting_id);

-- Stretches in which a node was not heard of, though somebody listened: from the last that was heard to the next.
CREATE TABLE node_outages (
    id             uuid        PRIMARY KEY,
    node_id        uuid        NOT NULL REFERENCES nodes,
    from_at        timestamptz NOT NULL,
    until_at       timestamptz,
    -- Up to when windows were given back for it; equal to its end when there is nothing left to do.
    credited_until timestamptz NOT NULL,
    CHECK (until_at >= from_at)
);
CREATE UNIQUE INDEX node_outages_open ON node_outages (node_id) WHERE until_at IS NULL;
CREATE INDEX node_outages_owed ON node_outages (id) WHERE until_at IS NULL OR credited_until < until_at;

CREATE FUNCTION micros_between(since timestamptz, until timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM until - since) * 1000000)::bigint $$;

-- How many millionths of a currency's unit are one of its minor units: `domain::money::Currency` as SQL has it.
CREATE FUNCTION minor_micros(currency text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN currency IN ('BIF', 'CLP', 'DJF', 'GNF', 'JPY', 'KMF', 'KRW', 'MGA', 'PYG', 'RWF', 'UGX', 'VND', 'VUV', 'XAF', 'XOF',
                                  'XPF') THEN 1000000
                WHEN currency IN ('BHD', 'JOD', 'KWD', 'OMR', 'TND') THEN 1000
                ELSE 10000 END
$$;

-- The whole minor units of `rate` millionths a second for so many microseconds. Exact: the floor of a floor is the floor.
CREATE FUNCTION minor_of(rate bigint, micros bigint, micros_per_minor bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT (rate * (micros / 1000000) + (rate * (micros % 1000000)) / 1000000) / micros_per_minor $$;

-- The same for a stretch of an allocation whose price has changed: every stretch between two changes at its own price, rounded
-- once, at the end.
CREATE FUNCTION repriced_minor(of_allocation uuid, agreed bigint, gpus smallint, since timestamptz, until timestamptz, micros_per_minor bigint)
RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
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
$$;

-- ── The ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────────

-- One thing that happened to money. It is named by what it is about, so that saying it twice is saying it once.
CREATE TABLE ledger_postings (
    id         uuid        PRIMARY KEY,
    key        text        NOT NULL UNIQUE,
    -- 'usage', 'unreachable', 'overrun', 'payment', 'refund', 'adjustment'
    kind       text        NOT NULL CHECK (kind IN ('usage', 'unreachable', 'overrun', 'payment', 'refund', 'adjustment')),
    -- The tenant's account.
    account_id uuid        NOT NULL,
    currency   text        NOT NULL,
    -- What it is about: a payment session, a record, an outage.
    source_id  uuid,
    -- Which time it is for.
    from_at    timestamptz,
    until_at   timestamptz,
    actor      text        NOT NULL,
    reason     text,
    posted_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ledger_postings_source ON ledger_postings (source_id) WHERE source_id IS NOT NULL;

-- Its entries: positive for whom it is credited to, negative for whom it is debited from. They sum to zero.
CREATE TABLE ledger_entries (
    number              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    posting_id          uuid   NOT NULL,
    -- 'tenant', 'revenue', 'clearing', 'adjustments'
    book                text   NOT NULL CHECK (book IN ('tenant', 'revenue', 'clearing', 'adjustments')),
    -- Whose, in the book of tenants.
    account_id          uuid   CHECK ((book = 'tenant') = (account_id IS NOT NULL)),
    amount_minor        bigint NOT NULL,
    -- What the tenant's account had after it.
    balance_after_minor bigint
);
CREATE UNIQUE INDEX ledger_entries_posting ON ledger_entries (posting_id, book);
CREATE INDEX ledger_entries_account ON ledger_entries (account_id, number) WHERE account_id IS NOT NULL;

-- What the platform's own books stand at.
CREATE TABLE ledger_books (
    book          text   NOT NULL CHECK (book IN ('revenue', 'clearing', 'adjustments')),
    currency      text   NOT NULL,
    balance_minor bigint NOT NULL,
    PRIMARY KEY (book, currency)
) WITH (fillfactor = 50);

-- What one statement enters is balanced, posting by posting, and no posting is without entries.
CREATE FUNCTION require_balance() RETURNS trigger LANGUAGE plpgsql AS $$
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
$$;
CREATE TRIGGER balanced AFTER INSERT ON ledger_entries REFERENCING NEW TABLE AS entered
    FOR EACH STATEMENT EXECUTE FUNCTION require_balance();

CREATE FUNCTION require_entries() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken uuid;
BEGIN
    SELECT id INTO broken FROM posted WHERE NOT EXISTS (SELECT 1 FROM ledger_entries WHERE posting_id = id) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'posting % has no entries', broken USING ERRCODE = 'BT003';
    END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER entered AFTER INSERT ON ledger_postings REFERENCING NEW TABLE AS posted
    FOR EACH STATEMENT EXECUTE FUNCTION require_entries();

-- What was entered stays entered: by trigger for everybody, and by privilege for whoever is no superuser.
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_postings
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_windows
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON usage_credits
    FOR EACH STATEMENT EXECUTE FUNCTION reject_change();
REVOKE UPDATE, DELETE, TRUNCATE ON ledger_postings, ledger_entries, usage_windows, usage_credits FROM CURRENT_USER, PUBLIC;

-- ── Payments ────────────────────────────────────────────────────────────────────────────────────────────────────────────

ALTER TABLE payment_sessions
    -- Who asked, and by which key: the same key is the same session.
    ADD COLUMN user_id                    uuid,
    ADD COLUMN idempotency_key            text,
    ADD COLUMN fingerprint                bytea,
    -- What the provider calls it, where people pay, and until when somebody of ours is asking for that.
    ADD COLUMN stripe_checkout_session_id text,
    ADD COLUMN url                        text,
    ADD COLUMN asked_until                timestamptz,
    ADD COLUMN expires_at                 timestamptz,
    -- What the provider says was paid, by which payment, and what was given back of it since.
    ADD COLUMN stripe_payment_intent_id   text,
    ADD COLUMN paid_amount_minor          bigint,
    ADD COLUMN paid_currency              text,
    ADD COLUMN refunded_minor             bigint      NOT NULL DEFAULT 0 CHECK (refunded_minor >= 0),
    ADD COLUMN created_at                 timestamptz NOT NULL DEFAULT clock_timestamp();
CREATE UNIQUE INDEX payment_sessions_key ON payment_sessions (user_id, idempotency_key);
CREATE UNIQUE INDEX payment_sessions_stripe ON payment_sessions (stripe_checkout_session_id);
CREATE UNIQUE INDEX payment_sessions_payment ON payment_sessions (stripe_payment_intent_id);
CREATE INDEX payment_sessions_account ON payment_sessions (account_id, id);
CREATE INDEX payment_sessions_user ON payment_sessions (user_id, id);
CREATE INDEX payment_sessions_open ON payment_sessions (status, status_at) WHERE status NOT IN ('credited', 'expired');

-- What the provider has told us, before we said that we heard it. An event is told as often as the provider likes, and counts once.
CREATE TABLE payment_events (
    id           text        PRIMARY KEY,
    kind         text        NOT NULL,
    -- What matters of it: ids, amounts and states, and nothing about whoever pays.
    payload      jsonb       NOT NULL,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The session it turned out to be about.
    session_id   uuid,
    attempts     integer     NOT NULL DEFAULT 0,
    -- When it is tried again; null when it is done or given up.
    due_at       timestamptz DEFAULT clock_timestamp(),
    done_at      timestamptz,
    -- What came of it: a stable word.
    outcome      text,
    -- What was in the way the last time.
    reason       text
);
CREATE INDEX payment_events_due ON payment_events (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX payment_events_received ON payment_events (received_at, id);
CREATE INDEX payment_events_open ON payment_events (received_at, id) WHERE outcome IN ('unmatched', 'failed', 'exceeds');
CREATE INDEX payment_events_session ON payment_events (session_id) WHERE session_id IS NOT NULL;

-- ── Notifications ───────────────────────────────────────────────────────────────────────────────────────────────────────

-- What somebody was told. A cause is told to each of them once.
CREATE TABLE notifications (
    id                 uuid        PRIMARY KEY,
    user_id            uuid        NOT NULL REFERENCES users,
    -- Its place among theirs, without a gap: what a stream goes on after. It is given under the lock of the user, which is held
    -- until the commit; so who sees number n sees all before it.
    number             bigint      NOT NULL CHECK (number >= 1),
    kind               text        NOT NULL,
    cause              text        NOT NULL,
    title              text        NOT NULL,
    body               text        NOT NULL,
    project_id         uuid,
    allocation_id      uuid,
    payment_session_id uuid,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    read_at            timestamptz
);
CREATE UNIQUE INDEX notifications_cause ON notifications (user_id, cause);
-- Whoever forgets the lock is refused, and leaves no hole behind somebody's back.
CREATE UNIQUE INDEX notifications_number ON notifications (user_id, number);
CREATE INDEX notifications_unread ON notifications (user_id, number) WHERE read_at IS NULL;

-- Where somebody wants to be told as well.
CREATE TABLE webhooks (
    id                    uuid        PRIMARY KEY,
    user_id               uuid        NOT NULL REFERENCES users,
    url                   text        NOT NULL,
    -- What deliveries are signed with; the one before it as well, until that time.
    secret                text        NOT NULL,
    previous_secret       text,
    previous_secret_until timestamptz,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Its secrets are forgotten then.
    deleted_at            timestamptz
);
CREATE INDEX webhooks_user ON webhooks (user_id, id) WHERE deleted_at IS NULL;

CREATE TABLE webhook_deliveries (
    webhook_id      uuid        NOT NULL REFERENCES webhooks,
    notification_id uuid        NOT NULL REFERENCES notifications,
    -- Since when it is tried: three days later it is given up.
    queued_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How often, since then.
    attempts        integer     NOT NULL DEFAULT 0,
    -- When it is tried next; null when it was taken or given up. Who tries it moves this ahead first, and writes down how it went
    -- only while it still stands there.
    due_at          timestamptz DEFAULT clock_timestamp(),
    delivered_at    timestamptz,
    given_up_at     timestamptz,
    -- How the last attempt ended.
    http_status     smallint,
    error           text,
    attempted_at    timestamptz,
    PRIMARY KEY (webhook_id, notification_id)
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at) WHERE due_at IS NOT NULL;
