-- +goose Up
-- Whether jobs wrote all of the version's files; of versions of before nobody knows.
ALTER TABLE registry_version ADD COLUMN of_job BOOLEAN NOT NULL DEFAULT FALSE;
