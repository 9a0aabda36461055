-- +goose Up

-- What others told of their runs. doc is the run as JSON, with its facets.
CREATE TABLE openlineage_run (
    project       TEXT   NOT NULL,
    id            TEXT   NOT NULL,
    job_namespace TEXT   NOT NULL,
    job_name      TEXT   NOT NULL,
    last          BIGINT NOT NULL,
    doc           TEXT   NOT NULL,
    PRIMARY KEY (project, id)
);
CREATE INDEX openlineage_run_job ON openlineage_run (project, job_namespace, job_name, last);

-- Jobs and datasets. own is the name of Falaj's dataset that it is, or empty.
CREATE TABLE openlineage_thing (
    project   TEXT   NOT NULL,
    kind      TEXT   NOT NULL,
    namespace TEXT   NOT NULL,
    name      TEXT   NOT NULL,
    own       TEXT   NOT NULL,
    last      BIGINT NOT NULL,
    doc       TEXT   NOT NULL,
    PRIMARY KEY (project, kind, namespace, name)
);
CREATE INDEX openlineage_thing_name ON openlineage_thing (project, name, namespace, kind);

-- A job reads (output is false) or writes a dataset.
CREATE TABLE openlineage_link (
    project       TEXT    NOT NULL,
    job_namespace TEXT    NOT NULL,
    job_name      TEXT    NOT NULL,
    output        BOOLEAN NOT NULL,
    namespace     TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    own           TEXT    NOT NULL,
    run           TEXT    NOT NULL,
    last          BIGINT  NOT NULL,
    columns       TEXT    NOT NULL,
    PRIMARY KEY (project, job_namespace, job_name, output, namespace, name)
);
CREATE INDEX openlineage_link_dataset ON openlineage_link (project, namespace, name);
CREATE INDEX openlineage_link_own ON openlineage_link (project, own);
