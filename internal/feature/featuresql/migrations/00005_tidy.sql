-- +goose Up
-- The number of the subkey that a view's rows are written under, and of the one before
-- while rows are moved; 0 is of rows that older releases wrote. History before swept may
-- be gone.
ALTER TABLE feature_online ADD COLUMN subkey BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feature_online ADD COLUMN former BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feature_online ADD COLUMN rotated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feature_online ADD COLUMN swept BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feature_stale ADD COLUMN subkey BIGINT NOT NULL DEFAULT 0;
