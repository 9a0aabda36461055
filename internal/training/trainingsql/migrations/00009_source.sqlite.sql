-- +goose Up
-- When a source archive was last uploaded, or named by a job that was submitted. One that is
-- going is being removed.
CREATE TABLE training_source (
    project TEXT NOT NULL,
    digest TEXT NOT NULL,
    used BIGINT NOT NULL,
    going BOOLEAN NOT NULL,
    PRIMARY KEY (project, digest)
);
-- The source archive of a job; empty is none.
ALTER TABLE training_job ADD COLUMN source TEXT NOT NULL DEFAULT '';
UPDATE training_job SET source = json_extract(body, '$.spec.source') WHERE COALESCE(json_extract(body, '$.spec.source'), '') <> '';
CREATE INDEX training_job_source ON training_job (project, source) WHERE source <> '';
