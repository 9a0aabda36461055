-- +goose Up
CREATE TABLE request (
    id           TEXT   NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    object       TEXT   NOT NULL,
    summary      TEXT   NOT NULL,
    change       TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    state        TEXT   NOT NULL,
    message      TEXT   NOT NULL,
    requested_by TEXT   NOT NULL,
    requested_by_name TEXT NOT NULL,
    requested_at BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    decided_by   TEXT   NOT NULL,
    decided_by_name TEXT NOT NULL,
    decided_at   BIGINT NOT NULL,
    approvers    TEXT   NOT NULL, -- JSON
    act          TEXT   NOT NULL  -- JSON
);

CREATE INDEX request_project ON request (project, state, id);
CREATE INDEX request_state ON request (state, id);
