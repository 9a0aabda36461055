-- +goose Up
CREATE TABLE environment_environment (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL, -- empty until locked
    spec_digest TEXT NOT NULL,
    state TEXT NOT NULL,
    step TEXT NOT NULL,
    lock_text TEXT NOT NULL,
    interpreter TEXT NOT NULL, -- JSON
    body TEXT NOT NULL, -- the environment as JSON
    revision BIGINT NOT NULL
);
CREATE INDEX environment_environment_name ON environment_environment (project, name, id);
CREATE INDEX environment_environment_state ON environment_environment (state);
