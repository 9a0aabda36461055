-- +goose Up
-- Old labels are deleted by when they were received. label_values is sealed, in
-- base64.
CREATE INDEX label_label_received ON label_label (received);
