// Package starve sends the real server what makes parsers slow and answers large, all at
// once and by several principals, and checks that it stays within its memory and answers
// others.
package starve

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	project = "north"
	base    = "/api/v1/projects/" + project
	most    = 2500 << 20 // bytes of memory that the server may use
)

// request is one of an attack.
type request struct {
	path, encoding string
	body           []byte
}

func attacks(t *testing.T) map[string]request {
	t.Helper()
	const head = "api_version: falaj/v1\nkind: Dataset\nname: deep\nspec: "
	many := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	text := func(path, body string) request { return request{path: path, body: []byte(body)} }
	in := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	bomb := func(path, text string) request {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		for range 128 {
			_, _ = z.Write([]byte(many(text, 1<<20))) // to memory
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return request{path: path, encoding: "gzip", body: b.Bytes()}
	}
	const apply, query, runs = "/api/v1/apply?project=" + project, base + "/query", "/api/2.0/mlflow/runs/"
	return map[string]request{
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
}

// TestStarve: none of the attacks ends the server or takes more than its memory, each is
// refused for what it is, and another principal is answered all the while.
func TestStarve(t *testing.T) {
	if testing.Short() {
		t.Skip("sends gigabytes")
	}
	s := live.New(t, "")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := s.Client(t)
	if _, err := admin.Apply(t.Context(), "", []byte("{api_version: falaj/v1, kind: Project, name: "+project+"}\n"), false); err != nil {
		t.Fatal(err)
	}
	token := func(name string) string {
		var made client.Object
		if err := admin.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": name, "role": "engineer"}, &made); err != nil {
			t.Fatal(err)
		}
		return made.Text("secret")
	}
	send := func(ctx context.Context, token, method string, r request) (status int, text string, err error) {
		q, err := http.NewRequestWithContext(ctx, method, s.URL+r.path, bytes.NewReader(r.body))
		if err != nil {
			return 0, "", err
		}
		q.Header.Set("Authorization", "Bearer "+token)
		if r.encoding != "" {
			q.Header.Set("Content-Encoding", r.encoding)
		}
		a, err := (&http.Client{Timeout: time.Minute}).Do(q)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = a.Body.Close() }()
		b, err := io.ReadAll(io.LimitReader(a.Body, 200))
		return a.StatusCode, string(b), err
	}

	var attackers sync.WaitGroup
	for i := range 3 {
		secret := token(fmt.Sprintf("attacker%d", i))
		for name, r := range attacks(t) {
			attackers.Go(func() {
				for range 2 {
					status, text, err := send(t.Context(), secret, http.MethodPost, r)
					if err != nil {
						t.Logf("%s: %v", name, err) // the connection was ended before all was sent
						continue
					}
					if status < 400 || status == http.StatusInternalServerError {
						t.Errorf("%s: %d %s", name, status, text)
					}
				}
			})
		}
	}
	quiet := token("quiet")
	var over atomic.Bool
	answered := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			if status, text, err := send(t.Context(), quiet, http.MethodGet, request{path: base + "/datasets"}); err != nil || status != http.StatusOK {
				t.Errorf("another principal: %d %s, %v", status, text, err)
				break
			}
		}
		answered <- n
	}()
	attackers.Wait()
	over.Store(true)
	if n := <-answered; n < 10 {
		t.Errorf("another principal was answered %d times", n)
	}
	peak := peakOf(t, s.PID())
	t.Logf("at most %d MiB", peak>>20)
	if peak > most {
		t.Errorf("the server used %d MiB", peak>>20)
	}
	// All is given back.
	if status, text, err := send(t.Context(), quiet, http.MethodPost, request{path: base + "/query", body: []byte(`{"sql":"SELECT 1"}`)}); err != nil || status != http.StatusOK {
		t.Errorf("a query afterwards: %d %s, %v", status, text, err)
	}
}

// peakOf is the most memory that a process has had, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
