-- +goose Up
-- The latest metrics of an experiment in the order of their values, which searches
-- that are ordered or filtered by a metric read from one end.
ALTER TABLE tracking_metric_latest ADD COLUMN project TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_metric_latest ADD COLUMN experiment BIGINT NOT NULL DEFAULT 0;
UPDATE tracking_metric_latest SET
  project = (SELECT r.project FROM tracking_run r WHERE r.id = run),
  experiment = (SELECT r.experiment FROM tracking_run r WHERE r.id = run)
  WHERE EXISTS (SELECT 1 FROM tracking_run r WHERE r.id = run);
CREATE INDEX tracking_metric_rank ON tracking_metric_latest (project, experiment, key, rank, run);
