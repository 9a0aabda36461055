-- +goose Up
-- What an attempt used and how fast it was; of one that runs, as it was last kept.
-- What is compared between attempts is in columns.
CREATE TABLE training_measurement (
    attempt TEXT NOT NULL PRIMARY KEY REFERENCES training_attempt (id),
    job TEXT NOT NULL REFERENCES training_job (id),
    project TEXT NOT NULL,
    family TEXT NOT NULL,
    unit TEXT NOT NULL, -- of the rate: examples, steps or runs
    setting TEXT NOT NULL, -- what else makes the work of a step
    pool TEXT NOT NULL,
    node TEXT NOT NULL, -- empty where there are several
    device TEXT NOT NULL,
    workers BIGINT NOT NULL,
    rate DOUBLE PRECISION NOT NULL, -- units a second; 0 is unknown
    ended BIGINT NOT NULL, -- microseconds since 1970; 0 while it runs
    body TEXT NOT NULL -- the measurement as JSON
);
CREATE INDEX training_measurement_job ON training_measurement (job);
CREATE INDEX training_measurement_family ON training_measurement (project, family, ended);
CREATE INDEX training_measurement_pool ON training_measurement (pool, ended);
CREATE INDEX training_measurement_ended ON training_measurement (ended);

-- Nodes that were found slower than their peers, until they are as fast again.
CREATE TABLE training_slow_node (
    pool TEXT NOT NULL,
    node TEXT NOT NULL,
    since BIGINT NOT NULL, -- microseconds since 1970
    body TEXT NOT NULL, -- the evidence as JSON
    PRIMARY KEY (pool, node)
);
