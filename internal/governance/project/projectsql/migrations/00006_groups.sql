-- +goose Up

-- The groups of people, as their identity provider names them: 'group/PROVIDER/NAME'.
CREATE TABLE project_group_member (
    principal TEXT   NOT NULL,
    member_of TEXT   NOT NULL,
    since     BIGINT NOT NULL,
    PRIMARY KEY (principal, member_of)
);

CREATE INDEX project_group_member_group ON project_group_member (member_of);
