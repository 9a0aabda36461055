-- +goose Up
CREATE TABLE identity_account (
    id         TEXT   NOT NULL PRIMARY KEY,
    kind       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    project    TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL,
    UNIQUE (kind, project, name)
);

CREATE TABLE identity_token (
    id           TEXT   NOT NULL PRIMARY KEY,
    hash         BYTEA  NOT NULL UNIQUE,
    kind         TEXT   NOT NULL,
    principal    TEXT   NOT NULL,
    name         TEXT   NOT NULL,
    label        TEXT   NOT NULL,
    project      TEXT   NOT NULL,
    scopes       TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    created_by   TEXT   NOT NULL,
    expires_at   BIGINT NOT NULL,
    last_used_at BIGINT NOT NULL,
    revoked_at   BIGINT NOT NULL,
    revoked_by   TEXT   NOT NULL
);

CREATE INDEX identity_token_principal ON identity_token (principal);
CREATE INDEX identity_token_project ON identity_token (project, id);

-- The highest time seen ('clock'), and what happens once ('bootstrap').
CREATE TABLE identity_state (
    name TEXT   NOT NULL PRIMARY KEY,
    at   BIGINT NOT NULL
);
