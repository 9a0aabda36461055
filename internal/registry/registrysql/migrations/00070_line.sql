-- +goose Up
-- What a search reads of a version: the fields that its model is found by, or '*' where they are
-- long, and of versions made before this column. The index has all of it.
ALTER TABLE registry_version ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX registry_version_line ON registry_version (model, line);
