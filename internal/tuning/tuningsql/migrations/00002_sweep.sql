-- +goose Up
-- A sweep is a study that Falaj drives: what it is to do, and how far it is.
CREATE TABLE tuning_sweep (
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  study BIGINT NOT NULL,
  state TEXT NOT NULL,
  body TEXT NOT NULL,
  revision BIGINT NOT NULL,
  PRIMARY KEY (project, name)
);
CREATE INDEX tuning_sweep_state ON tuning_sweep (state);

-- The jobs of its trials.
CREATE TABLE tuning_task (
  project TEXT NOT NULL,
  study BIGINT NOT NULL,
  number BIGINT NOT NULL,
  trial BIGINT NOT NULL,
  job TEXT NOT NULL,
  reason TEXT NOT NULL,
  done BOOLEAN NOT NULL,
  PRIMARY KEY (project, study, number)
);
CREATE INDEX tuning_task_open ON tuning_task (project, study, done);
