package httpapi

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/traffic.txt")

// TestTraffic: what the routes that take a body may do is on record; whoever adds one sees it here.
func TestTraffic(t *testing.T) {
	const file = "testdata/traffic.txt"
	var b strings.Builder
	b.WriteString("# What requests of each route carry, by the names of body.go; whether the server keeps more after one (then it is\n" +
		"# refused on a full disk), reads only, or keeps nothing; and whether a gateway has the route. /ajax-api/ is as /api/;\n" +
		"# go test ./internal/httpapi -run TestTraffic -rewrite writes it.\n")
	for _, r := range edge(t, Domains{}).Routes() {
		switch {
		case r.Method == http.MethodGet && !r.Gateway, r.Method == http.MethodDelete && !r.Gateway, r.Method == "":
			continue
		case strings.HasPrefix(r.Path, "/ajax-api/"), r.Body == mlflowBody && r.Action == "": // what is not supported
			continue
		}
		may := "-"
		switch {
		case r.Keeps:
			may = "keeps"
		case r.Reads:
			may = "reads"
		}
		gateway := ""
		if r.Gateway {
			gateway = " gateway"
		}
		fmt.Fprintf(&b, "%-6s %-75s %-8s %-5s%s\n", r.Method, r.Path, r.Body.name, may, gateway)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkRouteOf is what each request pays to know its route before its body is bounded.
func BenchmarkRouteOf(b *testing.B) {
	m := edge(b, Domains{}).mux
	r := httptest.NewRequest(http.MethodPost, "/v2/models/delay/infer", nil)
	b.ReportAllocs()
	for b.Loop() {
		if m.of(r).Body != inferenceBody {
			b.Fatal("another route")
		}
	}
}
