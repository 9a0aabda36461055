-- +goose Up
-- The dataset version that the producer trained on, of those that it could read.
ALTER TABLE tracking_run ADD COLUMN trained_on TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_model ADD COLUMN trained_on TEXT NOT NULL DEFAULT '';
