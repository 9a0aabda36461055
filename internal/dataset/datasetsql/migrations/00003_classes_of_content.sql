-- +goose Up

-- The digest of the file that a version was imported from; '' where there was none, and
-- in rows of before. The same content, or file, keeps its class in every project.
ALTER TABLE dataset_version ADD COLUMN source_digest TEXT NOT NULL DEFAULT '';
CREATE INDEX dataset_version_digest ON dataset_version (digest);
CREATE INDEX dataset_version_source_digest ON dataset_version (source_digest);
