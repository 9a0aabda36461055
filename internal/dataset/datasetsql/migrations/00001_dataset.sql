-- +goose Up

-- A dataset is a name with a series of versions. doc is the spec and the IDs
-- given to columns, as JSON. A deleted dataset keeps its row, so that its
-- numbers are never given again.
CREATE TABLE dataset_dataset (
    id       TEXT    NOT NULL PRIMARY KEY,
    project  TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    revision BIGINT  NOT NULL,
    latest   BIGINT  NOT NULL,
    accepted BIGINT  NOT NULL,
    metadata TEXT    NOT NULL,
    owner    TEXT    NOT NULL,
    created  BIGINT  NOT NULL,
    updated  BIGINT  NOT NULL,
    deleted  BOOLEAN NOT NULL,
    doc      TEXT    NOT NULL,
    UNIQUE (project, name)
);

-- doc is schema, statistics, expectations, lineage and files, as JSON.
CREATE TABLE dataset_version (
    id             TEXT   NOT NULL PRIMARY KEY,
    dataset_id     TEXT   NOT NULL REFERENCES dataset_dataset (id),
    project        TEXT   NOT NULL,
    name           TEXT   NOT NULL,
    number         BIGINT NOT NULL,
    state          TEXT   NOT NULL,
    row_count      BIGINT NOT NULL,
    digest         TEXT   NOT NULL,
    fingerprint    TEXT   NOT NULL,
    classification TEXT   NOT NULL,
    protection     TEXT   NOT NULL,
    created        BIGINT NOT NULL,
    created_by     TEXT   NOT NULL,
    doc            TEXT   NOT NULL,
    UNIQUE (dataset_id, number)
);
CREATE INDEX dataset_version_fingerprint ON dataset_version (dataset_id, fingerprint);

CREATE TABLE dataset_parent (
    child  TEXT NOT NULL REFERENCES dataset_version (id),
    parent TEXT NOT NULL REFERENCES dataset_version (id),
    PRIMARY KEY (child, parent)
);
CREATE INDEX dataset_parent_parent ON dataset_parent (parent);

-- Files that belong to no version: of a write in progress, or on their way out.
CREATE TABLE dataset_staging (
    id       TEXT   NOT NULL PRIMARY KEY,
    project  TEXT   NOT NULL,
    dataset  TEXT   NOT NULL,
    instance TEXT   NOT NULL,
    deadline BIGINT NOT NULL
);
