-- +goose Up
-- Engines tell handles; whose they are is asked for those alone.
CREATE INDEX compute_workload_handle ON compute_workload (handle) WHERE handle <> '';
