-- +goose Up
-- What a version's files are, as JSON; of versions of before nobody looked.
ALTER TABLE registry_version ADD COLUMN content TEXT NOT NULL DEFAULT '';

CREATE TABLE registry_policy (
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  spec TEXT NOT NULL,
  revision BIGINT NOT NULL,
  updated BIGINT NOT NULL,
  updated_by TEXT NOT NULL,
  PRIMARY KEY (project, name)
);

-- Rows are only ever added; of each principal the last one of a version counts.
CREATE TABLE registry_approval (
  id TEXT NOT NULL PRIMARY KEY,
  model TEXT NOT NULL,
  number BIGINT NOT NULL,
  principal TEXT NOT NULL,
  name TEXT NOT NULL,
  verdict TEXT NOT NULL,
  digest TEXT NOT NULL,
  comment TEXT NOT NULL,
  at BIGINT NOT NULL
);
CREATE INDEX registry_approval_version ON registry_approval (model, number, id);
