-- +goose Up
CREATE TABLE monitoring_monitor (
    project    TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    id         TEXT    NOT NULL UNIQUE,
    deployment TEXT    NOT NULL,
    spec       TEXT    NOT NULL,
    automatic  BOOLEAN NOT NULL,
    author     TEXT    NOT NULL,
    created_at BIGINT  NOT NULL,
    updated_at BIGINT  NOT NULL,
    revision   BIGINT  NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE TABLE monitoring_progress (
    monitor_id TEXT   NOT NULL PRIMARY KEY,
    seq        BIGINT NOT NULL,
    place      TEXT   NOT NULL,
    label_place TEXT   NOT NULL,
    status     TEXT   NOT NULL,
    open       BYTEA  NOT NULL
);

CREATE TABLE monitoring_window (
    monitor_id TEXT    NOT NULL,
    version    BIGINT  NOT NULL,
    replay     BOOLEAN NOT NULL,
    start      BIGINT  NOT NULL,
    ends_at    BIGINT  NOT NULL,
    closed_at  BIGINT  NOT NULL,
    late       BIGINT  NOT NULL,
    result     TEXT    NOT NULL,
    summary    BYTEA   NOT NULL,
    PRIMARY KEY (monitor_id, version, replay, start)
);
CREATE INDEX monitoring_window_newest ON monitoring_window (monitor_id, ends_at);
CREATE INDEX monitoring_window_closed ON monitoring_window (closed_at);

CREATE TABLE monitoring_pairs (
    monitor_id TEXT    NOT NULL,
    version    BIGINT  NOT NULL,
    replay     BOOLEAN NOT NULL,
    start      BIGINT  NOT NULL,
    updated_at BIGINT  NOT NULL,
    pairs      BYTEA   NOT NULL,
    PRIMARY KEY (monitor_id, version, replay, start)
);
CREATE INDEX monitoring_pairs_updated ON monitoring_pairs (updated_at);

CREATE TABLE monitoring_baseline (
    project     TEXT   NOT NULL,
    deployment  TEXT   NOT NULL,
    version     BIGINT NOT NULL,
    digest      TEXT   NOT NULL,
    facts       TEXT   NOT NULL,
    columns     BYTEA  NOT NULL,
    computed_at BIGINT NOT NULL,
    PRIMARY KEY (project, deployment, version, digest)
);
