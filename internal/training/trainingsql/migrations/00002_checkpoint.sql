-- +goose Up
CREATE TABLE training_checkpoint (
    id TEXT NOT NULL PRIMARY KEY,
    job TEXT NOT NULL REFERENCES training_job (id),
    project TEXT NOT NULL,
    number BIGINT NOT NULL,
    seen TEXT NOT NULL, -- the state of the directory that it is a copy of
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
