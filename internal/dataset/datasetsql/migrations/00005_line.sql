-- +goose Up
-- What a search reads: the fields that a dataset, and the lineage of a version, is found by, or
-- '*' where they are long, and until a row from before this column is written again. The
-- indexes have all of it, so that the search reads no row that does not match.
ALTER TABLE dataset_dataset ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX dataset_dataset_line ON dataset_dataset (project, name, deleted, owner, line);
ALTER TABLE dataset_version ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX dataset_version_line ON dataset_version (dataset_id, number, line);
