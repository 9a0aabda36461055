-- +goose Up
-- Of an attempt's token, the account that submitted its job, empty where Falaj did, and
-- whether it works only where the attempt's sandbox reaches Falaj.
ALTER TABLE identity_token ADD COLUMN on_behalf_of TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_token ADD COLUMN bound BOOLEAN NOT NULL DEFAULT FALSE;
