-- Why: who may ask (users, projects, tokens, keys), what can be asked for (SKUs, images, regions), and requests that are
-- answered once.
-- Old binary: none has run outside a test.

CREATE TABLE users (
    id            uuid        PRIMARY KEY,
    email         text        NOT NULL,
    name          text        NOT NULL,
    -- argon2id, in PHC form; null for accounts that come through another door.
    password_hash text,
    operator      boolean     NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    disabled_at   timestamptz
);

CREATE UNIQUE INDEX users_email ON users (lower(email));

CREATE TABLE projects (
    id         uuid        PRIMARY KEY,
    name       text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE project_members (
    project_id uuid        NOT NULL REFERENCES projects,
    user_id    uuid        NOT NULL REFERENCES users,
    role       text        NOT NULL CHECK (role IN ('viewer', 'member', 'admin')),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (user_id, project_id)
);

CREATE INDEX project_members_project ON project_members (project_id, user_id);

-- The secret is shown once; what is kept is its SHA-256. It has 256 random bits, so a slow hash would add nothing.
CREATE TABLE api_tokens (
    id           uuid        PRIMARY KEY,
    user_id      uuid        NOT NULL REFERENCES users,
    name         text        NOT NULL,
    secret_hash  bytea       NOT NULL UNIQUE,
    scopes       text[]      NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz
);

CREATE INDEX api_tokens_user ON api_tokens (user_id, id);

CREATE TABLE ssh_keys (
    id          uuid        PRIMARY KEY,
    user_id     uuid        NOT NULL REFERENCES users,
    name        text        NOT NULL,
    public_key  text        NOT NULL,
    algorithm   text        NOT NULL,
    fingerprint text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (user_id, fingerprint)
);

CREATE TABLE regions (
    code text PRIMARY KEY,
    name text NOT NULL
);

CREATE TABLE images (
    code   text PRIMARY KEY,
    name   text NOT NULL,
    sha256 text NOT NULL
);

CREATE TABLE skus (
    code                        text       PRIMARY KEY,
    name                        text       NOT NULL,
    shape                       text       NOT NULL CHECK (shape IN ('baremetal', 'gpu_slice')),
    gpu_model                   text       NOT NULL,
    gpus_allowed                smallint[] NOT NULL CHECK (cardinality(gpus_allowed) > 0),
    price_micros_per_gpu_second bigint     NOT NULL CHECK (price_micros_per_gpu_second >= 0),
    currency                    text       NOT NULL,
    provision_timeout_seconds   integer    NOT NULL DEFAULT 600 CHECK (provision_timeout_seconds > 0)
);

CREATE TABLE sku_images (
    sku      text     NOT NULL REFERENCES skus,
    image    text     NOT NULL REFERENCES images,
    position smallint NOT NULL,
    PRIMARY KEY (sku, position),
    UNIQUE (sku, image)
);

-- One answer for one key of one caller on one route, written in the transaction that had the effect. A key without an
-- answer is as good as none. An answer without a body carried a secret, which is not kept.
CREATE TABLE idempotency_keys (
    principal   uuid        NOT NULL,
    route       text        NOT NULL,
    key         text        NOT NULL,
    fingerprint bytea       NOT NULL,
    http_status smallint,
    body        jsonb,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (principal, route, key)
);

CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);

-- Keys and certificates of the installation: made at the first start. Private halves are readable by the owner of the
-- database alone, like everything else in it.
CREATE TABLE installation_keys (
    name       text        PRIMARY KEY,
    private    bytea       NOT NULL,
    public     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How long such tasks took lately, newest first.
CREATE INDEX node_tasks_succeeded ON node_tasks (kind, ended_at) WHERE status = 'succeeded';
