-- +goose Up
-- Which online store the records are of, and who owns it: one row, of all servers that
-- share the database. An empty id is not known yet.
CREATE TABLE feature_store (
  one BIGINT PRIMARY KEY CHECK (one = 1),
  id TEXT NOT NULL,
  owner TEXT NOT NULL
);
