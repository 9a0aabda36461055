-- +goose Up
-- What a search reads of an external job or dataset: its columns, or '*' where they are long, and
-- until a row from before this column is written again. The index has all of it; its beginning is
-- the index that goes.
ALTER TABLE openlineage_thing ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX openlineage_thing_line ON openlineage_thing (project, name, namespace, kind, line);
DROP INDEX openlineage_thing_name;
