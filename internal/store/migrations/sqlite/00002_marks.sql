-- +goose Up
-- What made requests equal was digested without a key, and could be guessed. The claims
-- go on to guard what was done: a repetition is answered with a conflict, for a day.
UPDATE store_idempotency SET request = x'', answer = NULL;
