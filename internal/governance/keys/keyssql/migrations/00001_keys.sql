-- +goose Up
CREATE TABLE keys_key (
    project    TEXT   NOT NULL,
    owner      TEXT   NOT NULL,
    id         TEXT   NOT NULL UNIQUE,
    algorithms TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    created    BIGINT NOT NULL,
    destroyed  BIGINT NOT NULL,
    sealed     BYTEA  NOT NULL,
    PRIMARY KEY (project, owner)
);

CREATE TABLE keys_check (
    id   BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    salt BYTEA  NOT NULL,
    mac  BYTEA  NOT NULL
);
