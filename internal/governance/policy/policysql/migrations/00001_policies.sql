-- +goose Up
CREATE TABLE policy_policy (
    project     TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    description TEXT   NOT NULL,
    cedar       TEXT   NOT NULL,
    updated_at  BIGINT NOT NULL,
    updated_by  TEXT   NOT NULL,
    revision    BIGINT NOT NULL,
    PRIMARY KEY (project, name)
);
