package remote_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote/remotetest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// idle is a Launcher that starts nothing: the test speaks for the agents.
type idle struct {
	mu   sync.Mutex
	ids  map[string]engine.State
	ends []string // that it was told to stop
	fail error    // of Start
	said remote.Observed
}

func (l *idle) Start(_ context.Context, x remote.Launch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	l.ids[x.ID] = engine.Running
	return nil
}

func (l *idle) Observe(_ context.Context, ids []string) (map[string]remote.Observed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]remote.Observed{}
	for _, id := range ids {
		o := remote.Observed{State: engine.Lost}
		if st, ok := l.ids[id]; ok {
			o = l.said
			o.State = st
		}
		out[id] = o
	}
	return out, nil
}

func (l *idle) Stop(_ context.Context, id string, _ time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ids[id] == "" {
		return fault.New(fault.NotFound, "none")
	}
	l.ends = append(l.ends, id)
	delete(l.ids, id) // and knows nothing of it any more
	return nil
}

// end has the engine say that a launch is over.
func (l *idle) end(id string, said remote.Observed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids[id], l.said = cmp.Or(said.State, engine.Ended), said
}

func (l *idle) List(context.Context) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for id := range l.ids {
		ids = append(ids, id)
	}
	return ids, nil
}

func (l *idle) Forget(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ids, id)
	return nil
}

// hub is a world whose agents the test speaks for.
func hub(t *testing.T, change func(*remote.Config)) (*world, *idle) {
	t.Helper()
	l := &idle{ids: map[string]engine.State{}}
	w := newWorld(t, func(c *remote.Config) {
		c.Launcher = l
		if change != nil {
			change(c)
		}
	})
	w.p = &remotetest.Processes{Dir: t.TempDir()} // there are none
	return w, l
}

// say sends a request as a member and gives the kind of error in the answer.
func (w *world) say(method string, h engine.Handle, path string, q url.Values, body []byte, out any) error {
	w.Helper()
	u := w.server.URL + "/api/v1/projects/demo/workloads/" + string(h) + "/worker/" + path + "?" + q.Encode()
	r, err := http.NewRequestWithContext(w.ctx, method, u, bytes.NewReader(body))
	w.check(err)
	if len(body) > 2 && body[0] == 0x1f && body[1] == 0x8b {
		r.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := w.server.Client().Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var p protocol.Problem
		w.check(json.Unmarshal(b, &p))
		return fault.New(fault.ParseKind(p.Kind), "%s", p.Detail)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

func (w *world) tell(h engine.Handle, path string, q url.Values, in, out any) error {
	w.Helper()
	b, err := json.Marshal(in)
	w.check(err)
	return w.say("POST", h, path, q, b, out)
}

func as(index int, start string) url.Values {
	return url.Values{"index": {strconv.Itoa(index)}, "start": {start}}
}

const start0, start1 = "0000-start-of-0", "1111-start-of-1"

func joining(index int, start string) protocol.Join {
	return protocol.Join{Version: protocol.Version, Index: index, Start: start, Node: "n", Address: "10.0.0.1", Port: 1000 + index}
}

func wantKind(t *testing.T, what string, err error, kind fault.Kind) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%s: %v, want %s", what, err, kind)
	}
}

