-- +goose Up
CREATE TABLE monitoring_classifier (
    monitor_id TEXT    NOT NULL,
    version    BIGINT  NOT NULL,
    replay     BOOLEAN NOT NULL,
    start      BIGINT  NOT NULL,
    job        TEXT    NOT NULL,
    updated_at BIGINT  NOT NULL,
    result     TEXT    NOT NULL,
    PRIMARY KEY (monitor_id, version, replay, start)
);
CREATE INDEX monitoring_classifier_job ON monitoring_classifier (job);
CREATE INDEX monitoring_classifier_updated ON monitoring_classifier (updated_at);
