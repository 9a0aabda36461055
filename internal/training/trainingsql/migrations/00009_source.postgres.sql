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
-- The source archive of a job; empty is none. PostgreSQL takes no field of a JSON document with
-- the character \u0000 in it, so that goes first.
ALTER TABLE training_job ADD COLUMN source TEXT NOT NULL DEFAULT '';
UPDATE training_job SET source = COALESCE(
    regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json -> 'spec' ->> 'source', '')
  WHERE strpos(body, '"source":') > 0;
CREATE INDEX training_job_source ON training_job (project, source) WHERE source <> '';

-- What a search reads of a job: its names, its submitter and its inputs, a line each, or '*'
-- where they are long. The index has all of it, so that the search reads no job that does not
-- match; its beginning is the index that goes.
ALTER TABLE training_job ADD COLUMN inputs TEXT NOT NULL DEFAULT '';
UPDATE training_job SET inputs = COALESCE((SELECT string_agg(i ->> 'ref', chr(10)) FROM json_array_elements(
    regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json -> 'inputs') AS i), '')
  WHERE strpos(body, '"inputs":[{') > 0;
UPDATE training_job SET inputs = '*' WHERE octet_length(inputs) > 1000;
CREATE INDEX training_job_search ON training_job (project, id, name, submitter, inputs);
DROP INDEX training_job_project;
