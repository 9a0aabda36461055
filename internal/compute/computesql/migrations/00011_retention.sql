-- +goose Up
-- What was used by workloads whose records are gone, added up by day, in UTC.
CREATE TABLE compute_usage_day (
    project TEXT NOT NULL,
    day BIGINT NOT NULL, -- its beginning, microseconds since 1970
    kind TEXT NOT NULL,
    username TEXT NOT NULL,
    queue TEXT NOT NULL,
    model TEXT NOT NULL,
    pool TEXT NOT NULL,
    currency TEXT NOT NULL,
    workloads BIGINT NOT NULL, -- that ended on the day
    cpu_us BIGINT NOT NULL,
    node_hours DOUBLE PRECISION NOT NULL,
    accelerators TEXT NOT NULL, -- hours by resource name, as JSON
    energy_kwh DOUBLE PRECISION NOT NULL,
    cost DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (project, day, kind, username, queue, model, pool, currency)
);
CREATE INDEX compute_usage_day_day ON compute_usage_day (day);

-- What engines still hold, by kind: replicas are forgotten before the others.
DROP INDEX compute_workload_held;
CREATE INDEX compute_workload_held ON compute_workload (kind, ended) WHERE settled AND handle <> '';
-- What goes by its own age; attempts go with their jobs.
CREATE INDEX compute_workload_over ON compute_workload (ended) WHERE settled AND handle = '' AND kind <> 'job';

-- One index of the workloads that are not settled: two of all were written at each change.
DROP INDEX compute_workload_unsettled;
DROP INDEX compute_workload_state;
CREATE INDEX compute_workload_open ON compute_workload (state) WHERE NOT settled;
