package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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

// falaj starts a server of ours. Models that a job of its own made run in its process,
// others in processes of their own.
func (s *site) falaj(ctx context.Context, job bool) (_ *side, err error) {
	d := &side{title: "the models in the server's process", ask: oip, raw: true}
	data := "ours"
	if !job {
		d.title, data = "each model in a process of its own", "apart"
	}
	if d.on, err = s.Up(ctx, filepath.Join(s.dir, data), s.core); err != nil {
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
	if job {
		err = s.byJob(ctx, c)
	} else {
		err = s.register(ctx, d, c)
	}
	if err != nil {
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

// byJob has a job for each model, which leaves it in its output.
func (s *site) byJob(ctx context.Context, c *client.Client) error {
	source, err := s.source(ctx, c)
	if err != nil {
		return err
	}
	for _, m := range s.models {
		spec := map[string]any{
			"source": source, "register": m.Name, "env": map[string]string{"MODEL": m.Name},
			"command": []string{"/bin/sh", "-c", `mkdir "$FALAJ_OUTPUT_DIR/model" && cp "$MODEL.onnx" "$FALAJ_OUTPUT_DIR/model/model.onnx"`},
		}
		var job client.Object
		if err := c.Do(ctx, http.MethodPost, "/api/v1/projects/bench/jobs", map[string]any{"name": m.Name, "spec": spec}, &job); err != nil {
			return err
		}
		if err := c.Do(ctx, http.MethodGet, "/api/v1/projects/bench/jobs/"+job.Text("id")+"?wait=50s", nil, &job); err != nil {
			return err
		}
		if state := job.Text("state"); state != "succeeded" {
			return fmt.Errorf("the job of %s is %s: %v", m.Name, state, job)
		}
	}
	return nil
}

// source uploads the models as a source archive.
func (s *site) source(ctx context.Context, c *client.Client) (digest string, err error) {
	var archive bytes.Buffer
	z, err := gzip.NewWriterLevel(&archive, gzip.NoCompression)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(z)
	for _, m := range s.models {
		file, err := os.ReadFile(m.File)
		if err != nil {
			return "", err
		}
		if err := w.WriteHeader(&tar.Header{Name: m.Name + ".onnx", Mode: 0o644, Size: int64(len(file))}); err != nil {
			return "", err
		}
		if _, err := w.Write(file); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	uploaded, err := c.UploadSource(ctx, "bench", &archive)
	return uploaded.Digest, err
}
