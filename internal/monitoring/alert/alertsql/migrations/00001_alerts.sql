-- +goose Up
CREATE TABLE alert_delivery (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    target_key TEXT   NOT NULL,
    dedup      TEXT   NOT NULL,
    target     TEXT   NOT NULL,
    event_id   TEXT   NOT NULL,
    type       TEXT   NOT NULL,
    source     TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    attempts   BIGINT NOT NULL,
    created    BIGINT NOT NULL,
    next       BIGINT NOT NULL,
    ended      BIGINT NOT NULL,
    reason     TEXT   NOT NULL,
    label      TEXT   NOT NULL,
    body       BYTEA  NOT NULL,
    UNIQUE (project, dedup)
);
CREATE INDEX alert_delivery_queued ON alert_delivery (target_key, id) WHERE state = 'queued';
CREATE INDEX alert_delivery_project ON alert_delivery (project, state, id);

CREATE TABLE alert_secret (
    project TEXT   NOT NULL,
    name    TEXT   NOT NULL,
    created BIGINT NOT NULL,
    sealed  BYTEA  NOT NULL,
    PRIMARY KEY (project, name)
);
