// Package heavy is requests that are slow to parse or large to answer, for whoever sends
// them to a server and looks at what others get meanwhile.
package heavy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
)

// Request is one of them, for POST.
type Request struct {
	Path, Encoding string
	Body           []byte
}

// Requests are all of them by name, each for an engineer of the project to send. The
// server refuses each.
func Requests(project string) (map[string]Request, error) {
	base := "/api/v1/projects/" + project
	const head = "api_version: falaj/v1\nkind: Dataset\nname: deep\nspec: "
	many := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	text := func(path, body string) Request { return Request{Path: path, Body: []byte(body)} }
	var failed error
	in := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			failed = err
		}
		return string(b)
	}
	bomb := func(path, text string) Request {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		for range 128 {
			_, _ = z.Write([]byte(many(text, 1<<20))) // to memory
		}
		if err := z.Close(); err != nil {
			failed = err
		}
		return Request{Path: path, Encoding: "gzip", Body: b.Bytes()}
	}
	apply, query := "/api/v1/apply?project="+project, base+"/query"
	const runs = "/api/2.0/mlflow/runs/"
	all := map[string]Request{
		"deep YAML":           text(apply, head+many("[", 70_000)),
		"deep JSON of apply":  text(apply, many(`{"a":`, 350_000)),
		"wide YAML":           text(apply, head+"{"+many("a,", 1_000_000)+"}"),
		"deep jobs":           text("/api/v1/jobs/read", many(`{"a":`, 900_000)),
		"wide jobs":           text("/api/v1/jobs/read", head+"["+many("a,", 1_000_000)+"]"),
		"deep JSON":           text(query, `{"sql":`+many("[", 4_000_000)),
		"wide JSON":           text(query, `{"inputs":[`+many(`{"a":0},`, 4_000_000)+"{}]}"),
		"large SQL answer":    text(query, in(map[string]any{"sql": "SELECT repeat('a', 40000) AS a FROM range(10000)", "limit": 10_000})),
		"large SQL row":       text(query, in(map[string]any{"sql": "SELECT repeat('a', 200000000) AS a"})),
		"wide MLflow":         text(runs+"create", `{"tags":[`+many("{},", 18<<20)+"{}]}"),
		"long MLflow":         text(runs+"create", `{"run_name":"`+many("a", 19<<20)+`"}`),
		"MLflow in a string":  text(runs+"create", in(many("[", 9<<20))),
		"nested filter":       text(runs+"search", in(map[string]any{"experiment_ids": []string{"0"}, "filter": many("(", 500_000) + "tags.a = 'b'"})),
		"long filter":         text(runs+"search", in(map[string]any{"experiment_ids": []string{"0"}, "filter": many("tags.a = 'b' and ", 1_000_000) + "tags.a = 'b'"})),
		"large inference":     text("/v2/models/x/infer", `{"inputs":[`+many("0,", 60<<20)+"0]}"),
		"inference bomb":      bomb("/v2/models/x/infer", "["),
		"lineage bomb":        bomb("/api/v1/lineage", "["),
		"lineage of one text": bomb("/api/v1/lineage", `"`),
		"online features":     text("/get-online-features", `{"features":["a:b"],"entities":{"a":[`+many("0,", 30<<20)+"0]}}"),
		"deep CEL":            text(apply, "api_version: falaj/v1\nkind: FeatureView\nname: deep\nspec:\n  entities: [a]\n  source: {dataset: a}\n  computed: [{name: a, type: float64, expression: '"+many("(", 4_000)+"'}]\n"),
	}
	return all, failed
}
