-- +goose Up
ALTER TABLE registry_approval ADD COLUMN measured TEXT NOT NULL DEFAULT 'null';