// TestJoinRefused: who may not be a worker is none.
func TestJoinRefused(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	h := w.start(w.spec(1, "true"))
	var o protocol.Order
	w.check(w.tell(h, "join", nil, joining(0, start0), &o))
	if o.ID != string(h) || o.Index != 0 || len(o.Roster) != 1 || o.Roster[0].Address != "10.0.0.1" {
		t.Errorf("%+v", o)
	}
	w.check(w.tell(h, "join", nil, joining(0, start0), &o)) // the answer was lost
	wantKind(t, "a second start", w.tell(h, "join", nil, joining(0, start1), &o), fault.Conflict)
	wantKind(t, "another index", w.tell(h, "join", nil, joining(1, start1), &o), fault.Invalid)
	wantKind(t, "a negative index", w.tell(h, "join", nil, joining(-1, start1), &o), fault.Invalid)
	wantKind(t, "another workload", w.tell("att_other", "join", nil, joining(0, start0), &o), fault.NotFound)
	for version, kind := range map[int]fault.Kind{protocol.Version + 1: fault.Unsupported, protocol.Version - 2: fault.Unsupported, -1: fault.Unsupported} {
		j := joining(0, start0)
		j.Version = version
		wantKind(t, "protocol "+strconv.Itoa(version), w.tell(h, "join", nil, j, &o), kind)
	}
	j := joining(0, start0)
	j.Version = protocol.Version - 1
	w.check(w.tell(h, "join", nil, j, &o))
	if o.Version != protocol.Version-1 {
		t.Errorf("spoke %d", o.Version)
	}
	for what, change := range map[string]func(*protocol.Join){
		"no start": func(j *protocol.Join) { j.Start = "" }, "a long start": func(j *protocol.Join) { j.Start = strings.Repeat("x", 65) },
		"an address with a comma": func(j *protocol.Join) { j.Address = "a,b" }, "a port": func(j *protocol.Join) { j.Port = 70000 },
		"a long node": func(j *protocol.Join) { j.Node = strings.Repeat("n", 256) },
	} {
		j := joining(0, start0)
		change(&j)
		wantKind(t, what, w.tell(h, "join", nil, j, &o), fault.Invalid)
	}
	wantKind(t, "a body that is no JSON", w.say("POST", h, "join", nil, []byte("{"), nil), fault.Invalid)
	wantKind(t, "a body that is too long", w.say("POST", h, "join", nil, bytes.Repeat([]byte(" "), 1<<21), nil), fault.TooLarge)
}

// TestTwoAgentsAtOnce: of many starts of one member at once, one gets the order.
func TestTwoAgentsAtOnce(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	h := w.start(w.spec(1, "true"))
	results := make(chan error, 20)
	for i := range 20 {
		go func() { results <- w.tell(h, "join", nil, joining(0, "start number "+strconv.Itoa(i)), nil) }()
	}
	won := 0
	for range 20 {
		if err := <-results; err == nil {
			won++
		} else {
			wantKind(t, "a second start", err, fault.Conflict)
		}
	}
	if won != 1 {
		t.Errorf("%d agents got the order", won)
	}
}

