-- +goose Up
-- How a delivery is sent that is no CloudEvent of ours: 'mlflow'.
ALTER TABLE alert_delivery ADD COLUMN form TEXT NOT NULL DEFAULT '';
