package environment_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/falaj-ml/falaj/internal/environment"
)

// cyclonedx is the schema of version 1.5, which its library carries.
func cyclonedx(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	const at = "http://cyclonedx.org/schema/"
	for name, file := range map[string]string{"bom-1.5.schema.json": "bom-1.5.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "schema", file))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(at+name, doc); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile(at + "bom-1.5.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestMaterialsFollowTheSchema: of each kind, and what does not follow it is told
// from what does.
func TestMaterialsFollowTheSchema(t *testing.T) {
	schema := cyclonedx(t)
	w, images := kindsWorld(t)
	images.tags["r.example:5000/team/x:1"] = "r.example:5000/team/x@sha256:" + strings.Repeat("1", 64)
	w.built(t, "py", environment.Spec{Requirements: []string{"six", "numpy"}})
	for name, spec := range map[string]environment.Spec{"img": {Image: "r.example:5000/team/x:1"}, "mods": {Modules: []string{"cuda/12.4", "gcc"}}} {
		if _, _, err := w.Apply(t.Context(), nyc, name, spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"py", "img", "mods"} {
		b, err := w.Materials(t.Context(), nyc, name)
		if err != nil {
			t.Fatal(err)
		}
		for what, c := range map[string]struct {
			change *strings.Replacer
			valid  bool
		}{
			"as it is":         {strings.NewReplacer(), true},
			"another format":   {strings.NewReplacer(`"CycloneDX"`, `"Cyclone"`), false},
			"no serial number": {strings.NewReplacer(`"urn:uuid:`, `"urn:`), false},
			"no such type":     {strings.NewReplacer(`"application"`, `"program"`), false},
		} {
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(c.change.Replace(string(b))))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); (err == nil) != c.valid {
				t.Errorf("%s, %s: %v\n%s", name, what, err, b)
			}
		}
	}
}
