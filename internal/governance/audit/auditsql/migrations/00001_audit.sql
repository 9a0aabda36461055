-- +goose Up
CREATE TABLE audit_leaf (
    idx        BIGINT NOT NULL PRIMARY KEY,
    at         BIGINT NOT NULL,
    source     TEXT   NOT NULL UNIQUE,
    commitment BYTEA  NOT NULL,
    salt       BYTEA,
    record     TEXT,
    project    TEXT   NOT NULL,
    actor_id   TEXT   NOT NULL,
    actor_name TEXT   NOT NULL,
    action     TEXT   NOT NULL,
    object     TEXT   NOT NULL,
    outcome    TEXT   NOT NULL
);

CREATE INDEX audit_leaf_project ON audit_leaf (project, idx);

CREATE TABLE audit_hash (
    idx  BIGINT NOT NULL PRIMARY KEY,
    hash BYTEA  NOT NULL
);

CREATE TABLE audit_checkpoint (
    size BIGINT NOT NULL PRIMARY KEY,
    note TEXT   NOT NULL
);

CREATE TABLE audit_journal (
    file     TEXT   NOT NULL PRIMARY KEY,
    position BIGINT NOT NULL
);

CREATE TABLE audit_key (
    id       BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    origin   TEXT   NOT NULL,
    verifier TEXT   NOT NULL,
    sealed   BYTEA  NOT NULL
);
