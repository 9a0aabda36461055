-- +goose Up
CREATE TABLE bench_row (
    id   TEXT   NOT NULL PRIMARY KEY,
    name TEXT   NOT NULL,
    at   BIGINT NOT NULL
);
