-- +goose Up
-- What came from another MLflow server, by its identifier there: an experiment's
-- name, or the id of a run or logged model. digest is of what that server said of
-- it when all of it had come, else empty.
CREATE TABLE tracking_imported (
  project TEXT NOT NULL,
  kind TEXT NOT NULL,
  id TEXT NOT NULL,
  digest TEXT NOT NULL,
  imported BIGINT NOT NULL,
  PRIMARY KEY (project, kind, id)
);
