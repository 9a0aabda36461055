-- +goose Up
-- Labels of predictions. id is the prediction's. status is accepted, unknown
-- (it waits for its prediction), too_late, wrong_rows or expired. seq is the
-- place among the joined labels of a deployment, in commit order; 0 when not
-- joined. label_values is a JSON list of numbers; place that of the prediction
-- in the log.
CREATE TABLE label_label (
  project TEXT NOT NULL,
  deployment TEXT NOT NULL,
  id TEXT NOT NULL,
  label_values TEXT NOT NULL,
  at BIGINT NOT NULL,
  received BIGINT NOT NULL,
  status TEXT NOT NULL,
  seq BIGINT NOT NULL,
  place TEXT NOT NULL,
  PRIMARY KEY (project, deployment, id)
);
CREATE UNIQUE INDEX label_label_seq ON label_label (project, deployment, seq) WHERE seq > 0;
CREATE INDEX label_label_waiting ON label_label (project, deployment, id) WHERE status = 'unknown';

-- The last seq and the counts of a deployment.
CREATE TABLE label_count (
  project TEXT NOT NULL,
  deployment TEXT NOT NULL,
  seq BIGINT NOT NULL,
  joined BIGINT NOT NULL,
  waiting BIGINT NOT NULL,
  duplicates BIGINT NOT NULL,
  contradicts BIGINT NOT NULL,
  too_late BIGINT NOT NULL,
  wrong_rows BIGINT NOT NULL,
  expired BIGINT NOT NULL,
  PRIMARY KEY (project, deployment)
);

-- What the judge has seen of a rollout, with its places in the log and among the
-- labels. tally is JSON.
CREATE TABLE label_judgement (
  rollout TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  deployment TEXT NOT NULL,
  log_cursor TEXT NOT NULL,
  label_seq BIGINT NOT NULL,
  tally TEXT NOT NULL,
  final BOOLEAN NOT NULL,
  revision BIGINT NOT NULL,
  made BIGINT NOT NULL,
  updated BIGINT NOT NULL
);
CREATE INDEX label_judgement_deployment ON label_judgement (project, deployment, made);
