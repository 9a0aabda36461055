-- +goose Up
-- Which versions a run, and a job, made: pruning and the retention of jobs ask.
CREATE INDEX registry_version_run ON registry_version (run) WHERE run <> '';
CREATE INDEX registry_version_job ON registry_version (job) WHERE job <> '';
