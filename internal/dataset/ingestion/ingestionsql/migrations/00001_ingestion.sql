-- +goose Up

-- doc is the spec and the position, as JSON. secret is in the spec, too: it is
-- asked for when a secret is to be deleted.
CREATE TABLE ingestion_source (
    id        TEXT    NOT NULL PRIMARY KEY,
    project   TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    dataset   TEXT    NOT NULL,
    secret    TEXT    NOT NULL,
    scheduled BOOLEAN NOT NULL,
    revision  BIGINT  NOT NULL,
    owner     TEXT    NOT NULL,
    created   BIGINT  NOT NULL,
    updated   BIGINT  NOT NULL,
    doc       TEXT    NOT NULL,
    UNIQUE (project, name),
    UNIQUE (project, dataset)
);

-- done: ended and cleaned up. doc is the run, progress its chunks and positions.
CREATE TABLE ingestion_run (
    id       TEXT    NOT NULL PRIMARY KEY,
    project  TEXT    NOT NULL,
    source   TEXT    NOT NULL,
    state    TEXT    NOT NULL,
    attempt  BIGINT  NOT NULL,
    done     BOOLEAN NOT NULL,
    doc      TEXT    NOT NULL,
    progress TEXT    NOT NULL
);
CREATE INDEX ingestion_run_source ON ingestion_run (project, source, id);
CREATE INDEX ingestion_run_done ON ingestion_run (done, id);
