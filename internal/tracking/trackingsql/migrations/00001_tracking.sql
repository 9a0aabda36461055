-- +goose Up
CREATE TABLE tracking_experiment (
  project TEXT NOT NULL,
  id BIGINT NOT NULL,
  name TEXT NOT NULL,
  stage TEXT NOT NULL,
  created BIGINT NOT NULL,
  updated BIGINT NOT NULL,
  PRIMARY KEY (project, id)
);
CREATE UNIQUE INDEX tracking_experiment_name ON tracking_experiment (project, name);

CREATE TABLE tracking_experiment_tag (
  project TEXT NOT NULL,
  experiment BIGINT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (project, experiment, key)
);

-- started and ended are milliseconds, as clients give them.
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
);
CREATE INDEX tracking_run_started ON tracking_run (project, experiment, started);
CREATE INDEX tracking_run_attempt ON tracking_run (attempt);

CREATE TABLE tracking_param (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (run, key)
);

CREATE TABLE tracking_tag (
  run TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (run, key)
);

-- at is in milliseconds. The key holds the value: a point logged twice is one.
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
);

-- rank is the value for comparing: NULL for NaN, the largest numbers for the
-- infinities, which SQLite would compare as text.
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
  PRIMARY KEY (run, key)
);

CREATE TABLE tracking_dataset (
  project TEXT NOT NULL,
  experiment BIGINT NOT NULL,
  name TEXT NOT NULL,
  digest TEXT NOT NULL,
  source_type TEXT NOT NULL,
  source TEXT NOT NULL,
  schema_text TEXT NOT NULL,
  profile TEXT NOT NULL,
  PRIMARY KEY (project, experiment, name, digest)
);

CREATE TABLE tracking_input (
  run TEXT NOT NULL,
  name TEXT NOT NULL,
  digest TEXT NOT NULL,
  context TEXT NOT NULL,
  tags TEXT NOT NULL,
  project TEXT NOT NULL,
  experiment BIGINT NOT NULL,
  PRIMARY KEY (run, name, digest)
);

CREATE TABLE tracking_model_link (
  run TEXT NOT NULL,
  model TEXT NOT NULL,
  output BOOLEAN NOT NULL,
  step BIGINT NOT NULL,
  PRIMARY KEY (run, model, output)
);

CREATE TABLE tracking_model (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  experiment BIGINT NOT NULL,
  name TEXT NOT NULL,
  type TEXT NOT NULL,
  run TEXT NOT NULL,
  status TEXT NOT NULL,
  stage TEXT NOT NULL,
  owner TEXT NOT NULL,
  created BIGINT NOT NULL,
  updated BIGINT NOT NULL,
  job TEXT NOT NULL,
  attempt TEXT NOT NULL,
  datasets TEXT NOT NULL,
  feature_views TEXT NOT NULL,
  environment TEXT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL
);
CREATE INDEX tracking_model_created ON tracking_model (project, experiment, created);

CREATE TABLE tracking_model_param (
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (model, key)
);

CREATE TABLE tracking_model_tag (
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (model, key)
);

CREATE TABLE tracking_model_metric (
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  run TEXT NOT NULL,
  at BIGINT NOT NULL,
  step BIGINT NOT NULL,
  value DOUBLE PRECISION NOT NULL,
  rank DOUBLE PRECISION,
  dataset_name TEXT NOT NULL,
  dataset_digest TEXT NOT NULL,
  PRIMARY KEY (model, key, run, at, step, dataset_name, dataset_digest)
);

CREATE TABLE tracking_artifact (
  owner TEXT NOT NULL,
  path TEXT NOT NULL,
  project TEXT NOT NULL,
  object TEXT NOT NULL,
  size BIGINT NOT NULL,
  digest TEXT NOT NULL,
  created BIGINT NOT NULL,
  PRIMARY KEY (owner, path)
);
CREATE INDEX tracking_artifact_object ON tracking_artifact (project, object);
