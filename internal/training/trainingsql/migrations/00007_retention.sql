-- +goose Up
-- When the retention of an ended job is counted from: its end, or later when something
-- cited it at the last look; 0 while it has not ended.
ALTER TABLE training_job ADD COLUMN due BIGINT NOT NULL DEFAULT 0;
CREATE INDEX training_job_due ON training_job (due) WHERE due > 0;
-- The job from whose checkpoints it goes on; empty is none.
ALTER TABLE training_job ADD COLUMN resumes TEXT NOT NULL DEFAULT '';
CREATE INDEX training_job_resumes ON training_job (resumes) WHERE resumes <> '';

-- One index of the jobs that have not ended, and one of those that have: three indexes of
-- all jobs were written at each change of a state.
DROP INDEX training_job_waiting;
DROP INDEX training_job_state;
DROP INDEX training_job_alive;
CREATE INDEX training_job_open ON training_job (state, waiting, project, submitter, id) WHERE due = 0;
CREATE INDEX training_job_ended ON training_job (project, state, id) WHERE due > 0;
