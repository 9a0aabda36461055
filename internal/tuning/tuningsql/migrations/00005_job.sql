-- +goose Up
-- The trials that a client of Optuna in a job runs.
CREATE INDEX tuning_trial_job ON tuning_trial_attribute (project, value) WHERE scope = 'system' AND key = 'falaj:client_job';
