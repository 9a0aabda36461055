-- +goose Up
-- One writer numbers the entries in commit order; numbers are never used again.
CREATE TABLE store_stream (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    tx      BIGINT NOT NULL DEFAULT 0,
    stream  TEXT NOT NULL,
    at      BIGINT NOT NULL,
    project TEXT NOT NULL,
    kind    TEXT NOT NULL,
    body    BYTEA NOT NULL
);
CREATE INDEX store_stream_read ON store_stream (stream, tx, seq);

CREATE TABLE store_cursor (
    name TEXT PRIMARY KEY,
    tx   BIGINT NOT NULL,
    seq  BIGINT NOT NULL
);

CREATE TABLE store_lease (
    name    TEXT PRIMARY KEY,
    holder  TEXT NOT NULL,
    epoch   BIGINT NOT NULL,
    expires BIGINT NOT NULL
);

CREATE TABLE store_idempotency (
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    request BYTEA NOT NULL,
    owner   TEXT NOT NULL,
    answer  BYTEA,
    at      BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX store_idempotency_at ON store_idempotency (at);
