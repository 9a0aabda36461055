-- +goose Up
-- The log of events of a dataset that is fed by a stream. Records first … head are
-- kept; those up to cut are in a version of the dataset, too. offsets is JSON: how
-- far its source was read.
CREATE TABLE feature_stream (
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  first BIGINT NOT NULL,
  head BIGINT NOT NULL,
  cut BIGINT NOT NULL,
  version TEXT NOT NULL,
  cut_at BIGINT NOT NULL,
  bytes BIGINT NOT NULL,
  events BIGINT NOT NULL,
  offsets TEXT NOT NULL,
  PRIMARY KEY (project, dataset)
);

-- A record is the events of one push, encrypted.
CREATE TABLE feature_stream_record (
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  seq BIGINT NOT NULL,
  events BIGINT NOT NULL,
  at BIGINT NOT NULL,
  sealed BYTEA NOT NULL,
  PRIMARY KEY (project, dataset, seq)
);

-- Keyed hashes of the ids that clients gave their events, for a day.
CREATE TABLE feature_stream_seen (
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  hash TEXT NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (project, dataset, hash)
);
CREATE INDEX feature_stream_seen_at ON feature_stream_seen (project, dataset, at);

-- Messages that are no events, and why, encrypted.
CREATE TABLE feature_stream_dead (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  dataset TEXT NOT NULL,
  at BIGINT NOT NULL,
  sealed BYTEA NOT NULL
);
CREATE INDEX feature_stream_dead_of ON feature_stream_dead (project, dataset, id);

-- A materialisation of a stream's view has the events up to this record.
ALTER TABLE feature_run ADD COLUMN position BIGINT NOT NULL DEFAULT 0;
