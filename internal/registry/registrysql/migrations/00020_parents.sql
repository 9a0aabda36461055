-- +goose Up
-- The model versions that a version was made from, as a JSON list.
ALTER TABLE registry_version ADD COLUMN parents TEXT NOT NULL DEFAULT 'null';
