-- +goose Up
-- tx is the transaction's id plus the offset in store_origin: entries are read
-- in the order (tx, seq), below the oldest transaction that still runs.
CREATE TABLE store_stream (
    tx      BIGINT NOT NULL,
    seq     BIGINT GENERATED ALWAYS AS IDENTITY,
    stream  TEXT NOT NULL,
    at      BIGINT NOT NULL,
    project TEXT NOT NULL,
    kind    TEXT NOT NULL,
    body    BYTEA NOT NULL,
    PRIMARY KEY (tx, seq)
);
CREATE INDEX store_stream_read ON store_stream (stream, tx, seq);

-- Added to transaction ids, so that positions go on rising after the database
-- was restored into a server whose ids are lower.
CREATE TABLE store_origin (
    tx_offset BIGINT NOT NULL
);
INSERT INTO store_origin (tx_offset) VALUES (0);

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
