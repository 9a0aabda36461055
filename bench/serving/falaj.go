package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/falaj-ml/falaj/client"
)

const project = `
api_version: falaj/v1
kind: Project
name: bench
spec: {display_name: Measurements}
`

// No peer remembers its answers, so ours do not either, where nothing is said.
const deployment = "api_version: falaj/v1\nkind: Deployment\nname: %s\nproject: bench\nspec: {model: %s, version: \"1\", %s}\n---\n"

// variants are deployments of a model beside the one of its name.
var variants = map[string]map[string]string{
	"iris":      {"iris-logged": "prediction: {log: true}"},
	"mlp-large": {"mlp-large-alone": "prediction: {log: false}, batching: {max_rows: 1}"},
}

// trusted has the models run in the server's process.
const trusted = "serving: {in_process: [{project: bench}]}\n"

// falaj starts a server of ours, whose models run in its process, or, as by default, in
// processes of their own.
func (s *site) falaj(ctx context.Context, inProcess bool) (_ *side, err error) {
	d := &side{title: "the models in the server's process (serving.in_process)", ask: oip, raw: true}
	data, config := "ours", trusted
	if !inProcess {
		d.title, data, config = "each model in a process of its own (the default)", "apart", ""
	}
	file := filepath.Join(s.dir, data+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if d.on, err = s.Up(ctx, filepath.Join(s.dir, data), s.core, "FALAJ_CONFIG="+file); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	c, err := d.on.Client()
	if err != nil {
		return nil, err
	}
	if _, err := c.Apply(ctx, "", []byte(project), false); err != nil {
		return nil, err
	}
	if d.header, err = credentials(ctx, c); err != nil {
		return nil, err
	}
	if err := s.register(ctx, d, c); err != nil {
		return nil, err
	}
	var manifests strings.Builder
	for _, m := range s.models {
		fmt.Fprintf(&manifests, deployment, m.Name, m.Name, "prediction: {log: false}")
		for name, spec := range variants[m.Name] {
			fmt.Fprintf(&manifests, deployment, name, m.Name, spec)
		}
	}
	if _, err := c.Apply(ctx, "bench", []byte(manifests.String()), false); err != nil { // it answers when the models have answered
		return nil, err
	}
	for i := range s.models {
		if err := s.check(ctx, d, &s.models[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.models[i].Name, err)
		}
	}
	return d, nil
}

// credentials are the header of a program that may ask for predictions, as the guide
// has one made: a token of the project's engineer.
func credentials(ctx context.Context, c *client.Client) (header string, err error) {
	var token client.Object
	want := map[string]any{"name": "app", "role": "engineer", "project": "bench", "expires_in": "24h"}
	if err := c.Do(ctx, http.MethodPost, "/api/v1/tokens", want, &token); err != nil {
		return "", err
	}
	return "Authorization: Bearer " + token.Text("secret") + "\r\n", nil
}

func (s *site) register(ctx context.Context, d *side, c *client.Client) error {
	for _, m := range s.models {
		file, err := os.ReadFile(m.File)
		if err != nil {
			return err
		}
		if err := d.on.Register(ctx, c, "bench", m.Name, file); err != nil {
			return err
		}
	}
	return nil
}
