-- +goose Up
-- When runs were deleted before that was kept is not known: not before now.
UPDATE tracking_run SET deleted = CAST(strftime('%s', 'now') AS INTEGER) * 1000000 WHERE stage = 'deleted';
