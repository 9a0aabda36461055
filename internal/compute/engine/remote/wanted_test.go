package remote_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/outputdir"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
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

// TestOutputOfSome: members that have no output yet, or that end while they are asked, do not
// hide the files of others; another failure is told at once.
func TestOutputOfSome(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	const members = 20 // more than are asked at the same time
	starts := make([]string, members)
	for i := range starts {
		starts[i] = fmt.Sprintf("start-of-member-%d", i)
	}
	h := w.start(w.spec(members, "true"))
	w.gang(h, starts...)
	type listed struct {
		outputdir.Listing
		err error
	}
	list := func() <-chan listed {
		got := make(chan listed, 1)
		go func() {
			l, err := w.d.ListOutput(w.ctx, h, ".")
			got <- listed{l, err}
		}()
		return got
	}
	asked := func(index int) protocol.Wanted {
		t.Helper()
		for {
			var told protocol.Instructions
			w.check(w.tell(h, "beat", as(index, starts[index]), protocol.Beat{Wait: time.Minute}, &told))
			if len(told.Wanted) > 0 {
				return told.Wanted[0]
			}
		}
	}
	answer := func(index int, f protocol.Found) {
		t.Helper()
		f.ID = asked(index).ID
		w.check(w.tell(h, "output", as(index, starts[index]), f, nil))
	}
	files := func(l outputdir.Listing) string {
		var names []string
		for _, f := range l.Files {
			names = append(names, f.Path)
		}
		return strings.Join(names, " ")
	}
	early := protocol.Found{Problem: &protocol.Problem{Kind: fault.Conflict.String(), Detail: "no output yet"}}
	missing := protocol.Found{Problem: &protocol.Problem{Kind: fault.NotFound.String(), Detail: "nothing there"}}
	one := func(name string) protocol.Found {
		return protocol.Found{Listing: &outputdir.Listing{Files: []outputdir.OutputFile{{Path: name}}}}
	}

	got := list()
	for i := range members {
		switch i {
		case 0:
			answer(i, early)
		case 1:
			answer(i, one("b"))
		case members - 1:
			answer(i, one("a"))
		default:
			answer(i, missing)
		}
	}
	if l := <-got; l.err != nil || files(l.Listing) != "a b" {
		t.Errorf("listed %q, %v", files(l.Listing), l.err)
	}

	got = list()
	for i := range members {
		if i == 0 {
			answer(i, early)
		} else {
			answer(i, missing)
		}
	}
	if l := <-got; !fault.Is(l.err, fault.Conflict) {
		t.Errorf("of what is not there yet: %v", l.err)
	}

	got = list()
	asked(1)
	answer(0, protocol.Found{Problem: &protocol.Problem{Kind: fault.Unavailable.String(), Detail: "no disk"}})
	if l := <-got; !fault.Is(l.err, fault.Unavailable) {
		t.Errorf("after a failure: %v", l.err)
	}

	got = list()
	asked(0)
	w.check(w.tell(h, "end", as(0, starts[0]), protocol.End{Reason: "exited"}, nil))
	for i := range members - 1 {
		answer(i+1, one(strconv.Itoa(i+1)))
	}
	if l := <-got; l.err != nil || len(l.Files) != members-1 {
		t.Errorf("after an end: %q, %v", files(l.Listing), l.err)
	}
}
