-- +goose Up
-- Of a person who signs in at an identity provider: issuer and subject are the key; tokens
-- work until proved_until (0: for ever). Any account may be disabled.
ALTER TABLE identity_account ADD COLUMN provider TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_account ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_account ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_account ADD COLUMN display_name TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_account ADD COLUMN email TEXT NOT NULL DEFAULT '';
ALTER TABLE identity_account ADD COLUMN proved_until BIGINT NOT NULL DEFAULT 0;
ALTER TABLE identity_account ADD COLUMN disabled_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE identity_account ADD COLUMN disabled_reason TEXT NOT NULL DEFAULT '';

CREATE UNIQUE INDEX identity_account_subject ON identity_account (issuer, subject) WHERE issuer <> '';

-- A sign-in at a provider; its token is of kind 'ses'.
CREATE TABLE identity_session (
    token         TEXT   NOT NULL PRIMARY KEY,
    account       TEXT   NOT NULL,
    provider      TEXT   NOT NULL,
    subject       TEXT   NOT NULL,
    provider_sid  TEXT   NOT NULL, -- the provider's id of the session; may be empty
    refresh       BYTEA  NOT NULL, -- the sealed refresh token; empty for none
    due_at        BIGINT NOT NULL, -- when the provider is asked again; 0 for never
    claimed_until BIGINT NOT NULL, -- a server asks until then
    auth_time     BIGINT NOT NULL,
    acr           TEXT   NOT NULL,
    address       TEXT   NOT NULL,
    client        TEXT   NOT NULL,
    created_at    BIGINT NOT NULL
);

CREATE INDEX identity_session_account ON identity_session (account);
CREATE INDEX identity_session_provider ON identity_session (provider, provider_sid);
CREATE INDEX identity_session_due ON identity_session (due_at) WHERE due_at > 0;

-- A login of the command line that a person has allowed in the browser, until the command
-- redeems it.
CREATE TABLE identity_code (
    hash       BYTEA  NOT NULL PRIMARY KEY,
    account    TEXT   NOT NULL,
    token      TEXT   NOT NULL, -- that the person allowed it with
    challenge  TEXT   NOT NULL, -- of PKCE, S256
    label      TEXT   NOT NULL,
    expires_at BIGINT NOT NULL
);
