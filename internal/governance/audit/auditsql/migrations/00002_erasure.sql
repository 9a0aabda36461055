-- +goose Up
CREATE TABLE audit_erasure (
    id                TEXT   NOT NULL PRIMARY KEY,
    indexes           TEXT   NOT NULL,
    reason            TEXT   NOT NULL,
    state             TEXT   NOT NULL,
    requested_by      TEXT   NOT NULL,
    requested_by_name TEXT   NOT NULL,
    requested_at      BIGINT NOT NULL,
    expires_at        BIGINT NOT NULL,
    decided_by        TEXT   NOT NULL,
    decided_by_name   TEXT   NOT NULL,
    decided_at        BIGINT NOT NULL
);
