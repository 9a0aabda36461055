package oidc

import "context"

// GroupsOf reads the groups of claims.
func GroupsOf(all map[string]any, name string) ([]string, error) {
	return New(Config{Name: "op", GroupsClaim: name}).groups(context.Background(), all, "")
}
