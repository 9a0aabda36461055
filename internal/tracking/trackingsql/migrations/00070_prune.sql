-- +goose Up
-- When a run was deleted; NULL while it is not.
ALTER TABLE tracking_run ADD COLUMN deleted BIGINT;
CREATE INDEX tracking_run_deleted ON tracking_run (project, id) WHERE deleted IS NOT NULL;
CREATE INDEX tracking_model_link_model ON tracking_model_link (model);
CREATE INDEX tracking_input_dataset ON tracking_input (project, experiment, name, digest);

-- Runs that are gone for ever but for points of their metrics, which are being removed.
CREATE TABLE tracking_pruned (
  run TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL
);

-- The largest number of an experiment that is gone for ever: no new one gets it.
CREATE TABLE tracking_experiment_used (
  project TEXT NOT NULL PRIMARY KEY,
  id BIGINT NOT NULL
);