// TestNotTheMember: after the join, only the one that joined is heard.
func TestNotTheMember(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	h := w.start(w.spec(1, "true"))
	w.check(w.tell(h, "join", nil, joining(0, start0), nil))
	for what, q := range map[string]url.Values{"another start": as(0, start1), "no start": as(0, "")} {
		wantKind(t, what+": beat", w.tell(h, "beat", q, protocol.Beat{}, nil), fault.Conflict)
		wantKind(t, what+": end", w.tell(h, "end", q, protocol.End{Reason: "exited"}, nil), fault.Conflict)
		wantKind(t, what+": mount", w.say("GET", h, "mounts/0", q, nil, nil), fault.Conflict)
		wantKind(t, what+": manifest", w.tell(h, "mounts/1/manifest", q, protocol.Manifest{}, nil), fault.Conflict)
		wantKind(t, what+": tree", w.say("PUT", h, "mounts/1/tree", q, nil, nil), fault.Conflict)
		q.Set("offset", "0")
		wantKind(t, what+": log", w.say("POST", h, "log", q, []byte("x"), nil), fault.Conflict)
	}
	wantKind(t, "another index", w.tell(h, "beat", as(1, start0), protocol.Beat{}, nil), fault.Invalid)
	wantKind(t, "no index", w.tell(h, "beat", url.Values{}, protocol.Beat{}, nil), fault.Invalid)
	wantKind(t, "an end that is none", w.tell(h, "end", as(0, start0), protocol.End{Reason: "lost"}, nil), fault.Invalid)
	wantKind(t, "a path that is none", w.say("GET", h, "secrets", as(0, start0), nil, nil), fault.NotFound)
	wantKind(t, "a mount that is none", w.say("GET", h, "mounts/99", as(0, start0), nil, nil), fault.NotFound)
	wantKind(t, "the output", w.say("GET", h, "mounts/1", as(0, start0), nil, nil), fault.Invalid)
	wantKind(t, "scratch", w.say("GET", h, "mounts/3", as(0, start0), nil, nil), fault.Invalid)
	w.check(w.tell(h, "end", as(0, start0), protocol.End{Reason: "exited"}, nil))
	w.ok(w.wait(h))
	w.check(w.tell(h, "end", as(0, start0), protocol.End{Reason: "exited", ExitCode: 3}, nil)) // no change
	w.ok(w.wait(h))
	wantKind(t, "a tree after the end", w.tell(h, "mounts/1/manifest", as(0, start0), protocol.Manifest{}, nil), fault.Gone)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func file(path, content string) protocol.File {
	return protocol.File{Path: path, Size: int64(len(content)), Mode: 0o644, SHA256: digest(content)}
}

// tarOf makes a stream of headers and contents.
func tarOf(t *testing.T, zip bool, files ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	var to io.Writer = &b
	z := gzip.NewWriter(&b)
	if zip {
		to = z
	}
	x := tar.NewWriter(to)
	for i := 0; i < len(files); i += 2 {
		h, content := files[i].(*tar.Header), files[i+1].(string)
		h.Size = int64(len(content))
		if err := errors.Join(x.WriteHeader(h), errOf(io.WriteString(x, content))); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if zip {
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func errOf(_ int, err error) error { return err }

// TestTreesRefused: nothing that is sent leaves its place, is more than was
// said, or counts before it is whole.
func TestTreesRefused(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, func(c *remote.Config) { c.MaxTree = 1 << 20 })
	s := w.spec(1, "true")
	h := w.start(s)
	w.check(w.tell(h, "join", nil, joining(0, start0), nil))
	me := as(0, start0)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "x.tmp", ".hidden", "x.partial", "a\x00b", strings.Repeat("n", 300)} {
		wantKind(t, "checkpoint "+name, w.tell(h, "mounts/2/manifest", me, protocol.Manifest{Name: name}, nil), fault.Invalid)
	}
	wantKind(t, "a name for output", w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Name: "x"}, nil), fault.Invalid)
	wantKind(t, "the working directory", w.tell(h, "mounts/0/manifest", me, protocol.Manifest{Name: "x"}, nil), fault.Invalid)
	for _, path := range []string{"", ".", "..", "../x", "/etc/passwd", "a/../b", "a//b", "a/", "a\x00b"} {
		wantKind(t, "file "+path, w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Files: []protocol.File{file(path, "x")}}, nil), fault.Invalid)
	}
	wantKind(t, "a file twice", w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Files: []protocol.File{file("a", "x"), file("a", "y")}}, nil), fault.Invalid)
	wantKind(t, "a negative size", w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Files: []protocol.File{{Path: "a", Size: -1, SHA256: digest("")}}}, nil), fault.TooLarge)
	wantKind(t, "too much", w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Files: []protocol.File{{Path: "a", Size: 2 << 20, SHA256: digest("")}}}, nil), fault.TooLarge)
	wantKind(t, "no digest", w.tell(h, "mounts/1/manifest", me, protocol.Manifest{Files: []protocol.File{{Path: "a", Size: 1, SHA256: "x"}}}, nil), fault.Invalid)

	var needed protocol.Needed
	m := protocol.Manifest{Name: "step", Files: []protocol.File{file("a", "aaa"), file("d/b", "bbb")}}
	w.check(w.tell(h, "mounts/2/manifest", me, m, &needed))
	q := as(0, start0)
	q.Set("name", "step")
	q.Set("manifest", needed.Manifest)
	for what, body := range map[string][]byte{
		"no tar": []byte("hello"), "half a stream": tarOf(t, false, &tar.Header{Name: "a", Typeflag: tar.TypeReg}, "aaa")[:513],
		"one file only":        tarOf(t, false, &tar.Header{Name: "a", Typeflag: tar.TypeReg}, "aaa"),
		"a file of its own":    tarOf(t, true, &tar.Header{Name: "c", Typeflag: tar.TypeReg}, "ccc"),
		"a path that leaves":   tarOf(t, false, &tar.Header{Name: "../a", Typeflag: tar.TypeReg}, "aaa"),
		"a link":               tarOf(t, false, &tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ""),
		"another size":         tarOf(t, true, &tar.Header{Name: "a", Typeflag: tar.TypeReg}, "aaaa"),
		"gzip that is not all": tarOf(t, true, &tar.Header{Name: "a", Typeflag: tar.TypeReg}, "aaa")[:30],
	} {
		if err := w.say("PUT", h, "mounts/2/tree", q, body, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	bad := tarOf(t, false, &tar.Header{Name: "d/b", Typeflag: tar.TypeReg}, "bbX")
	wantKind(t, "another content", w.say("PUT", h, "mounts/2/tree", q, bad, nil), fault.Conflict)
	other := as(0, start0)
	other.Set("name", "step")
	other.Set("manifest", "x")
	wantKind(t, "another manifest", w.say("PUT", h, "mounts/2/tree", other, nil, nil), fault.Conflict)
	final := filepath.Join(s.Mounts[2].Path, "step")
	if _, err := os.Stat(final); err == nil {
		t.Error("a checkpoint is there that was never whole")
	}
	// What came whole is not asked for again.
	w.check(w.tell(h, "mounts/2/manifest", me, m, &needed))
	if len(needed.Files) != 1 || needed.Files[0] != 1 {
		t.Errorf("needed: %+v", needed)
	}
	w.check(w.say("PUT", h, "mounts/2/tree", q, tarOf(t, true, &tar.Header{Name: "d/b", Typeflag: tar.TypeReg}, "bbb"), nil))
	if got := w.files(final); got["a"] != "aaa" || got["d/b"] != "bbb" || len(got) != 2 {
		t.Errorf("%q", got)
	}
	w.check(w.tell(h, "mounts/2/manifest", me, m, &needed))
	if !needed.Have {
		t.Errorf("needed after all: %+v", needed)
	}
	// The same name with another content replaces it.
	m.Files = []protocol.File{file("a", "new")}
	w.check(w.tell(h, "mounts/2/manifest", me, m, &needed))
	q.Set("manifest", needed.Manifest)
	w.check(w.say("PUT", h, "mounts/2/tree", q, tarOf(t, false, &tar.Header{Name: "a", Typeflag: tar.TypeReg}, "new"), nil))
	if got := w.files(s.Mounts[2].Path); got["step/a"] != "new" || len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// TestLogOffsets: pieces come twice, late and with gaps, and the log is right.
func TestLogOffsets(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	h := w.start(w.spec(1, "true"))
	w.check(w.tell(h, "join", nil, joining(0, start0), nil))
	for _, c := range []struct {
		offset int64
		text   string
		want   int64
	}{{0, "abc", 3}, {0, "abc", 3}, {5, "fg", 3}, {1, "bcde", 5}, {5, "", 5}, {5, "f", 6}, {100, "x", 6}} {
		q := as(0, start0)
		q.Set("offset", strconv.FormatInt(c.offset, 10))
		var r protocol.Reached
		w.check(w.say("POST", h, "log", q, []byte(c.text), &r))
		if r.Offset != c.want {
			t.Errorf("%+v reached %d", c, r.Offset)
		}
	}
	if got := w.logs(h); got != "abcdef" {
		t.Errorf("log %q", got)
	}
	q := as(0, start0)
	for offset, kind := range map[string]fault.Kind{"-1": fault.Invalid, "x": fault.Invalid, "": fault.Invalid} {
		q.Set("offset", offset)
		wantKind(t, "offset "+offset, w.say("POST", h, "log", q, []byte("x"), nil), kind)
	}
	q.Set("offset", "6")
	wantKind(t, "a piece that is too long", w.say("POST", h, "log", q, make([]byte, 5<<20), nil), fault.TooLarge)
}

// TestEngineSays: where no agent reports, the engine's words count.
func TestEngineSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		said  remote.Observed
		join  bool
		state engine.State
		want  engine.Reason
		words string
		stops bool // the engine is told to stop it: it may yet begin there
	}{
		{remote.Observed{Reason: engine.NotStarted, Message: "no such image"}, false, engine.Ended, engine.NotStarted, "no such image", true},
		{remote.Observed{Reason: engine.Preempted, Message: "somebody else"}, true, engine.Ended, engine.Preempted, "somebody else", false},
		{remote.Observed{Reason: engine.NodeFailed, Message: "node down"}, true, engine.Lost, engine.NodeFailed, "node down", false},
		{remote.Observed{State: engine.Lost, Reason: engine.NodeFailed, Message: "node down"}, true, engine.Lost, engine.NodeFailed, "node down", true},
		{remote.Observed{Reason: engine.OutOfMemory}, true, engine.Ended, engine.OutOfMemory, "", false},
		{remote.Observed{Reason: engine.Stopped, Message: "cancelled by root"}, true, engine.Ended, engine.Stopped, "cancelled by root", false},
		{remote.Observed{Reason: engine.Exited}, true, engine.Lost, "", "without a report", false},
		{remote.Observed{Reason: engine.Signalled, Message: "killed"}, true, engine.Lost, "", "killed", false},
		{remote.Observed{Reason: engine.Signalled, Message: "killed"}, false, engine.Lost, "", "killed", false},
		{remote.Observed{Reason: engine.Exited}, false, engine.Ended, engine.NotStarted, "before its worker", false},
	} {
		w, l := hub(t, nil)
		h := w.start(w.spec(1, "true"))
		if c.join {
			w.check(w.tell(h, "join", nil, joining(0, start0), nil))
		}
		l.end(string(h), c.said)
		st := w.wait(h)
		if st.State != c.state || st.Reason != c.want || !strings.Contains(st.Message, c.words) {
			t.Errorf("%+v: %+v", c.said, st)
		}
		l.mu.Lock()
		if slices.Contains(l.ends, string(h)) != c.stops {
			t.Errorf("%+v: the engine was told to stop %v", c.said, l.ends)
		}
		l.mu.Unlock()
	}
}

