-- +goose Up
-- Whether a job's attempt wrote the file; of files of before nobody knows.
ALTER TABLE tracking_artifact ADD COLUMN of_job BOOLEAN NOT NULL DEFAULT FALSE;
