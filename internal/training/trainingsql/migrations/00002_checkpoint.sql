-- +goose Up
CREATE TABLE training_checkpoint (
    id TEXT NOT NULL PRIMARY KEY,
    job TEXT NOT NULL REFERENCES training_job (id),
    project TEXT NOT NULL,
    number BIGINT NOT NULL,
    damaged BOOLEAN NOT NULL,
    body TEXT NOT NULL, -- the record as JSON
    manifest TEXT NOT NULL, -- files and chunks as JSON
    revision BIGINT NOT NULL,
    UNIQUE (job, number)
);
CREATE INDEX training_checkpoint_damaged ON training_checkpoint (damaged);

-- Which records need which chunks: what nobody needs is collected.
CREATE TABLE training_checkpoint_chunk (
    project TEXT NOT NULL,
    digest TEXT NOT NULL,
    checkpoint TEXT NOT NULL REFERENCES training_checkpoint (id),
    PRIMARY KEY (project, digest, checkpoint)
);
CREATE INDEX training_checkpoint_chunk_checkpoint ON training_checkpoint_chunk (checkpoint);

-- The state in which each checkpoint of a job's directory was taken last, also
-- when its record was dropped since: it is not taken again as it is.
CREATE TABLE training_checkpoint_seen (
    job TEXT NOT NULL REFERENCES training_job (id),
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (job, name)
);
