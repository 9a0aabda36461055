-- +goose Up
-- Rows are kept in the tree of their key: otherwise SQLite has a second one for the
-- key, which holds all of a point once more and costs each write and each read a page.

ALTER TABLE tracking_run RENAME TO tracking_run_before;
CREATE TABLE tracking_run (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  experiment BIGINT NOT NULL,
  name TEXT NOT NULL,
  user_name TEXT NOT NULL,
  owner TEXT NOT NULL,
  status TEXT NOT NULL,
  started BIGINT NOT NULL,
  ended BIGINT NOT NULL,
  stage TEXT NOT NULL,
  created BIGINT NOT NULL,
  job TEXT NOT NULL,
  attempt TEXT NOT NULL,
  datasets TEXT NOT NULL,
  feature_views TEXT NOT NULL,
  environment TEXT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO tracking_run (id, project, experiment, name, user_name, owner, status, started, ended, stage, created, job, attempt, datasets, feature_views, environment, residency, classification)
  SELECT id, project, experiment, name, user_name, owner, status, started, ended, stage, created, job, attempt, datasets, feature_views, environment, residency, classification FROM tracking_run_before ORDER BY id;
DROP TABLE tracking_run_before;
CREATE INDEX tracking_run_started ON tracking_run (project, experiment, started);
CREATE INDEX tracking_run_attempt ON tracking_run (attempt);

ALTER TABLE tracking_param RENAME TO tracking_param_before;
CREATE TABLE tracking_param (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  project TEXT NOT NULL DEFAULT '',
  experiment BIGINT NOT NULL DEFAULT 0,
  head TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, key)
) WITHOUT ROWID;
INSERT INTO tracking_param (run, key, value, project, experiment, head)
  SELECT run, key, value, project, experiment, head FROM tracking_param_before ORDER BY run, key;
DROP TABLE tracking_param_before;
CREATE INDEX tracking_param_head ON tracking_param (project, experiment, key, head, run);

ALTER TABLE tracking_tag RENAME TO tracking_tag_before;
CREATE TABLE tracking_tag (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  project TEXT NOT NULL DEFAULT '',
  experiment BIGINT NOT NULL DEFAULT 0,
  head TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, key)
) WITHOUT ROWID;
INSERT INTO tracking_tag (run, key, value, project, experiment, head)
  SELECT run, key, value, project, experiment, head FROM tracking_tag_before ORDER BY run, key;
DROP TABLE tracking_tag_before;
CREATE INDEX tracking_tag_head ON tracking_tag (project, experiment, key, head, run);

ALTER TABLE tracking_metric RENAME TO tracking_metric_before;
CREATE TABLE tracking_metric (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  at BIGINT NOT NULL,
  step BIGINT NOT NULL,
  value DOUBLE PRECISION NOT NULL,
  model TEXT NOT NULL,
  dataset_name TEXT NOT NULL,
  dataset_digest TEXT NOT NULL,
  PRIMARY KEY (run, key, at, step, value, model, dataset_name, dataset_digest)
) WITHOUT ROWID;
INSERT INTO tracking_metric (run, key, at, step, value, model, dataset_name, dataset_digest)
  SELECT run, key, at, step, value, model, dataset_name, dataset_digest FROM tracking_metric_before ORDER BY run, key, at, step, value, model, dataset_name, dataset_digest;
DROP TABLE tracking_metric_before;

ALTER TABLE tracking_metric_latest RENAME TO tracking_metric_latest_before;
CREATE TABLE tracking_metric_latest (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  at BIGINT NOT NULL,
  step BIGINT NOT NULL,
  value DOUBLE PRECISION NOT NULL,
  rank DOUBLE PRECISION,
  model TEXT NOT NULL,
  dataset_name TEXT NOT NULL,
  dataset_digest TEXT NOT NULL,
  project TEXT NOT NULL DEFAULT '',
  experiment BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (run, key)
) WITHOUT ROWID;
INSERT INTO tracking_metric_latest (run, key, at, step, value, rank, model, dataset_name, dataset_digest, project, experiment)
  SELECT run, key, at, step, value, rank, model, dataset_name, dataset_digest, project, experiment FROM tracking_metric_latest_before ORDER BY run, key;
DROP TABLE tracking_metric_latest_before;
CREATE INDEX tracking_metric_rank ON tracking_metric_latest (project, experiment, key, rank, run);
