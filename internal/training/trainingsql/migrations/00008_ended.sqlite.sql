-- +goose Up
UPDATE training_job SET due = COALESCE(CAST(strftime('%s', json_extract(body, '$.ended_at')) AS INTEGER) * 1000000, 1)
  WHERE state IN ('succeeded', 'failed', 'cancelled');
UPDATE training_job SET resumes = substr(json_extract(body, '$.spec.resume'), 1, instr(json_extract(body, '$.spec.resume') || '/', '/') - 1)
  WHERE COALESCE(json_extract(body, '$.spec.resume'), '') <> '';
