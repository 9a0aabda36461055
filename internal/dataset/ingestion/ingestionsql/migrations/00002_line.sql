-- +goose Up
-- What a search reads of a source: the fields that it is found by, or '*' where they are long,
-- and until a row from before this column is written again. The index has all of it.
ALTER TABLE ingestion_source ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX ingestion_source_line ON ingestion_source (project, name, owner, line);
