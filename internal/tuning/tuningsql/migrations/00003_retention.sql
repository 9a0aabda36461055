-- +goose Up
-- Which jobs are trials of a sweep: the retention of jobs asks.
CREATE INDEX tuning_task_job ON tuning_task (job) WHERE job <> '';