// TestCancelledOnTheEngine: what somebody cancels there was not killed by a
// signal of its own, also when its program got the signal before its agent.
func TestCancelledOnTheEngine(t *testing.T) {
	t.Parallel()
	for _, end := range []protocol.End{{Reason: string(engine.Signalled), Signal: "SIGTERM", ExitCode: -1}, {Reason: string(engine.Stopped), ExitCode: -1}} {
		w, l := hub(t, func(c *remote.Config) { c.Settle = 5 * time.Second })
		h := w.start(w.spec(1, "true"))
		w.check(w.tell(h, "join", nil, joining(0, start0), nil))
		w.check(w.tell(h, "end", as(0, start0), end, nil))
		l.end(string(h), remote.Observed{Reason: engine.Stopped, Message: "cancelled by root"})
		if st := w.wait(h); st.State != engine.Ended || st.Reason != engine.Stopped || st.Message != "cancelled by root" {
			t.Errorf("%+v: %+v", end, st)
		}
	}
}

// TestAgentsWin: an engine that has lost sight of a launch does not end it while
// its agent reports.
func TestAgentsWin(t *testing.T) {
	t.Parallel()
	for _, said := range []remote.Observed{{State: engine.Lost}, {State: engine.Lost, Reason: engine.NodeFailed, Message: "it does not answer"}} {
		w, l := hub(t, nil)
		h := w.start(w.spec(1, "true"))
		w.check(w.tell(h, "join", nil, joining(0, start0), nil))
		l.end(string(h), said)
		for range 30 { // well beyond the time to settle
			w.check(w.tell(h, "beat", as(0, start0), protocol.Beat{Phase: protocol.Running, Wait: 50 * time.Millisecond}, nil))
		}
		w.check(w.tell(h, "end", as(0, start0), protocol.End{Reason: "exited"}, nil))
		w.ok(w.wait(h))
	}
}

