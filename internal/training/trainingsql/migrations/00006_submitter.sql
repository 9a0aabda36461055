-- +goose Up
-- Who submitted a job, to count those of one principal that have not ended.
ALTER TABLE training_job ADD COLUMN submitter TEXT NOT NULL DEFAULT '';
CREATE INDEX training_job_alive ON training_job (project, state, submitter);
