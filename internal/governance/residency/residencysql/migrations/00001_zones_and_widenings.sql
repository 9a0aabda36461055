-- +goose Up
CREATE TABLE residency_zone (
    zone         TEXT   NOT NULL PRIMARY KEY,
    jurisdiction TEXT   NOT NULL,
    provider     TEXT   NOT NULL,
    trust        TEXT   NOT NULL,
    description  TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    revision     BIGINT NOT NULL
);

INSERT INTO residency_zone (zone, jurisdiction, provider, trust, description, created_at, updated_at, revision)
VALUES ('home', '', '', 'owned', 'Where this installation runs.', 0, 0, 1);

CREATE TABLE residency_widening (
    id           TEXT   NOT NULL PRIMARY KEY,
    project      TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    from_zones   TEXT   NOT NULL,
    to_zones     TEXT   NOT NULL,
    reason       TEXT   NOT NULL,
    state        TEXT   NOT NULL,
    requested_by TEXT   NOT NULL,
    requested_at BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    decided_by   TEXT   NOT NULL,
    decided_at   BIGINT NOT NULL
);

CREATE INDEX residency_widening_project ON residency_widening (project, id);
