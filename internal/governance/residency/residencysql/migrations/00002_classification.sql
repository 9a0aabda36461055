-- +goose Up

-- A widening may be of the classification; '' where that stays.
ALTER TABLE residency_widening ADD COLUMN from_class TEXT NOT NULL DEFAULT '';
ALTER TABLE residency_widening ADD COLUMN to_class TEXT NOT NULL DEFAULT '';
