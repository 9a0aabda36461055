package remote_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// gang joins all members of a workload.
func (w *world) gang(h engine.Handle, starts ...string) {
	w.Helper()
	joined := make(chan error, len(starts))
	for i, start := range starts {
		go func() { joined <- w.tell(h, "join", nil, joining(i, start), nil) }()
	}
	for range starts {
		w.check(<-joined)
	}
}

// deliver sends a tree of plain files, with its manifest.
func (w *world) deliver(h engine.Handle, index int, start string, mount int, name string, files map[string]string) error {
	w.Helper()
	m := protocol.Manifest{Name: name}
	var parts []any
	for path, content := range files {
		m.Files = append(m.Files, file(path, content))
		parts = append(parts, &tar.Header{Name: path, Typeflag: tar.TypeReg}, content)
	}
	q, at := as(index, start), fmt.Sprintf("mounts/%d/", mount)
	var needed protocol.Needed
	if err := w.tell(h, at+"manifest", q, m, &needed); err != nil {
		return err
	}
	q.Set("name", name)
	q.Set("manifest", needed.Manifest)
	return w.say("PUT", h, at+"tree", q, tarOf(w.T, false, parts...), nil)
}

// TestNodesAreTheEnginesWord: an attempt's token says where its worker is, and
// nodes are put in quarantine and environments are refused by that: of another
// node than the engine's it can say nothing.
func TestNodesAreTheEnginesWord(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	w, l := hub(t, func(c *remote.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	l.said = remote.Observed{Nodes: []string{"n1"}}
	book := func() string {
		b, _ := os.ReadFile(filepath.Join(w.c.Dir, "nodes.json"))
		return string(b)
	}
	node := func(h engine.Handle) string {
		members, err := w.d.Members(w.ctx, h)
		w.check(err)
		return members[0].Node
	}
	join := func(name string) engine.Handle {
		h := w.start(w.spec(1, "true"))
		j := joining(0, start0)
		j.Node, j.Facts = name, map[string]string{"glibc": "of " + name}
		w.check(w.tell(h, "join", nil, j, nil))
		return h
	}
	liar := join("n7")
	honest := join("n1")
	w.eventually(func() bool { return strings.Contains(book(), "of n1") })
	if strings.Contains(book(), "n7") {
		t.Errorf("an agent has told of a node that it is not on: %s", book())
	}
	ahead.Store(int64(time.Minute)) // the engine has had time to say where it runs
	if at := node(liar); at != "" {
		t.Errorf("the engine says n1, the agent n7, and it counts as on %q", at)
	}
	if at := node(honest); at != "n1" {
		t.Errorf("it counts as on %q", at)
	}
}

// TestManifestsAreBounded: what a worker announces and never sends does not fill
// the server's memory, and what it has sent does not add up.
func TestManifestsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 4 << 10
	w, _ := hub(t, func(c *remote.Config) { c.MaxManifests = most })
	h := w.start(w.spec(1, "true"))
	w.gang(h, start0)
	for i := range 100 { // each record is over 100 bytes
		w.check(w.deliver(h, 0, start0, 2, fmt.Sprintf("step-%03d", i), map[string]string{"a": strconv.Itoa(i)}))
	}
	var err error
	announced := 0
	for ; err == nil && announced < 100; announced++ {
		err = w.tell(h, "mounts/2/manifest", as(0, start0), protocol.Manifest{Name: fmt.Sprint("never-", announced), Files: []protocol.File{file("a", "x")}}, nil)
	}
	wantKind(t, "announcing without an end", err, fault.Exhausted)
	if announced < 5 {
		t.Errorf("only %d were taken", announced)
	}
}

// TestNoneOfWhatIsNotAsked: that a worker has no part counts when it was asked.
func TestNoneOfWhatIsNotAsked(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	s := w.spec(2, "true")
	h := w.start(s)
	w.gang(h, start0, start1)
	none := protocol.Beat{None: []string{"step"}}
	w.check(w.tell(h, "beat", as(1, start1), none, nil))
	w.check(w.deliver(h, 0, start0, 2, "step", map[string]string{"a": "a"}))
	if got := w.files(s.Mounts[2].Path); got["step/a"] != "" {
		t.Errorf("it counts without the other's part: %q", got)
	}
	w.check(w.tell(h, "beat", as(1, start1), none, nil))
	if got := w.files(s.Mounts[2].Path); got["step/a"] != "a" {
		t.Errorf("%q", got)
	}
}

// TestOutputsThatCollide: a file of one worker where another has a directory
// keeps nobody's output from being taken.
func TestOutputsThatCollide(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	s := w.spec(2, "true")
	h := w.start(s)
	w.gang(h, start0, start1)
	w.check(w.deliver(h, 0, start0, 1, "", map[string]string{"a": "file", "d/x": "x"}))
	w.check(w.deliver(h, 1, start1, 1, "", map[string]string{"a/b": "lost", "c": "c", "d": "lost"}))
	for i, start := range []string{start0, start1} {
		w.check(w.tell(h, "end", as(i, start), protocol.End{Reason: "exited"}, nil))
	}
	w.ok(w.wait(h))
	if got, want := w.files(s.Mounts[1].Path), map[string]string{"a": "file", "c": "c", "d/x": "x"}; !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestWordsArePlain: what a worker says of itself reaches people's terminals and
// a database that takes no zero bytes.
func TestWordsArePlain(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	h := w.start(w.spec(1, "true"))
	for _, change := range []func(*protocol.Join){
		func(j *protocol.Join) { j.Node = "n\x1b[2J" },
		func(j *protocol.Join) { j.Address = "10.0.0.1\n" },
		func(j *protocol.Join) { j.Interface = "eth0\x00" },
		func(j *protocol.Join) { j.Facts = map[string]string{"glibc": "\x00"} },
		func(j *protocol.Join) { j.Facts = map[string]string{"a\tb": ""} },
	} {
		j := joining(0, start0)
		change(&j)
		wantKind(t, fmt.Sprintf("joining as %+v", j), w.tell(h, "join", nil, j, nil), fault.Invalid)
	}
	w.gang(h, start0)
	me := as(0, start0)
	wantKind(t, "a beat of negative work", w.tell(h, "beat", me, protocol.Beat{CPU: -1}, nil), fault.Invalid)
	wantKind(t, "a beat of negative memory", w.tell(h, "beat", me, protocol.Beat{PeakRSS: -1}, nil), fault.Invalid)
	wantKind(t, "an end of negative work", w.tell(h, "end", me, protocol.End{Reason: "exited", CPU: -1}, nil), fault.Invalid)
	w.check(w.tell(h, "end", me, protocol.End{Reason: "exited", ExitCode: 3, Message: "it\x00 \x1b]0;failed\x07\n\u009btwice"}, nil))
	if st := w.wait(h); st.Message != "it ]0;failed\ntwice" {
		t.Errorf("%q", st.Message)
	}
}

// TestFewPacksAtOnce: a worker that asks for a mount again and again, and reads
// nothing, holds two of the server's streams and no more.
func TestFewPacksAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	s := w.spec(1, "true")
	w.check(os.WriteFile(filepath.Join(s.Mounts[0].Path, "large"), make([]byte, 64<<20), 0o600))
	h := w.start(s)
	w.gang(h, start0)
	u := w.server.URL + "/api/v1/projects/demo/workloads/" + string(h) + "/worker/mounts/0?" + as(0, start0).Encode()
	get := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
		w.check(err)
		r.Header.Set("Accept-Encoding", "identity")
		return w.server.Client().Do(r)
	}
	var held []*http.Response
	for range 2 {
		resp, err := get(w.ctx) //nolint:bodyclose // Closed below, when the third was tried.
		w.check(err)
		held = append(held, resp) //nolint:bodyclose // As above.
	}
	ctx, cancel := context.WithTimeout(w.ctx, 200*time.Millisecond)
	defer cancel()
	if resp, err := get(ctx); err == nil {
		_ = resp.Body.Close()
		t.Error("a third is served at once")
	}
	for _, resp := range held {
		w.check(resp.Body.Close())
	}
	resp, err := get(w.ctx)
	w.check(err)
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < 64<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
