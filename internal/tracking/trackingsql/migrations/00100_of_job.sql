-- +goose Up
-- The runs and logged models of a job, when its retention is over.
CREATE INDEX tracking_run_job ON tracking_run (job) WHERE job <> '';
CREATE INDEX tracking_model_run ON tracking_model (run) WHERE run <> '';
