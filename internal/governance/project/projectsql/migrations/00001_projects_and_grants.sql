-- +goose Up
CREATE TABLE project_project (
    name           TEXT   NOT NULL PRIMARY KEY,
    display_name   TEXT   NOT NULL,
    description    TEXT   NOT NULL,
    residency      TEXT   NOT NULL,
    classification TEXT   NOT NULL,
    created_at     BIGINT NOT NULL,
    created_by     TEXT   NOT NULL,
    updated_at     BIGINT NOT NULL,
    revision       BIGINT NOT NULL
);

-- The empty project is the whole installation.
CREATE TABLE project_grant (
    project    TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    principal  TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    object     TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT   NOT NULL,
    PRIMARY KEY (project, name)
);

CREATE INDEX project_grant_principal ON project_grant (principal, project);
