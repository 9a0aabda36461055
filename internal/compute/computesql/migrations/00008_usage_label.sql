-- +goose Up
-- What one job cost, in all its attempts.
CREATE INDEX compute_usage_label ON compute_usage (project, label);
