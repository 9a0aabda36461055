-- +goose Up
CREATE TABLE compute_queue_default (
    project TEXT NOT NULL PRIMARY KEY, -- empty is every project without one of its own
    queue TEXT NOT NULL
);
CREATE TABLE compute_queue_past (
    queue TEXT NOT NULL PRIMARY KEY,
    past TEXT NOT NULL -- scheduler.Used as JSON
);
ALTER TABLE compute_workload ADD COLUMN saved BIGINT NOT NULL DEFAULT 0; -- when it last saved what it did
