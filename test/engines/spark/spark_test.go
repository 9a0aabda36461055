// Package spark runs unmodified PySpark with Iceberg's runtime against the built
// binary: it reads and writes open datasets through the catalog.
package spark

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = `
api_version: falaj/v1
kind: Dataset
name: weather
project: nyc
spec: {protection: open, expectations: [{check: between, column: temp, min: -100, max: 100}]}
---
{api_version: falaj/v1, kind: Dataset, name: blank, project: nyc, spec: {protection: open, columns: [{name: a, type: int64}]}}
---
{api_version: falaj/v1, kind: Dataset, name: secret, project: nyc}
`

const (
	first = "origin,seen,temp,n,wet,day\nEWR,2013-01-01T00:00:00Z,1.5,9007199254740993,true,2013-01-01\n"
	cold  = "origin,seen,temp,n,wet,day\nEWR,2013-01-01T00:00:00Z,-300,1,true,2013-01-01\n"
	third = first + "JFK,2013-01-01T01:00:00Z,,2,false,2013-01-02\n,2013-01-01T02:00:00Z,-3,3,,\n"
)

func TestSpark(t *testing.T) {
	s := live.New(t, "")
	python, jar, reader := installed(t, s, "spark/bin/python"), installed(t, s, "spark/iceberg.jar"), installed(t, s, "tables/bin/python")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(manifests)
	for _, v := range []struct{ name, file string }{{"weather", first}, {"weather", cold}, {"weather", third}, {"secret", first}} {
		_, err := p.C.Import(t.Context(), "nyc", v.name, v.name+".csv", strings.NewReader(v.file))
		p.Must(err)
	}
	var token client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": "nyc", "name": "spark", "role": "engineer"}, &token))

	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	run := func(python, script string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, python, script)
		cmd.Env = append(os.Environ(), "HOME="+s.Home, "ICEBERG_JAR="+jar, "CATALOG_URI="+s.URL+"/iceberg", "CATALOG_TOKEN="+token.Text("secret"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out[max(0, len(out)-4000):])
		}
	}
	run(python, "testdata/spark.py")
	run(reader, "testdata/kinds.py")

	for name, want := range map[string][]string{
		"trips":   {"accepted 2", "accepted 3", "accepted 3", "accepted 2", "accepted 2", "accepted 3", "accepted 1"},
		"hot":     {"accepted 1", "accepted 3"},
		"kinds":   {"accepted 2", "accepted 3", "accepted 3"},
		"kinds2":  {"accepted 2"},
		"weather": {"accepted 1", "rejected 1", "accepted 3", "rejected 6"},
	} {
		var got []string
		p.Must(p.C.List(t.Context(), "/api/v1/projects/nyc/datasets/"+name+"/versions", url.Values{}, func(v client.Object) error {
			got = append(got, fmt.Sprintf("%s %v", v.Text("state"), v["rows"]))
			return nil
		}))
		slices.Reverse(got)
		if !slices.Equal(got, want) {
			t.Errorf("versions of %s: %q, want %q", name, got, want)
		}
	}
	var kinds client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/kinds@3/version"), nil, &kinds))
	for column, kind := range map[string]string{"i": "int32", "l": "int64", "f": "float32", "li": "list<int32>", "lf": "list<float32>", "lat": "list<timestamp>"} {
		if !strings.Contains(kinds.Text("schema"), fmt.Sprintf("name:%s type:%s]", column, kind)) {
			t.Errorf("%s is no %s: %s", column, kind, kinds.Text("schema"))
		}
	}
	var preview struct{ Rows [][]any }
	p.Must(p.C.Do(t.Context(), http.MethodGet, "/api/v1/projects/nyc/datasets/trips/preview", nil, &preview))
	if len(preview.Rows) != 1 || len(preview.Rows[0]) != 6 {
		t.Errorf("trips through Falaj: %v", preview.Rows)
	}
}
