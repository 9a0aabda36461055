-- +goose Up

-- Grants that are no more, for a month: who became the only one with a right a moment ago
-- is not alone yet.
CREATE TABLE project_former (
    project   TEXT   NOT NULL,
    principal TEXT   NOT NULL,
    role      TEXT   NOT NULL,
    object    TEXT   NOT NULL,
    ended_at  BIGINT NOT NULL
);

CREATE INDEX project_former_project ON project_former (project, ended_at);
