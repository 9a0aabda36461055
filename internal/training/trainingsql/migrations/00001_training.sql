-- +goose Up
CREATE TABLE training_job (
    id TEXT NOT NULL PRIMARY KEY,
    project TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    state TEXT NOT NULL,
    waiting BOOLEAN NOT NULL, -- queued without an attempt under way
    body TEXT NOT NULL, -- the job as JSON
    revision BIGINT NOT NULL
);
CREATE INDEX training_job_project ON training_job (project, id);
CREATE INDEX training_job_digest ON training_job (project, digest, id);
CREATE INDEX training_job_waiting ON training_job (waiting);

CREATE TABLE training_attempt (
    id TEXT NOT NULL PRIMARY KEY,
    job TEXT NOT NULL REFERENCES training_job (id),
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    body TEXT NOT NULL, -- the attempt as JSON
    revision BIGINT NOT NULL,
    UNIQUE (job, number)
);
