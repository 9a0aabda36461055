-- +goose Up
-- The place of a data set or a logged model among those of its run, in the order in which they
-- were logged. Those logged before have 0, and come by name.
ALTER TABLE tracking_input ADD COLUMN position BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tracking_model_link ADD COLUMN position BIGINT NOT NULL DEFAULT 0;
