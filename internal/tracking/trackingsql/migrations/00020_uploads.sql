-- +goose Up
-- Files that come in parts. run or model is empty.
CREATE TABLE tracking_upload (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  run TEXT NOT NULL,
  model TEXT NOT NULL,
  path TEXT NOT NULL,
  parts BIGINT NOT NULL,
  created BIGINT NOT NULL,
  done BOOLEAN NOT NULL
);
CREATE INDEX tracking_upload_created ON tracking_upload (project, created);

CREATE TABLE tracking_upload_part (
  upload TEXT NOT NULL,
  number BIGINT NOT NULL,
  project TEXT NOT NULL,
  object TEXT NOT NULL,
  size BIGINT NOT NULL,
  digest TEXT NOT NULL,
  PRIMARY KEY (upload, number)
);
CREATE INDEX tracking_upload_part_object ON tracking_upload_part (project, object);
