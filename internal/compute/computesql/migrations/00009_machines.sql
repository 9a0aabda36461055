-- +goose Up
-- On which machines a workload runs, and their zone; '' of what was placed before.
ALTER TABLE compute_workload ADD COLUMN machine TEXT NOT NULL DEFAULT '';
ALTER TABLE compute_workload ADD COLUMN zone TEXT NOT NULL DEFAULT '';
