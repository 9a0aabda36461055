-- +goose Up
-- trials is JSON: the canary and the shadow. earlier is JSON: the versions that
-- were stable earlier, the newest last. feature_set is JSON: what the feature
-- service meant when the deployment was applied; null without one.
ALTER TABLE serving_deployment ADD COLUMN trials TEXT NOT NULL DEFAULT '[]';
ALTER TABLE serving_deployment ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]';
ALTER TABLE serving_deployment ADD COLUMN feature_set TEXT NOT NULL DEFAULT 'null';

CREATE TABLE serving_rollout (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    deployment TEXT   NOT NULL,
    model      TEXT   NOT NULL,
    stable     BIGINT NOT NULL,
    candidate  BIGINT NOT NULL,
    weight     BIGINT NOT NULL,
    spec       TEXT   NOT NULL,
    state      TEXT   NOT NULL,
    cause      TEXT   NOT NULL,
    started    BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    ended      BIGINT NOT NULL,
    reason     TEXT   NOT NULL,
    evidence   TEXT   NOT NULL
);
CREATE INDEX serving_rollout_deployment ON serving_rollout (project, deployment, id);
-- At most one rollout of a deployment runs.
CREATE UNIQUE INDEX serving_rollout_running ON serving_rollout (project, deployment) WHERE state = 'running';

CREATE TABLE serving_act (
    id         TEXT   NOT NULL PRIMARY KEY,
    project    TEXT   NOT NULL,
    deployment TEXT   NOT NULL,
    kind       TEXT   NOT NULL,
    cause      TEXT   NOT NULL,
    act_at     BIGINT NOT NULL,
    made       BIGINT NOT NULL,
    outcome    TEXT   NOT NULL,
    reason     TEXT   NOT NULL,
    evidence   TEXT   NOT NULL,
    result     TEXT   NOT NULL,
    UNIQUE (project, deployment, kind, cause)
);
CREATE INDEX serving_act_deployment ON serving_act (project, deployment, id);
CREATE INDEX serving_act_result ON serving_act (project, kind, result) WHERE result <> '';
CREATE INDEX serving_act_claimed ON serving_act (id) WHERE outcome = 'claimed';
CREATE INDEX serving_act_at ON serving_act (project, deployment, kind, act_at);

-- What a person said about automatic acts: of a deployment, or, with an empty
-- name, of the project.
CREATE TABLE serving_switch (
    project    TEXT    NOT NULL,
    deployment TEXT    NOT NULL,
    automatic  BOOLEAN NOT NULL,
    reason     TEXT    NOT NULL,
    who        TEXT    NOT NULL,
    changed_at BIGINT  NOT NULL,
    PRIMARY KEY (project, deployment)
);
