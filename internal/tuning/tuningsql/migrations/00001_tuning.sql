-- +goose Up
-- The last numbers taken in a project: a deleted study's are not given again.
CREATE TABLE tuning_sequence (
  project TEXT NOT NULL,
  kind TEXT NOT NULL,
  last BIGINT NOT NULL,
  PRIMARY KEY (project, kind)
);

CREATE TABLE tuning_study (
  project TEXT NOT NULL,
  id BIGINT NOT NULL,
  name TEXT NOT NULL,
  directions TEXT NOT NULL,
  owner TEXT NOT NULL,
  created BIGINT NOT NULL,
  request TEXT NOT NULL,
  residency TEXT NOT NULL,
  classification TEXT NOT NULL,
  PRIMARY KEY (project, id)
);
CREATE UNIQUE INDEX tuning_study_name ON tuning_study (project, name);

CREATE TABLE tuning_study_attribute (
  project TEXT NOT NULL,
  study BIGINT NOT NULL,
  scope TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (project, study, scope, key)
);

-- What each parameter of a study was last.
CREATE TABLE tuning_distribution (
  project TEXT NOT NULL,
  study BIGINT NOT NULL,
  name TEXT NOT NULL,
  distribution TEXT NOT NULL,
  PRIMARY KEY (project, study, name)
);

-- objectives are the values, apart by spaces.
CREATE TABLE tuning_trial (
  project TEXT NOT NULL,
  id BIGINT NOT NULL,
  study BIGINT NOT NULL,
  number BIGINT NOT NULL,
  state TEXT NOT NULL,
  objectives TEXT NOT NULL,
  started BIGINT NOT NULL,
  completed BIGINT NOT NULL,
  made TEXT NOT NULL,
  moved TEXT NOT NULL,
  PRIMARY KEY (project, id)
);
CREATE UNIQUE INDEX tuning_trial_number ON tuning_trial (project, study, number);
-- Trials after one, and who was made by a request.
CREATE UNIQUE INDEX tuning_trial_study ON tuning_trial (project, study, id);
CREATE INDEX tuning_trial_made ON tuning_trial (project, study, made) WHERE made <> '';

CREATE TABLE tuning_param (
  project TEXT NOT NULL,
  trial BIGINT NOT NULL,
  name TEXT NOT NULL,
  value DOUBLE PRECISION NOT NULL,
  distribution TEXT NOT NULL,
  PRIMARY KEY (project, trial, name)
);

CREATE TABLE tuning_trial_attribute (
  project TEXT NOT NULL,
  trial BIGINT NOT NULL,
  scope TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  PRIMARY KEY (project, trial, scope, key)
);

CREATE TABLE tuning_intermediate (
  project TEXT NOT NULL,
  trial BIGINT NOT NULL,
  step BIGINT NOT NULL,
  value DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (project, trial, step)
);
