-- +goose Up

-- Who was in versions that were deleted while something cited them: pseudonyms, sealed,
-- a part at a time. Only erasures read it.
CREATE TABLE dataset_persons (
    version TEXT   NOT NULL REFERENCES dataset_version (id),
    entity  TEXT   NOT NULL,
    part    BIGINT NOT NULL,
    project TEXT   NOT NULL,
    sealed  BYTEA  NOT NULL,
    PRIMARY KEY (version, entity, part)
);
CREATE INDEX dataset_persons_entity ON dataset_persons (project, entity, version, part);
CREATE INDEX dataset_version_deleted ON dataset_version (project, id) WHERE state = 'deleted';
