-- +goose Up
-- What a search reads of a sweep: its owner and the fields that it is found by, or '*' where they
-- are long, and until a row from before these columns is written again. The index has all of it.
ALTER TABLE tuning_sweep ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE tuning_sweep ADD COLUMN line TEXT NOT NULL DEFAULT '*';
CREATE INDEX tuning_sweep_line ON tuning_sweep (project, name, owner, line);
