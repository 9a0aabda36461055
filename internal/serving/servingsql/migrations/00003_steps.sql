-- +goose Up
-- steps is JSON: the models that are steps before and after the deployment's own, as
-- they were when it was applied.
ALTER TABLE serving_deployment ADD COLUMN steps TEXT NOT NULL DEFAULT '[]';
