-- +goose Up
CREATE TABLE serving_deployment (
    project        TEXT   NOT NULL,
    name           TEXT   NOT NULL,
    id             TEXT   NOT NULL UNIQUE,
    spec           TEXT   NOT NULL,
    model          TEXT   NOT NULL,
    version        BIGINT NOT NULL,
    digest         TEXT   NOT NULL,
    residency      TEXT   NOT NULL,
    classification TEXT   NOT NULL,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    revision       BIGINT NOT NULL,
    PRIMARY KEY (project, name)
);
