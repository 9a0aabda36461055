-- +goose Up
-- Who applied a deployment first; empty for one from before this column.
ALTER TABLE serving_deployment ADD COLUMN owner TEXT NOT NULL DEFAULT '';
DROP INDEX serving_deployment_line;
CREATE INDEX serving_deployment_line ON serving_deployment (project, name, owner, line);
-- When and why a rollout was promoted that was rolled back later; 0 and empty otherwise.
ALTER TABLE serving_rollout ADD COLUMN promoted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE serving_rollout ADD COLUMN promotion TEXT NOT NULL DEFAULT '';
