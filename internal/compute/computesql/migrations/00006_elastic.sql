-- +goose Up
CREATE TABLE compute_rental (
    id TEXT NOT NULL PRIMARY KEY,
    pool TEXT NOT NULL,
    node TEXT NOT NULL, -- the place at the provider
    workload TEXT NOT NULL, -- whose need it was; empty is the minimum
    asked BIGINT NOT NULL,
    began BIGINT NOT NULL, -- since when it costs
    ready BIGINT NOT NULL,
    opened BIGINT NOT NULL,
    leaving BIGINT NOT NULL,
    ended BIGINT NOT NULL,
    failed BOOLEAN NOT NULL,
    why TEXT NOT NULL
);
CREATE UNIQUE INDEX compute_rental_place ON compute_rental (pool, node) WHERE ended = 0; -- none is rented twice
CREATE INDEX compute_rental_ended ON compute_rental (ended);

CREATE TABLE compute_wish (
    pool TEXT NOT NULL PRIMARY KEY,
    nodes INTEGER NOT NULL,
    why TEXT NOT NULL, -- words as JSON
    decided BIGINT NOT NULL
);
