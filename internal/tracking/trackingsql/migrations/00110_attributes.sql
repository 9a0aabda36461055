-- +goose Up
-- Runs by what searches ask of them besides params, tags and metrics, without those that
-- are deleted: by their start, by name, and those that did not end well.
CREATE INDEX tracking_run_stage ON tracking_run (project, experiment, stage, started);
DROP INDEX tracking_run_started;
CREATE INDEX tracking_run_name ON tracking_run (project, experiment, stage, name);
CREATE INDEX tracking_run_status ON tracking_run (project, experiment, stage, status) WHERE status <> 'FINISHED';
