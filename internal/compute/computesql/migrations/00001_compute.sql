-- +goose Up
CREATE TABLE compute_pool (
    name TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL, -- PoolSpec as JSON, complete
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);

CREATE TABLE compute_workload (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    asked TEXT NOT NULL, -- what was submitted, as JSON
    state TEXT NOT NULL,
    submitted BIGINT NOT NULL,
    placed BIGINT NOT NULL,
    started BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    pool TEXT NOT NULL,
    node TEXT NOT NULL,
    passed TEXT NOT NULL, -- JSON list
    handle TEXT NOT NULL,
    stop TEXT NOT NULL,
    status TEXT NOT NULL, -- engine.Status as JSON
    failure TEXT NOT NULL,
    hint TEXT NOT NULL,
    settled BOOLEAN NOT NULL,
    denials BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
CREATE INDEX compute_workload_unsettled ON compute_workload (settled, ended);

CREATE TABLE compute_usage (
    workload TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    pool TEXT NOT NULL,
    started BIGINT NOT NULL,
    wall_us BIGINT NOT NULL,
    cpu_us BIGINT NOT NULL,
    peak_rss BIGINT NOT NULL, -- bytes
    cost DOUBLE PRECISION NOT NULL
);
CREATE INDEX compute_usage_project ON compute_usage (project, started);
