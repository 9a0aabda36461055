-- +goose Up
ALTER TABLE compute_usage ADD COLUMN ended BIGINT NOT NULL DEFAULT 0;
UPDATE compute_usage SET ended = started + wall_us;
ALTER TABLE compute_usage ADD COLUMN username TEXT NOT NULL DEFAULT ''; -- who asked for it
ALTER TABLE compute_usage ADD COLUMN queue TEXT NOT NULL DEFAULT '';
ALTER TABLE compute_usage ADD COLUMN model TEXT NOT NULL DEFAULT ''; -- that it is to make
ALTER TABLE compute_usage ADD COLUMN node_hours DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE compute_usage ADD COLUMN accelerators TEXT NOT NULL DEFAULT 'null'; -- hours by resource name, as JSON
ALTER TABLE compute_usage ADD COLUMN energy_kwh DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE compute_usage ADD COLUMN currency TEXT NOT NULL DEFAULT ''; -- of the cost; empty is from before there were any
CREATE INDEX compute_usage_ended ON compute_usage (ended);
CREATE INDEX compute_usage_project_ended ON compute_usage (project, ended);

CREATE TABLE compute_price (
    pool TEXT NOT NULL,
    since BIGINT NOT NULL,
    price TEXT NOT NULL, -- compute.Price as JSON
    PRIMARY KEY (pool, since)
);

CREATE TABLE compute_budget (
    project TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL, -- BudgetSpec as JSON, complete
    month BIGINT NOT NULL, -- whose warnings were given
    warned DOUBLE PRECISION NOT NULL, -- the largest share that was warned of in it
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    revision BIGINT NOT NULL
);
