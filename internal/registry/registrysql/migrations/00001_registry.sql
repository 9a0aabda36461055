-- +goose Up
CREATE TABLE registry_model (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  owner TEXT NOT NULL,
  created BIGINT NOT NULL,
  updated BIGINT NOT NULL
);
CREATE UNIQUE INDEX registry_model_name ON registry_model (project, name);

CREATE TABLE registry_model_tag (
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (model, key)
);

CREATE TABLE registry_alias (
  model TEXT NOT NULL,
  name TEXT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (model, name)
);

-- Versions outlive their model as records; model_name is its name at the time.
CREATE TABLE registry_version (
  model TEXT NOT NULL,
  number BIGINT NOT NULL,
  project TEXT NOT NULL,
  model_name TEXT NOT NULL,
  state TEXT NOT NULL,
  message TEXT NOT NULL,
  stage TEXT NOT NULL,
  description TEXT NOT NULL,
  source TEXT NOT NULL,
  run TEXT NOT NULL,
  logged_model TEXT NOT NULL,
  run_link TEXT NOT NULL,
  owner TEXT NOT NULL,
  created BIGINT NOT NULL,
  updated BIGINT NOT NULL,
  job TEXT NOT NULL,
  attempt TEXT NOT NULL,
  datasets TEXT NOT NULL,
  feature_views TEXT NOT NULL,
  environment TEXT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL,
  digest TEXT NOT NULL,
  key_id TEXT NOT NULL,
  signature BYTEA,
  PRIMARY KEY (model, number)
);
CREATE INDEX registry_version_project ON registry_version (project, updated);
CREATE INDEX registry_version_state ON registry_version (state);

CREATE TABLE registry_version_tag (
  model TEXT NOT NULL,
  number BIGINT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (model, number, key)
);

CREATE TABLE registry_file (
  model TEXT NOT NULL,
  number BIGINT NOT NULL,
  path TEXT NOT NULL,
  size BIGINT NOT NULL,
  digest TEXT NOT NULL,
  object TEXT NOT NULL,
  PRIMARY KEY (model, number, path)
);

CREATE TABLE registry_key (
  project TEXT NOT NULL PRIMARY KEY,
  id TEXT NOT NULL,
  public TEXT NOT NULL,
  private BYTEA NOT NULL
);
