-- +goose Up
-- Params and tags of an experiment in the order of their values, from which searches
-- read the runs that have one, or all runs by it. head is the value's first 64
-- characters: PostgreSQL's indexes do not take long texts.
ALTER TABLE tracking_param ADD COLUMN project TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_param ADD COLUMN experiment BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tracking_param ADD COLUMN head TEXT NOT NULL DEFAULT '';
UPDATE tracking_param SET
  project = (SELECT r.project FROM tracking_run r WHERE r.id = run),
  experiment = (SELECT r.experiment FROM tracking_run r WHERE r.id = run),
  head = SUBSTR(value, 1, 64)
  WHERE EXISTS (SELECT 1 FROM tracking_run r WHERE r.id = run);
CREATE INDEX tracking_param_head ON tracking_param (project, experiment, key, head, run);

ALTER TABLE tracking_tag ADD COLUMN project TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_tag ADD COLUMN experiment BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tracking_tag ADD COLUMN head TEXT NOT NULL DEFAULT '';
UPDATE tracking_tag SET
  project = (SELECT r.project FROM tracking_run r WHERE r.id = run),
  experiment = (SELECT r.experiment FROM tracking_run r WHERE r.id = run),
  head = SUBSTR(value, 1, 64)
  WHERE EXISTS (SELECT 1 FROM tracking_run r WHERE r.id = run);
CREATE INDEX tracking_tag_head ON tracking_tag (project, experiment, key, head, run);
