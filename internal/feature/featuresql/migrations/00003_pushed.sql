-- +goose Up
-- Rows that were pushed are in a generation of their own, which answers beside the
-- materialised one; '' until the first push.
ALTER TABLE feature_online ADD COLUMN pushed TEXT NOT NULL DEFAULT '';
