-- +goose Up

-- The directory below the dataset's location that the version's own is in; '' in
-- rows of before, when there was none.
ALTER TABLE dataset_staging ADD COLUMN room TEXT NOT NULL DEFAULT '';
