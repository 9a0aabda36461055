-- +goose Up
CREATE TABLE webhook (
    id          TEXT    NOT NULL PRIMARY KEY,
    project     TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    description TEXT    NOT NULL,
    url         TEXT    NOT NULL,
    events      TEXT    NOT NULL,
    disabled    BOOLEAN NOT NULL,
    sealed      BYTEA,
    created     BIGINT  NOT NULL,
    updated     BIGINT  NOT NULL
);
CREATE INDEX webhook_project ON webhook (project, id);
