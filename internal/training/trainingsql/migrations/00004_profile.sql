-- +goose Up
-- What was seen of a worker while it ran: a row for each look. The shares are
-- columns, because right-sizing adds up those of many jobs.
CREATE TABLE training_profile (
    id TEXT NOT NULL PRIMARY KEY,
    job TEXT NOT NULL REFERENCES training_job (id),
    project TEXT NOT NULL,
    attempt TEXT NOT NULL REFERENCES training_attempt (id),
    worker BIGINT NOT NULL,
    compute DOUBLE PRECISION NOT NULL,
    memory DOUBLE PRECISION NOT NULL,
    communication DOUBLE PRECISION NOT NULL,
    idle DOUBLE PRECISION NOT NULL,
    body TEXT NOT NULL -- the profile as JSON
);
CREATE INDEX training_profile_job ON training_profile (job, id);
CREATE INDEX training_profile_attempt ON training_profile (attempt, worker);
