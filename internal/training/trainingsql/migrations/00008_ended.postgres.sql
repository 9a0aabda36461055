-- +goose Up
-- PostgreSQL takes no field of a JSON document with the character \u0000 in it, which the reason
-- of a job may have from its log. It goes before the two fields are taken; a \u0000 after a
-- backslash that is escaped itself is text.
UPDATE training_job SET due = COALESCE(CAST(EXTRACT(EPOCH FROM CAST(
    regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json ->> 'ended_at' AS TIMESTAMPTZ)) * 1000000 AS BIGINT), 1)
  WHERE state IN ('succeeded', 'failed', 'cancelled');
UPDATE training_job SET resumes = split_part(COALESCE(
    regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::json -> 'spec' ->> 'resume', ''), '/', 1)
  WHERE strpos(body, '"resume":') > 0;
