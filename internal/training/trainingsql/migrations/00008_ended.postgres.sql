-- +goose Up
UPDATE training_job SET due = COALESCE(CAST(EXTRACT(EPOCH FROM CAST(body::json ->> 'ended_at' AS TIMESTAMPTZ)) * 1000000 AS BIGINT), 1)
  WHERE state IN ('succeeded', 'failed', 'cancelled');
UPDATE training_job SET resumes = split_part(body::json -> 'spec' ->> 'resume', '/', 1)
  WHERE COALESCE(body::json -> 'spec' ->> 'resume', '') <> '';
