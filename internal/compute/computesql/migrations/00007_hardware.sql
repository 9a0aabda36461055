-- +goose Up
ALTER TABLE compute_pool ADD COLUMN warned TEXT NOT NULL DEFAULT ''; -- the end of support of which people were told
