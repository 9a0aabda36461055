-- +goose Up
-- A database that was made by an early build has a key without the instance: the log of a
-- second instance of a gateway would replace the first one's position.
CREATE TABLE gateway_position_2 (
    project    TEXT NOT NULL,
    gateway    TEXT NOT NULL,
    deployment TEXT NOT NULL, -- its id
    instance   TEXT NOT NULL,
    position   TEXT NOT NULL,
    next       TEXT NOT NULL,
    ours       TEXT NOT NULL, -- what our log ended with before the batch up to next
    PRIMARY KEY (project, gateway, deployment, instance)
);
INSERT INTO gateway_position_2 (project, gateway, deployment, instance, position, next, ours)
    SELECT project, gateway, deployment, instance, position, next, ours FROM gateway_position;
DROP TABLE gateway_position;
ALTER TABLE gateway_position_2 RENAME TO gateway_position;
