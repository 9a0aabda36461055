-- +goose Up
-- Of an attempt's token, the account that submitted its job; empty where Falaj did.
ALTER TABLE identity_token ADD COLUMN on_behalf_of TEXT NOT NULL DEFAULT '';
