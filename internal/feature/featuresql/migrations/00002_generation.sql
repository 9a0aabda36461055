-- +goose Up
-- The online rows of a view version are of a generation. A materialisation over
-- other inputs writes a new one, to which reads switch when it is complete.
-- inputs is JSON: what the generation was made from; [] in rows of before, which
-- did not say.
ALTER TABLE feature_online ADD COLUMN generation TEXT NOT NULL DEFAULT '';
ALTER TABLE feature_online ADD COLUMN inputs TEXT NOT NULL DEFAULT '[]';
ALTER TABLE feature_run ADD COLUMN generation TEXT NOT NULL DEFAULT '';

-- Generations that nobody will ask for again, until their rows are removed.
CREATE TABLE feature_stale (
  project TEXT NOT NULL,
  view_name TEXT NOT NULL,
  version BIGINT NOT NULL,
  generation TEXT NOT NULL,
  since BIGINT NOT NULL,
  PRIMARY KEY (project, view_name, version, generation)
);
CREATE INDEX feature_stale_since ON feature_stale (since);
