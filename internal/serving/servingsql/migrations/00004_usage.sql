-- +goose Up
-- What callers used of a deployment's quota in a period. deployment is its ID: one of
-- the same name that is made later begins anew. caller is by whom it is counted: a user
-- and a token, a user, or nobody for all together.
CREATE TABLE serving_usage (
    deployment    TEXT   NOT NULL,
    starts        BIGINT NOT NULL,
    ends          BIGINT NOT NULL,
    caller        TEXT   NOT NULL,
    user_id       TEXT   NOT NULL,
    user_name     TEXT   NOT NULL,
    token         TEXT   NOT NULL,
    request_count BIGINT NOT NULL,
    row_count     BIGINT NOT NULL,
    PRIMARY KEY (deployment, starts, ends, caller)
);
CREATE INDEX serving_usage_ends ON serving_usage (ends);
