-- +goose Up
-- The attempts of a job share its run. The run has the number of the attempt that logs into
-- it; a param and the latest point of a metric have that of the attempt that logged them.
ALTER TABLE tracking_run ADD COLUMN attempt_number BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tracking_param ADD COLUMN attempt_number BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tracking_metric_latest ADD COLUMN attempt_number BIGINT NOT NULL DEFAULT 0;
