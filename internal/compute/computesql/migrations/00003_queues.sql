-- +goose Up
CREATE TABLE compute_queue (
    name TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL, -- QueueSpec as JSON, complete
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
