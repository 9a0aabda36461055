-- +goose Up

-- How much a project may store; 0 is no limit.
ALTER TABLE project_project ADD COLUMN quota_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE project_project ADD COLUMN quota_objects BIGINT NOT NULL DEFAULT 0;
