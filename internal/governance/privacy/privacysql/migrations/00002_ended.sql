-- +goose Up

-- An erasure ends as done, done_in_part or not_found.
DROP INDEX privacy_erasure_open;
CREATE INDEX privacy_erasure_open ON privacy_erasure (id) WHERE state IN ('requested', 'erasing');
