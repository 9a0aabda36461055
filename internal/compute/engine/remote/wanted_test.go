package remote_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
)

// TestOutputOfAGang: the files of all workers are listed, and of a path that two have it
// is the first one's, as when the output is stored.
func TestOutputOfAGang(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	h := w.start(w.spec(2, `cd "$OUT"; printf "$FALAJ_WORKER_INDEX" >both; printf x >"own$FALAJ_WORKER_INDEX"; while :; do sleep 100000; done`))
	var names []string
	for len(names) < 3 {
		l, err := w.d.ListOutput(w.ctx, h, ".")
		if err != nil && !fault.Is(err, fault.Conflict) {
			t.Fatal(err)
		}
		w.check(w.ctx.Err())
		names = nil
		for _, f := range l.Files {
			names = append(names, f.Path)
		}
	}
	if !slices.Equal(names, []string{"both", "own0", "own1"}) {
		t.Errorf("listed %q", names)
	}
	for path, want := range map[string]string{"both": "0", "own1": "x"} {
		r, err := w.d.OpenOutput(w.ctx, h, path, 10)
		w.check(err)
		if b, err := io.ReadAll(r); errors.Join(err, r.Close()) != nil || string(b) != want {
			t.Errorf("%s is %q, %v", path, b, err)
		}
	}
	if _, err := w.d.OpenOutput(w.ctx, h, "none", 10); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
	w.check(w.d.Stop(w.ctx, h, 0))
	w.wait(h)
	if _, err := w.d.OpenOutput(w.ctx, h, "both", 10); !fault.Is(err, fault.Conflict) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := w.d.ListOutput(w.ctx, engine.Handle("none"), "."); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
}

// TestOutputNobodyAsked: an agent cannot send what was not asked for.
func TestOutputNobodyAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	h := w.start(w.spec(1, `echo there; while :; do sleep 100000; done`))
	w.until(h, "there")
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		r, err := http.NewRequestWithContext(w.ctx, method, w.server.URL+"/api/v1/projects/demo/workloads/"+string(h)+"/worker/output?"+
			url.Values{"id": {"out_1"}, "index": {"0"}, "start": {"0123456789"}}.Encode(), strings.NewReader(`{"id": "out_1"}`))
		w.check(err)
		resp, err := http.DefaultClient.Do(r) //nolint:forbidigo // A test with a context.
		w.check(err)
		if resp.Body.Close(); resp.StatusCode < 400 {
			t.Errorf("%s: %s", method, resp.Status)
		}
	}
}
