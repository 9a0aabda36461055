-- +goose Up
-- spec and seen are JSON; seen is null before the gateway has come once.
CREATE TABLE gateway (
    project    TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    spec       TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision   BIGINT NOT NULL,
    seen       TEXT   NOT NULL DEFAULT 'null',
    PRIMARY KEY (project, name)
);

-- How far the log of a gateway was taken over, by deployment.
CREATE TABLE gateway_position (
    project    TEXT NOT NULL,
    gateway    TEXT NOT NULL,
    deployment TEXT NOT NULL, -- its id
    instance   TEXT NOT NULL,
    position   TEXT NOT NULL,
    next       TEXT NOT NULL,
    ours       TEXT NOT NULL, -- what our log ended with before the batch up to next
    PRIMARY KEY (project, gateway, deployment)
);

-- At a gateway: the versions whose files it has, each verified when it came.
CREATE TABLE mirror_version (
    project TEXT   NOT NULL,
    model   TEXT   NOT NULL,
    number  BIGINT NOT NULL,
    digest  TEXT   NOT NULL,
    bundle  TEXT   NOT NULL,
    PRIMARY KEY (project, model, number)
);

-- At a gateway: what it knows of the server that it follows, by name.
CREATE TABLE mirror_fact (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
);
