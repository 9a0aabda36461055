-- +goose Up
-- The object of a source archive: each upload that stores one has its own, so that its deletion
-- never hits another. Empty is that of an earlier release, named by the digest alone. Those that
-- were being removed are removed as objects that are not on record.
DELETE FROM training_source WHERE going;
ALTER TABLE training_source DROP COLUMN going;
ALTER TABLE training_source ADD COLUMN object TEXT NOT NULL DEFAULT '';
