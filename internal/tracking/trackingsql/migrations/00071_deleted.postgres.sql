-- +goose Up
-- When runs were deleted before that was kept is not known: not before now.
UPDATE tracking_run SET deleted = CAST(EXTRACT(EPOCH FROM now()) * 1000000 AS BIGINT) WHERE stage = 'deleted';