// TestStartRefused: what the engine refuses for good leaves nothing; what it may
// take later is found again.
func TestStartRefused(t *testing.T) {
	t.Parallel()
	w, l := hub(t, nil)
	s := w.spec(1, "true")
	l.fail = fault.New(fault.Unavailable, "away")
	_, err := w.d.Start(w.ctx, s)
	wantKind(t, "away", err, fault.Unavailable)
	w.close()
	w.open()
	l.mu.Lock()
	l.fail = nil
	l.mu.Unlock()
	h := w.start(s)
	w.check(w.d.Stop(w.ctx, h, 0))
	l.mu.Lock()
	l.fail = fault.New(fault.Invalid, "no such partition")
	l.mu.Unlock()
	s.ID += "x"
	_, err = w.d.Start(w.ctx, s)
	wantKind(t, "refused", err, fault.Invalid)
	if _, err := os.Stat(filepath.Join(w.c.Dir, s.ID)); err == nil {
		t.Error("it left a directory")
	}
	s.Isolation = "container"
	_, err = w.d.Start(w.ctx, s)
	wantKind(t, "isolation", err, fault.Unsupported)
}

// TestGather: a gang that does not come together ends, and says so.
func TestGather(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, func(c *remote.Config) { c.Gather = 300 * time.Millisecond })
	h := w.start(w.spec(2, "true"))
	joined := make(chan error, 1)
	go func() { joined <- w.tell(h, "join", nil, joining(0, start0), nil) }()
	st := w.wait(h)
	if st.Reason != engine.NotStarted || !strings.Contains(st.Message, "only 1 of 2 workers") {
		t.Errorf("%+v", st)
	}
	wantKind(t, "joining", <-joined, fault.Gone)
}

