-- +goose Up

-- sealed is the person's key and what was prepared, encrypted, until it is done.
CREATE TABLE privacy_erasure (
    id        TEXT   NOT NULL PRIMARY KEY,
    project   TEXT   NOT NULL,
    entity    TEXT   NOT NULL,
    pseudonym TEXT   NOT NULL,
    state     TEXT   NOT NULL,
    ledger    BIGINT NOT NULL,
    hash      TEXT   NOT NULL,
    doc       TEXT   NOT NULL,
    sealed    BYTEA
);
CREATE INDEX privacy_erasure_project ON privacy_erasure (project, id);
CREATE INDEX privacy_erasure_open ON privacy_erasure (id) WHERE state <> 'done';
