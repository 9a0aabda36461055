-- +goose Up
-- When the retention of an ended job is counted from: its end, or later when something
-- cited it at the last look; 0 while it has not ended.
ALTER TABLE training_job ADD COLUMN due BIGINT NOT NULL DEFAULT 0;
CREATE INDEX training_job_due ON training_job (due) WHERE due > 0;
-- The job from whose checkpoints it goes on; empty is none.
ALTER TABLE training_job ADD COLUMN resumes TEXT NOT NULL DEFAULT '';
CREATE INDEX training_job_resumes ON training_job (resumes) WHERE resumes <> '';
