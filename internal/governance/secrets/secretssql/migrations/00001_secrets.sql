-- +goose Up

-- sealed is the values, encrypted under the key of the project's secrets.
CREATE TABLE secrets_secret (
    id          TEXT   NOT NULL PRIMARY KEY,
    project     TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    description TEXT   NOT NULL,
    keys        TEXT   NOT NULL,
    revision    BIGINT NOT NULL,
    created     BIGINT NOT NULL,
    created_by  TEXT   NOT NULL,
    updated     BIGINT NOT NULL,
    updated_by  TEXT   NOT NULL,
    sealed      BYTEA  NOT NULL,
    UNIQUE (project, name)
);
