-- +goose Up
-- The dataset version that a version was trained on, of those that its producer could read.
ALTER TABLE registry_version ADD COLUMN trained_on TEXT NOT NULL DEFAULT '';
