package mirror_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/gateway/mirror"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

// world is a mirror between a server that is made up and what answers here.
type world struct {
	*mirror.Mirror
	t      *testing.T
	wanted gateway.Wanted
	status int    // of the answers, when it is not 200
	file   []byte // of each version; its text is signed
	gone   bool   // the deployment, for hand-overs
	taken  []gateway.Batch
	broken map[int64]bool // versions that do not load
	held   []string       // what was adopted last, by name
	now    time.Time
	files  int   // requests for files
	cuts   []int // bytes after which each of them breaks off
	froms  []string
	whole  bool // no ranges are given
}

// serveFile gives the file, or a part of it that breaks off.
func (w *world) serveFile(rw http.ResponseWriter, r *http.Request) {
	from := 0
	if text := r.Header.Get("Range"); text != "" && !w.whole {
		_, _ = fmt.Sscanf(text, "bytes=%d-", &from)
		rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(w.file)-1, len(w.file)))
	}
	w.froms = append(w.froms, r.Header.Get("Range"))
	rest := w.file[from:]
	rw.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	if from > 0 {
		rw.WriteHeader(http.StatusPartialContent)
	}
	if len(w.cuts) > 0 {
		rest, w.cuts = rest[:w.cuts[0]], w.cuts[1:]
		_, _ = rw.Write(rest)
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = rw.Write(rest)
}

const file = "an ONNX file"

var began = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if w.status != 0 {
		rw.WriteHeader(w.status)
		_, _ = io.WriteString(rw, `{"kind":"gone","detail":"no"}`)
		return
	}
	switch at := r.URL.Path; {
	case strings.HasSuffix(at, "/sync"):
		_ = json.NewEncoder(rw).Encode(w.wanted)
	case strings.Contains(at, "/files/"):
		w.files++
		w.serveFile(rw, r)
	case strings.HasSuffix(at, "/hand-over") && w.gone:
		rw.WriteHeader(http.StatusGone)
		_, _ = io.WriteString(rw, `{"kind":"gone","detail":"the deployment was deleted"}`)
	case strings.HasSuffix(at, "/hand-over"):
		b, _ := io.ReadAll(r.Body)
		q := r.URL.Query()
		w.taken = append(w.taken, gateway.Batch{Instance: q.Get("instance"), From: q.Get("from"), To: q.Get("to"), Records: b})
		_, _ = fmt.Fprintf(rw, `{"position":%q}`, q.Get("to"))
	}
}

// Adopt loads nothing, and fails for what is broken.
func (w *world) Adopt(ctx context.Context, d serving.Deployment, commit func(context.Context) error) error {
	if w.broken[d.Version] {
		return fault.New(fault.Exhausted, "it does not load")
	}
	w.held = append(w.held, fmt.Sprintf("%s@%d", d.Name, d.Version))
	return commit(ctx)
}
func (w *world) Refresh(context.Context, string, string) error { return nil }
func (w *world) One(ctx context.Context, p, name string) (d serving.Deployment, err error) {
	err = w.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		d, err = w.Deployments.One(ctx, tx, p, name)
		return err
	})
	return d, err
}

type ring struct{}

