-- +goose Up
CREATE INDEX training_job_state ON training_job (state, id);
