-- +goose Up
-- What a search reads of a definition: the fields that it is found by, or '*' where they are
-- long, and of definitions made before this column. The index has all of it, so that the
-- search reads no definition that does not match.
ALTER TABLE feature_definition ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX feature_definition_line ON feature_definition (project, kind, name, version, created_by, line);
