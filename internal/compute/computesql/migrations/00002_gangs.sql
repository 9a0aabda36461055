-- +goose Up
ALTER TABLE compute_workload ADD COLUMN workers BIGINT NOT NULL DEFAULT 0; -- that have their place
ALTER TABLE compute_workload ADD COLUMN nodes TEXT NOT NULL DEFAULT 'null'; -- JSON list: of each worker
UPDATE compute_workload SET workers = 1 WHERE pool <> '';
UPDATE compute_workload SET nodes = '["' || node || '"]' WHERE node <> '';
ALTER TABLE compute_workload DROP COLUMN node;
CREATE INDEX compute_workload_state ON compute_workload (settled, state);
CREATE INDEX compute_workload_held ON compute_workload (ended) WHERE handle <> '';

ALTER TABLE compute_usage ADD COLUMN workers BIGINT NOT NULL DEFAULT 1;

ALTER TABLE compute_pool ADD COLUMN found TEXT NOT NULL DEFAULT 'null'; -- JSON list: the nodes that its engine told of

CREATE TABLE compute_quarantine (
    pool TEXT NOT NULL,
    node TEXT NOT NULL,
    reason TEXT NOT NULL,
    since BIGINT NOT NULL,
    until BIGINT NOT NULL,
    PRIMARY KEY (pool, node)
);
