-- +goose Up

-- How much a project may store of each kind, as JSON.
ALTER TABLE project_project ADD COLUMN quota_kinds TEXT NOT NULL DEFAULT '{}';
