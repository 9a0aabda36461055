package oidc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/falaj-ml/falaj/internal/governance/project"
)

// claim finds a claim: by its name, else by a path of names with dots between.
func claim(all map[string]any, name string) (any, bool) {
	if v, ok := all[name]; ok {
		return v, true
	}
	head, rest, ok := strings.Cut(name, ".")
	if !ok {
		return nil, false
	}
	below, ok := all[head].(map[string]any)
	if !ok {
		return nil, false
	}
	return claim(below, rest)
}

func textOf(all map[string]any, name string) string {
	v, _ := claim(all, name)
	text, _ := v.(string)
	return text
}

// groups are the person's groups. A claim that is absent means none: that is how providers
// say so. Too many for a token are asked for, or refused; they never mean none.
func (p *Provider) groups(ctx context.Context, all map[string]any, access string) ([]string, error) {
	if overage(all, p.cfg.GroupsClaim) {
		if p.cfg.Graph == "" {
			return nil, p.refused("the person is in too many groups for a token, and Microsoft Graph is not configured").
				WithHint("An administrator of Falaj should set graph for this provider, or let it send only the groups assigned to the application.")
		}
		return p.graphGroups(ctx, access)
	}
	v, ok := claim(all, p.cfg.GroupsClaim)
	if !ok || v == nil {
		return nil, nil
	}
	if one, ok := v.(string); ok {
		v = []any{one}
	}
	list, ok := v.([]any)
	if !ok {
		return nil, p.refused("the claim %s is no list of names", p.cfg.GroupsClaim)
	}
	if len(list) > project.MaxGroups {
		return nil, p.tooMany(len(list))
	}
	groups := make([]string, len(list))
	for i, g := range list {
		name, ok := g.(string)
		if !ok {
			return nil, p.refused("element %d of the claim %s is no text", i, p.cfg.GroupsClaim)
		}
		if err := project.CheckGroup(name); err != nil {
			return nil, p.refused("element %d of the claim %s: %w", i, p.cfg.GroupsClaim, err)
		}
		groups[i] = name
	}
	return groups, nil
}

func (p *Provider) tooMany(n int) error {
	return p.refused("the person is in %d groups, at most %d are read", n, project.MaxGroups).
		WithHint("An administrator of the provider should let it send only the groups that Falaj's grants name.")
}

// overage reports that Entra left the groups out because there are too many.
func overage(all map[string]any, name string) bool {
	names, _ := all["_claim_names"].(map[string]any)
	_, elsewhere := names[name]
	many, _ := all["hasgroups"].(bool)
	return elsewhere || many && name == "groups"
}

// graphGroups asks Microsoft Graph for the ids of the person's groups, the same kind of
// value that Entra's tokens have. The URL in the token is of an API that is gone.
func (p *Provider) graphGroups(ctx context.Context, access string) ([]string, error) {
	base, err := url.Parse(p.cfg.Graph)
	if err != nil {
		return nil, p.away(err)
	}
	var groups []string
	next := strings.TrimRight(p.cfg.Graph, "/") + "/me/transitiveMemberOf/microsoft.graph.group?$select=id&$top=999&$count=true"
	for next != "" {
		u, err := url.Parse(next)
		if err != nil || u.Host != base.Host || u.Scheme != base.Scheme { // the token goes nowhere else
			return nil, p.away(fmt.Errorf("microsoft graph continues at %.200q", next))
		}
		var page struct {
			Next  string `json:"@odata.nextLink"`
			Value []struct {
				ID string `json:"id"`
			} `json:"value"`
		}
		if err := p.ask(ctx, next, access, &page); err != nil {
			return nil, err
		}
		for _, g := range page.Value {
			groups = append(groups, g.ID)
		}
		if len(groups) > project.MaxGroups || len(page.Value) == 0 && page.Next != "" {
			return nil, p.tooMany(len(groups))
		}
		next = page.Next
	}
	return groups, nil
}

func (p *Provider) ask(ctx context.Context, from, access string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return p.away(err)
	}
	req.Header.Set("Authorization", "Bearer "+access)
	req.Header.Set("ConsistencyLevel", "eventual") // Graph refuses the request without it
	res, err := p.cfg.Client.Do(req)
	if err != nil {
		return p.away(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return p.away(fmt.Errorf("microsoft graph answers %s", res.Status))
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return p.away(err)
	}
	return nil
}
