-- +goose Up
-- What a search reads of a deployment: the fields that it is found by, or '*' where they are
-- long, and until a row from before this column is written again. The index has all of it.
ALTER TABLE serving_deployment ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX serving_deployment_line ON serving_deployment (project, name, line);
