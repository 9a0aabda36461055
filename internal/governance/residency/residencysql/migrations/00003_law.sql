-- +goose Up

-- A widening may be of a zone's law; '' where it is of a label.
ALTER TABLE residency_widening ADD COLUMN from_law TEXT NOT NULL DEFAULT '';
ALTER TABLE residency_widening ADD COLUMN to_law TEXT NOT NULL DEFAULT '';
