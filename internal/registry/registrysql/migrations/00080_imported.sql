-- +goose Up
-- Registered models (number 0) and versions that came from another MLflow server, by their name
-- there. model is the model here, created its creation time there in milliseconds, origin the
-- server. base and aliases have digests of the values that the source had at the last import, as
-- JSON.
CREATE TABLE registry_imported (
  project TEXT NOT NULL,
  name TEXT NOT NULL,
  number BIGINT NOT NULL,
  model TEXT NOT NULL,
  created BIGINT NOT NULL,
  origin TEXT NOT NULL,
  base TEXT NOT NULL,
  aliases TEXT NOT NULL,
  PRIMARY KEY (project, name, number)
);