// TestEngineExplains: of members that the engine stopped, its reason counts; of
// one that failed by itself, its own.
func TestEngineExplains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end    protocol.End
		silent bool // the other member
		state  engine.State
		want   engine.Reason
		words  string
	}{
		{protocol.End{Reason: "stopped", ExitCode: -1, Message: "its engine sent SIGTERM"}, true, engine.Lost, engine.NodeFailed, "n2 is down"},
		{protocol.End{Reason: "stopped", ExitCode: -1, Message: "its engine sent SIGTERM"}, false, engine.Lost, engine.NodeFailed, "n2 is down"},
		{protocol.End{Reason: "exited", ExitCode: 3}, true, engine.Ended, engine.Exited, "worker 0 on n: exit code 3"},
		{protocol.End{Reason: "exited", ExitCode: 3}, false, engine.Ended, engine.Exited, "worker 0 on n: exit code 3"},
	} {
		// What the members say after the engine counts within a fifth of Settle.
		w, l := hub(t, func(c *remote.Config) { c.Settle = 10 * time.Second })
		h := w.start(w.spec(2, "true"))
		joined := make(chan error, 1)
		go func() { joined <- w.tell(h, "join", nil, joining(1, start1), nil) }()
		w.check(w.tell(h, "join", nil, joining(0, start0), nil))
		w.check(<-joined)
		l.end(string(h), remote.Observed{Reason: engine.NodeFailed, Message: "n2 is down"})
		w.check(w.tell(h, "end", as(0, start0), c.end, nil))
		if !c.silent {
			w.check(w.tell(h, "end", as(1, start1), protocol.End{Reason: "stopped", ExitCode: -1}, nil))
		}
		st := w.wait(h)
		if st.State != c.state || st.Reason != c.want || !strings.Contains(st.Message, c.words) {
			t.Errorf("%+v, silent %v: %+v", c.end, c.silent, st)
		}
	}
}

// TestOldAgentsTakeNoSecrets: an agent of the previous release would start the program
// without its secrets. It is refused, and the workload says why.
func TestOldAgentsTakeNoSecrets(t *testing.T) {
	t.Parallel()
	w, _ := hub(t, nil)
	spec := w.spec(2, "true")
	spec.Secrets = true
	h := w.start(spec)
	j := joining(1, start1)
	j.Version = protocol.Secrets - 1
	err := w.tell(h, "join", nil, j, nil)
	wantKind(t, "an old agent", err, fault.Unsupported)
	if !strings.Contains(err.Error(), "the agent speaks protocol 3 and secrets need 4") {
		t.Error(err)
	}
	st, err := w.d.Wait(w.ctx, h)
	w.check(err)
	if st.State != engine.Ended || st.Reason != engine.NotStarted || !strings.Contains(st.Message, "worker 1 on n: the agent speaks protocol 3 and secrets need 4") || !strings.Contains(st.Message, "falaj-worker") {
		t.Errorf("%+v", st)
	}

	// One that comes when all are there changes nothing.
	spec.ID = id.New("att")
	h = w.start(spec)
	w.gang(h, start0, start1)
	j.Start = "2222-another-start"
	wantKind(t, "a late one", w.tell(h, "join", nil, j, nil), fault.Unsupported)
	if st, err := w.d.Status(w.ctx, h); err != nil || st.State != engine.Running {
		t.Errorf("%+v, %v", st, err)
	}
}
