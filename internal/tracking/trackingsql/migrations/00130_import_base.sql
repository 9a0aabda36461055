-- +goose Up
-- What a repeated import compares with: base has digests of the values that the source had at
-- the last import, as JSON, and is empty for objects that were imported before this column.
-- origin names an experiment in its source, whatever it is called; object is its number here.
ALTER TABLE tracking_imported ADD COLUMN base TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_imported ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE tracking_imported ADD COLUMN object TEXT NOT NULL DEFAULT '';
CREATE INDEX tracking_imported_origin ON tracking_imported (project, kind, origin);