func (ring) DataKey(context.Context, string, string, string) ([]byte, error) {
	return make([]byte, 32), nil
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, file: []byte(file), broken: map[int64]bool{}, now: time.Now()}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := prediction.Open(prediction.Config{Dir: t.TempDir(), Keys: ring{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	blobs, _, _ := trackingtest.NewArtifacts(t)
	w.Mirror = mirror.New(mirror.Config{
		DB: storetest.SQLite(t, servingsql.Migrations, gatewaysql.Migrations), Store: gatewaysql.Mirror{}, Deployments: servingsql.Store{}, Blobs: blobs, Log: log, Loader: w, States: w,
		Upstream: mirror.Server{URL: server.URL, TokenFile: token, Project: "nyc", Name: "edge"}, Zone: "home", Alone: 24 * time.Hour,
		Project: func(context.Context, gateway.Wanted) error { return nil }, Now: func() time.Time { return w.now },
		Verify: func(bundle []byte, key string) (registry.Signed, error) {
			var v gateway.Version
			if json.Unmarshal(bundle, &v) != nil || key != "key" {
				return registry.Signed{}, fault.New(fault.Conflict, "no signature")
			}
			return registry.Signed{Project: "nyc", Model: v.Model, Number: int(v.Number), Digest: v.Digest, Files: []registry.File{{Path: gateway.ModelFile, Digest: digestOf(file)}}}, nil
		},
	})
	t.Cleanup(func() { _ = w.Close() })
	w.wanted = gateway.Wanted{Project: "nyc", PublicKey: "key"}
	return w
}

// wants has the server say that a deployment is of a version, at a revision.
func (w *world) wants(name string, version, revision int64, run *serving.Rollout, trials ...serving.Trial) {
	d := serving.Deployment{ID: serving.ID("dep_" + name), Project: "nyc", Name: name, Model: "m", Version: version, Digest: fmt.Sprint("sha256:", version), Spec: serving.Spec{Model: "m"}, Revision: revision, CreatedAt: began, UpdatedAt: began}
	s := gateway.Served{Deployment: d, Trials: trials, Rollout: run}
	for _, n := range append([]int64{version}, numbers(trials)...) {
		v := gateway.Version{Model: "m", Number: n, Digest: fmt.Sprint("sha256:", n)}
		v.Bundle, _ = json.Marshal(v)
		s.Versions = append(s.Versions, v)
	}
	w.wanted.Deployments = append(slices.DeleteFunc(w.wanted.Deployments, func(o gateway.Served) bool { return o.Deployment.Name == name }), s)
}

func numbers(trials []serving.Trial) (out []int64) {
	for _, t := range trials {
		out = append(out, t.Version)
	}
	return out
}

// here is what the gateway serves.
func (w *world) here() string {
	w.t.Helper()
	var all []serving.Deployment
	var have []gateway.Version
	if err := w.DB.View(w.t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		if all, err = w.Deployments.All(ctx, tx); err == nil {
			have, err = w.Store.Versions(ctx, tx, "nyc")
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, d := range all {
		out = append(out, fmt.Sprintf("%s@%d", d.Name, d.Version))
	}
	out = append(out, "|")
	for _, v := range have {
		out = append(out, strconv.FormatInt(v.Number, 10))
	}
	return strings.Join(out, " ")
}

func (w *world) is(want string) {
	w.t.Helper()
	if got := w.here(); got != want {
		w.t.Errorf("here is %q, want %q", got, want)
	}
}

func (w *world) round(want fault.Kind, ok bool) {
	w.t.Helper()
	err := w.RunOnce(w.t.Context())
	if ok && err != nil || !ok && !fault.Is(err, want) {
		w.t.Errorf("a round ends with %v", err)
	}
}

func TestFollows(t *testing.T) {
	w := start(t)
	w.wants("a", 1, 1, nil)
	w.wants("b", 2, 1, nil)
	w.round(0, true)
	w.is("a@1 b@2 | 1 2")

	// What does not load, or is not what was signed, leaves what there was, with its file.
	w.broken[3] = true
	w.wants("a", 3, 2, nil)
	w.round(fault.Exhausted, false)
	w.is("a@1 b@2 | 1 2 3")
	w.broken[3], w.file = false, []byte("something else")
	w.wants("b", 4, 2, nil)
	w.round(fault.Invalid, false)
	w.is("a@3 b@2 | 2 3")
	w.file = []byte(file)
	w.round(0, true)
	w.is("a@3 b@4 | 3 4")

	// A server that was restored says another thing at a revision that is known.
	w.wants("a", 5, 2, nil)
	w.round(0, true)
	w.is("a@5 b@4 | 4 5")

	// An answer that lacks a version, another key, another project: nothing changes.
	w.wants("a", 6, 3, nil)
	w.wanted.Deployments[1].Versions = nil
	w.round(fault.Conflict, false)
	w.wanted.PublicKey = "another"
	w.round(fault.Conflict, false)
	w.wanted.PublicKey, w.wanted.Project = "key", "other"
	w.round(fault.Conflict, false)
	w.wanted.Project = "nyc"
	w.is("a@5 b@4 | 4 5")

	// Another model's version, with its own good signature, does not pass for this model's.
	w.wants("a", 7, 4, nil)
	served := &w.wanted.Deployments[len(w.wanted.Deployments)-1].Versions[0]
	served.Bundle, _ = json.Marshal(gateway.Version{Model: "other", Number: 7, Digest: served.Digest})
	w.round(fault.Conflict, false)
	w.is("a@5 b@4 | 4 5")

	// While the server is away it goes on, for as long as it may be alone.
	w.status = http.StatusBadGateway
	w.now = w.now.Add(23 * time.Hour)
	w.round(fault.Unavailable, false)
	w.is("a@5 b@4 | 4 5")
	w.now = w.now.Add(2 * time.Hour)
	w.round(fault.Unavailable, false)
	w.is("|")
	w.status = 0
	w.wants("a", 5, 5, nil)
	w.round(0, true)
	w.is("a@5 b@4 | 4 5")

	// Without the deployment it is not served; without the gateway nothing is.
	w.wanted.Deployments = w.wanted.Deployments[:1]
	w.round(0, true)
	w.is("b@4 | 4")
	w.status = http.StatusGone
	w.round(fault.Gone, false)
	w.is("|")
}

// TestRollouts: the rollout that runs is that of the server, whatever ran here before.
func TestRollouts(t *testing.T) {
	w := start(t)
	run := func(id string, weight int) *serving.Rollout {
		return &serving.Rollout{ID: serving.RolloutID(id), Project: "nyc", Deployment: "a", Model: "m", Stable: 1, Candidate: 2, Weight: weight, State: serving.Running, Started: time.Now()}
	}
	canary := serving.Trial{Role: serving.Canary, Version: 2, Digest: "sha256:2", Weight: 10}
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	used := func(more int64) (all []serving.Usage) {
		t.Helper()
		if err := w.DB.Update(t.Context(), "nyc", func(ctx context.Context, tx *store.Tx) (err error) {
			all, err = w.Deployments.AddUsage(ctx, tx, "dep_a", day, day.AddDate(0, 0, 1), []serving.Usage{{Caller: "tok_1", Requests: more}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	for i, r := range []*serving.Rollout{run("rol_2", 10), run("rol_2", 50), run("rol_1", 20), run("rol_3", 30), nil} { // rol_1: the server was restored
		var trials []serving.Trial
		if r != nil {
			trials = append(trials, canary)
		}
		w.wants("a", 1, 1, r, trials...)
		w.round(0, true)
		var last []serving.Rollout
		if err := w.DB.View(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
			last, err = w.Deployments.Rollouts(ctx, tx, "nyc", "a", 10)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if r == nil && len(last) != 0 || r != nil && (len(last) != 1 || last[0].ID != r.ID || last[0].Weight != r.Weight) {
			t.Errorf("step %d: %+v", i, last)
		}
		if all := used(1); len(all) != 1 || all[0].Requests != int64(i+1) {
			t.Errorf("step %d: of the quota %+v was used", i, all)
		}
		n := len(w.held)
		w.round(0, true)
		if len(w.held) != n {
			t.Errorf("step %d: adopted again without a change", i)
		}
	}
}

func TestHandOver(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	w.wants("a", 1, 1, nil)
	w.round(0, true)
	say := func(from, to int) {
		t.Helper()
		for n := from; n < to; n++ {
			at := w.now.Add(time.Duration(n) * time.Second)
			if err := w.Log.Append(ctx, &prediction.Record{ID: fmt.Sprint("prd_", n), Project: "nyc", Deployment: "a", Owner: prediction.OwnerOf("dep_a"), Model: "m", At: at, Received: at}); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func() (n int) {
		for _, b := range w.taken {
			all, err := prediction.DecodeRecords(b.Records)
			if err != nil {
				t.Fatal(err)
			}
			n += len(all)
		}
		return n
	}
	left := func() (n int) {
		if err := w.Log.Read(ctx, "nyc", "a", prediction.Cursor{}, func(prediction.Cursor, *prediction.Record) error {
			n++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}

	// They wait while the server, or the gateway's own object there, is away.
	say(0, 5)
	for _, status := range []int{http.StatusBadGateway, http.StatusNotFound, http.StatusForbidden} {
		w.status = status
		if err := w.HandOver(ctx); err == nil {
			t.Errorf("%d: handed over to nobody", status)
		}
	}
	w.status = 0
	if n := left(); n != 5 {
		t.Fatalf("%d wait", n)
	}
	if err := w.HandOver(ctx); err != nil || count() != 5 || left() != 0 {
		t.Fatalf("%d were handed over, %d are left: %v", count(), left(), err)
	}
	if err := w.HandOver(ctx); err != nil || count() != 5 {
		t.Errorf("%d were handed over, %v", count(), err)
	}
	say(5, 8)
	if err := w.HandOver(ctx); err != nil || count() != 8 {
		t.Errorf("%d were handed over, %v", count(), err)
	}
	if a, b := w.taken[0], w.taken[1]; a.Instance != b.Instance || a.Instance == "" || b.From != a.To {
		t.Errorf("%+v after %+v", b, a)
	}
	// Of a deployment that was deleted nobody wants them.
	say(8, 10)
	w.gone = true
	if err := w.HandOver(ctx); err != nil || left() != 0 || count() != 8 {
		t.Errorf("%d were handed over, %d are left: %v", count(), left(), err)
	}
}

// TestOwn: a directory that another server has used is no gateway's.
func TestOwn(t *testing.T) {
	w := start(t)
	ctx := t.Context()
	if err := mirror.Own(ctx, w.DB, w.Store, w.Deployments); err != nil {
		t.Error(err)
	}
	if err := w.DB.Update(ctx, "nyc", func(ctx context.Context, tx *store.Tx) error {
		return w.Deployments.Put(ctx, tx, serving.Deployment{ID: "dep_x", Project: "nyc", Name: "x"})
	}); err != nil {
		t.Fatal(err)
	}
	if err := mirror.Own(ctx, w.DB, w.Store, w.Deployments); !fault.Is(err, fault.Conflict) {
		t.Error(err)
	}
}

// TestResumes: a file whose connection breaks off is gone on with, and not begun again; it
// is what was signed, or not taken.
func TestResumes(t *testing.T) {
	for _, c := range []struct {
		whole bool
		froms []string
	}{{false, []string{"", "bytes=4-", "bytes=7-", "bytes=7-"}}, {true, []string{"", "bytes=4-", "bytes=4-", "bytes=4-"}}} {
		w := start(t)
		w.whole = c.whole
		if w.cuts = []int{4, 3, 0}; c.whole { // of which nothing new comes
			w.cuts = []int{4, 3, 4}
		}
		w.wants("a", 1, 1, nil)
		w.round(0, true)
		w.is("a@1 | 1")
		if !slices.Equal(w.froms, c.froms) {
			t.Errorf("it was asked for %q, want %q", w.froms, c.froms)
		}
	}
	w := start(t)
	w.cuts, w.file = []int{4}, []byte("an ONNX filE")
	w.wants("a", 1, 1, nil)
	w.round(fault.Invalid, false)
	w.is("|")
}
