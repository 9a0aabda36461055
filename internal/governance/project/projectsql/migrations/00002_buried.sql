-- +goose Up
-- Names of deleted projects, which no project gets again.
CREATE TABLE project_buried (
    name       TEXT   NOT NULL PRIMARY KEY,
    deleted_at BIGINT NOT NULL,
    deleted_by TEXT   NOT NULL
);
