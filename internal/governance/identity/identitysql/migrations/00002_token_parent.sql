-- +goose Up
-- The token that made this one; empty for none.
ALTER TABLE identity_token ADD COLUMN parent TEXT NOT NULL DEFAULT '';

CREATE INDEX identity_token_parent ON identity_token (parent);
