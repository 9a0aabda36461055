-- +goose Up
-- When a run was deleted; 0 of those that were before this was kept.
ALTER TABLE tracking_run ADD COLUMN deleted BIGINT NOT NULL DEFAULT 0;

-- Runs that are gone for ever but for points of their metrics, which are being removed.
CREATE TABLE tracking_pruned (
  run TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL
);

-- The largest number of an experiment that is gone for ever: no number is used twice.
CREATE TABLE tracking_experiment_used (
  project TEXT NOT NULL PRIMARY KEY,
  id BIGINT NOT NULL
);
