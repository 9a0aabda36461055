-- +goose Up
CREATE TABLE feature_definition (
  project TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  version BIGINT NOT NULL,
  digest TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  PRIMARY KEY (project, kind, name, version)
);
CREATE UNIQUE INDEX feature_definition_digest ON feature_definition (project, kind, name, digest);

CREATE TABLE feature_alias (
  project TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  alias TEXT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (project, kind, name, alias)
);

-- A run is a materialisation. inputs, residency and stats are JSON. from_time,
-- newest, started_at, ended_at and not_before are 0 for none.
CREATE TABLE feature_run (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  view_name TEXT NOT NULL,
  version BIGINT NOT NULL,
  state TEXT NOT NULL,
  from_time BIGINT NOT NULL,
  until_time BIGINT NOT NULL,
  inputs TEXT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL,
  row_count BIGINT NOT NULL,
  newest BIGINT NOT NULL,
  stats TEXT NOT NULL,
  error TEXT NOT NULL,
  failures BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  ended_at BIGINT NOT NULL,
  attempt BIGINT NOT NULL,
  chain TEXT NOT NULL,
  not_before BIGINT NOT NULL
);
CREATE INDEX feature_run_view ON feature_run (project, view_name, version, id);
CREATE INDEX feature_run_state ON feature_run (state, id);

CREATE TABLE feature_online (
  project TEXT NOT NULL,
  view_name TEXT NOT NULL,
  version BIGINT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL,
  watermark BIGINT NOT NULL,
  newest BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (project, view_name, version)
);

CREATE TABLE feature_training_set (
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  body TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (project, dataset)
);

CREATE TABLE feature_training_view (
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  view_name TEXT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (project, dataset, view_name, version)
);
CREATE INDEX feature_training_view_view ON feature_training_view (project, view_name, version);
