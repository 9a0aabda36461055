-- +goose Up
-- Entries that were archived: an object of the object store has those with first <= idx < upto.
CREATE TABLE audit_segment (
    object  TEXT   NOT NULL PRIMARY KEY,
    state   TEXT   NOT NULL,
    made    BIGINT NOT NULL,
    first   BIGINT NOT NULL,
    upto    BIGINT NOT NULL,
    digest  TEXT   NOT NULL,
    bytes   BIGINT NOT NULL,
    since   BIGINT NOT NULL,
    until   BIGINT NOT NULL,
    summary TEXT   NOT NULL
);

CREATE INDEX audit_segment_first ON audit_segment (state, first);
