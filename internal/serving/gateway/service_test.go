package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/serving/rollout"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
)

const proj = "flights"

// world is what a service of gateways asks.
type world struct {
	gateway.Config
	log     *prediction.Log
	fails   func() bool // whether appending a record fails now
	erased  []gateway.Erased
	refused []residency.Transfer
	denied  policy.Action
	closed  string // the gateway that nobody may read
	busy    bool
}

type ring struct{}

func (ring) DataKey(context.Context, string, string, string) ([]byte, error) {
	return bytes.Repeat([]byte{7}, 32), nil
}

func (w *world) Allow(_ context.Context, a policy.Action, o policy.Object) error {
	if a == w.denied || w.closed != "" && o.Name == w.closed {
		return fault.New(fault.PermissionDenied, "no")
	}
	return nil
}

func (w *world) Pass(_ context.Context, p residency.Transfer) error {
	err := residency.Check(p.What, p.Label, p.Where, p.Zone)
	if err != nil {
		w.refused = append(w.refused, p)
	}
	return err
}

func (w *world) Known(_ context.Context, _ *store.Tx, l residency.Label) error {
	if l.Allows("atlantis") {
		return fault.New(fault.Invalid, "zone atlantis does not exist")
	}
	return nil
}

func (w *world) Signed(_ context.Context, _, model string, version int64) ([]byte, error) {
	switch {
	case version == 9:
		return nil, fault.New(fault.NotFound, "version 9 was deleted")
	case w.busy:
		return nil, fault.New(fault.Unavailable, "the database is busy")
	}
	return fmt.Appendf(nil, "%q", fmt.Sprintf("%s@%d", model, version)), nil
}

func (w *world) Open(_ context.Context, _, model string, version int64, file string) (io.ReadCloser, int64, error) {
	text := fmt.Sprintf("%s@%d/%s", model, version, file)
	return io.NopCloser(strings.NewReader(text)), int64(len(text)), nil
}

func (*world) MayPull(context.Context, string, string, int64) error { return nil }

func (w *world) PublicKey(context.Context, string) (string, error) { return "a key", nil }

// Append may fail, as a full disk does.
func (w *world) Append(ctx context.Context, r *prediction.Record) error {
	if w.fails != nil && w.fails() {
		return errors.New("the disk is full")
	}
	return w.log.Append(ctx, r)
}

func (w *world) Sync(ctx context.Context, p, d string) error { return w.log.Sync(ctx, p, d) }
func (w *world) End(ctx context.Context, p, d string) (prediction.Cursor, error) {
	return w.log.End(ctx, p, d)
}

func (w *world) Erase(ctx context.Context, p prediction.Person, done func(string, int64) error) error {
	return w.log.Erase(ctx, p, done)
}

func (w *world) Read(ctx context.Context, p, d string, after prediction.Cursor, visit func(prediction.Cursor, *prediction.Record) error) error {
	return w.log.Read(ctx, p, d, after, visit)
}

func open(t *testing.T, database storetest.Open) *world {
	t.Helper()
	w := &world{}
	w.reopen(t, t.TempDir())
	w.Config = gateway.Config{
		DB: database(t, servingsql.Migrations, gatewaysql.Migrations), Store: gatewaysql.Store{}, Deployments: servingsql.Store{}, Authz: w, Guard: w, Zones: w, Models: w, Log: w,
		Project: func(context.Context, string) (residency.Label, string, error) { return nil, "internal", nil },
		Erased:  func(context.Context, string) ([]gateway.Erased, error) { return w.erased, nil },
	}
	return w
}

func (w *world) reopen(tb testing.TB, dir string) {
	tb.Helper()
	var err error
	if w.log, err = prediction.Open(prediction.Config{Dir: dir, Keys: ring{}, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		tb.Fatal(err)
	}
	log := w.log
	tb.Cleanup(func() { _ = log.Close() })
}

func (w *world) put(tb testing.TB, d serving.Deployment, runs ...serving.Rollout) {
	tb.Helper()
	d.Project, d.ID = proj, serving.ID("dep_"+d.Name)
	if err := w.DB.Update(tb.Context(), proj, func(ctx context.Context, tx *store.Tx) error {
		for _, r := range runs {
			r.Project, r.Deployment = proj, d.Name
			if err := w.Deployments.PutRollout(ctx, tx, r); err != nil {
				return err
			}
		}
		return w.Deployments.Put(ctx, tx, d)
	}); err != nil {
		tb.Fatal(err)
	}
}

func delay() serving.Deployment {
	return serving.Deployment{Name: "delay", Model: "m", Version: 1, Digest: "sha256:a", Spec: serving.Spec{Model: "m"}, Revision: 1}
}

func TestLifeOfAGateway(t *testing.T) {
	for name, database := range map[string]storetest.Open{"SQLite": storetest.SQLite, "PostgreSQL": storetest.PostgreSQL} {
		t.Run(name, func(t *testing.T) { life(t, database) })
	}
}

func life(t *testing.T, database storetest.Open) {
	t.Helper()
	ctx, w := t.Context(), open(t, database)
	s := gateway.New(w.Config)
	if _, _, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "atlantis"}, false); !fault.Is(err, fault.Invalid) {
		t.Errorf("a zone that is not there: %v", err)
	}
	if _, change, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "AE"}, true); err != nil || change != project.Created {
		t.Error(change, err)
	}
	if _, err := s.Sync(ctx, proj, "edge", gateway.Report{Zone: "AE"}); !fault.Is(err, fault.Gone) {
		t.Errorf("a gateway that was never made: %v", err)
	}
	if g, change, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "AE"}, false); err != nil || change != project.Created || g.Revision != 1 {
		t.Fatal(g, change, err)
	}
	if _, change, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "AE"}, false); err != nil || change != project.Unchanged {
		t.Error(change, err)
	}
	if _, _, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "DE"}, false); !fault.Is(err, fault.Conflict) {
		t.Errorf("a gateway moves: %v", err)
	}
	if _, err := s.Sync(ctx, proj, "edge", gateway.Report{Zone: "DE"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a gateway that says it is elsewhere: %v", err)
	}

	both := residency.Of("AE", "home")
	d := delay()
	d.Residency = both
	d.Steps = []serving.StepModel{{Step: "before[0]", Model: "scaler", Version: 4, Digest: "sha256:s", Residency: both}}
	d.Trials = []serving.Trial{{Role: serving.Canary, Version: 2, Digest: "sha256:b", Residency: both, Weight: 10}, {Role: serving.Shadow, Version: 3, Digest: "sha256:c", Residency: residency.Of("home")}}
	w.put(t, d, serving.Rollout{ID: "rol_1", Model: "m", Stable: 1, Candidate: 2, Weight: 10, State: serving.Running, Started: time.Now(), Spec: rollout.Spec{}})
	home := delay()
	home.Name = "home"
	w.put(t, home)
	looks := delay()
	looks.Name, looks.Residency, looks.Spec.Features = "looks", both, &serving.FeaturesSpec{Service: "s", Input: "X", Columns: []string{"a"}}
	w.put(t, looks)
	away := delay()
	away.Name, away.Residency, away.Spec.Runtime = "remote", both, &serving.RuntimeSpec{Remote: serving.RemoteSpec{Name: "triton"}}
	w.put(t, away)
	lost := delay()
	lost.Name, lost.Residency, lost.Version, lost.Digest = "lost", both, 9, "sha256:z"
	w.put(t, lost)

	report := gateway.Report{Version: "1.2", Instance: "gwi_1", Zone: "AE", Waiting: 7, Holds: []gateway.Held{{Deployment: "delay", Version: 1, State: serving.Ready}}}
	wanted, err := s.Sync(ctx, proj, "edge", report)
	if err != nil || len(wanted.Deployments) != 1 || wanted.PublicKey != "a key" {
		t.Fatalf("%+v, %v", wanted, err)
	}
	got := wanted.Deployments[0]
	if len(got.Trials) != 1 || got.Trials[0].Version != 2 || len(got.Versions) != 3 || string(got.Versions[1].Bundle) != `"m@2"` || string(got.Versions[2].Bundle) != `"scaler@4"` || got.Rollout == nil || got.Rollout.Weight != 10 {
		t.Errorf("%+v", got)
	}
	var why []string
	for _, l := range wanted.LeftOut {
		why = append(why, fmt.Sprintf("%s %d: %s", l.Deployment, l.Version, l.Reason))
	}
	for _, want := range []string{"delay 3: version 3, the shadow, has the residency home", "home 0: version 1 has the residency home", "looks 0: it uses features", "remote 0: it runs on the remote triton", "lost 0: version 9"} {
		if !strings.Contains(strings.Join(why, "\n"), want) {
			t.Errorf("it is not said that %s: %s", want, why)
		}
	}
	g, err := s.One(ctx, proj, "edge")
	if err != nil || g.Seen == nil || g.Seen.Waiting != 7 || len(g.Seen.LeftOut) != 5 || g.Seen.Holds[0].State != serving.Ready {
		t.Errorf("%+v, %v", g, err)
	}
	if list, err := s.List(ctx, proj, "", 10); err != nil || len(list) != 1 || list[0].Seen == nil {
		t.Errorf("%+v, %v", list, err)
	}

	// What it has comes without signatures; what fails here for a moment ends nothing there.
	w.busy = true
	if _, err := s.Sync(ctx, proj, "edge", report); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a busy database: %v", err)
	}
	has := report
	has.Has = []string{"m@1 sha256:a", "m@2 sha256:b", "m@9 sha256:z", "scaler@4 sha256:s"}
	if wanted, err = s.Sync(ctx, proj, "edge", has); err != nil || len(wanted.Deployments) != 2 || wanted.Deployments[0].Versions[0].Bundle != nil {
		t.Errorf("%+v, %v", wanted, err)
	}
	w.busy = false

	f, size, err := s.File(ctx, proj, "edge", "m", "2", "model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(f)
	if _ = f.Close(); string(b) != "m@2/model.onnx" || size != int64(len(b)) {
		t.Errorf("%q", b)
	}
	if _, _, err := s.File(ctx, proj, "edge", "m", "3", "model.onnx"); !fault.Is(err, fault.PermissionDenied) || len(w.refused) != 1 {
		t.Errorf("a model crosses the border: %v, %v", err, w.refused)
	}
	if _, _, err := s.File(ctx, proj, "edge", "m", "1", "MLmodel"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another file is given: %v", err)
	}
	if f, _, err := s.File(ctx, proj, "edge", "scaler", "4", "model.onnx"); err != nil {
		t.Error(err)
	} else {
		_ = f.Close()
	}
	// What another deployment makes of a version does not keep it from this one.
	chained := delay()
	chained.Name, chained.Version, chained.Residency = "chained", 5, residency.Of("home") // of its steps
	w.put(t, chained)
	plain := delay()
	plain.Name, plain.Version, plain.Digest, plain.Residency = "plain", 5, "sha256:p", both
	w.put(t, plain)
	if f, _, err := s.File(ctx, proj, "edge", "m", "5", "model.onnx"); err != nil {
		t.Error(err)
	} else {
		_ = f.Close()
	}
	for _, bad := range []string{"4", "x", "-1", ""} {
		if _, _, err := s.File(ctx, proj, "edge", "m", bad, "model.onnx"); err == nil {
			t.Errorf("version %q is given", bad)
		}
	}
	if _, _, err := s.Apply(ctx, proj, "edge", gateway.Spec{Zone: "AE", Deployments: []string{"home", "nowhere"}}, false); err != nil {
		t.Fatal(err)
	}
	if wanted, err = s.Sync(ctx, proj, "edge", report); err != nil || len(wanted.Deployments) != 0 || len(wanted.LeftOut) != 2 {
		t.Errorf("%+v, %v", wanted, err)
	}
	w.denied = gateway.ActionPull
	if _, err := s.Sync(ctx, proj, "edge", report); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	if _, _, err := s.File(ctx, proj, "edge", "m", "1", "model.onnx"); !fault.Is(err, fault.PermissionDenied) {
		t.Error(err)
	}
	w.denied = ""
	if err := s.Delete(ctx, proj, "edge"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sync(ctx, proj, "edge", report); !fault.Is(err, fault.Gone) {
		t.Error(err)
	}
}

func record(n int) *prediction.Record {
	at := time.Date(2026, 11, 1, 0, 0, n, 0, time.UTC)
	return &prediction.Record{
		ID: fmt.Sprintf("prd_%d", n/2), Model: "m", Version: 1, Shadow: n%2 == 1, At: at, Received: at, Rows: 1,
		Keys: []prediction.Column{{Name: "who", Texts: []string{fmt.Sprint("p", n%3)}}}, Inputs: []prediction.Column{{Name: "X", Numbers: []float64{float64(n)}}}, Scores: []float64{0.5},
	}
}

// TestHandedBackOnce: whatever fails, and whoever is killed, in the middle of handing
// back, each record is in our log once, in order.
func TestHandedBackOnce(t *testing.T) {
	database := open(t, storetest.SQLite)
	database.put(t, delay())
	names := 0
	rapid.Check(t, func(r *rapid.T) {
		ctx := context.Background()
		names++
		name := fmt.Sprintf("edge-%d", names)
		dir := t.TempDir()
		w := *database
		w.Log, w.Authz = &w, &w
		w.reopen(t, dir)
		w.fails = func() bool { return rapid.IntRange(0, 9).Draw(r, "fails") == 0 }
		s := gateway.New(w.Config)
		if _, _, err := s.Apply(ctx, proj, name, gateway.Spec{}, false); err != nil {
			r.Fatal(err)
		}
		const total = 40
		at, tries := "", 0
		place := func(n int) string { return fmt.Sprintf("1-%d-0-0", n+40) }
		for from := 0; from < total; {
			if tries++; tries > 1000 {
				r.Fatal("it does not come to an end")
			}
			to := min(total, from+rapid.IntRange(1, 12).Draw(r, "size"))
			var b []byte
			for n := from; n < to; n++ {
				var err error
				if b, err = prediction.AppendRecords(b, record(n)); err != nil {
					r.Fatal(err)
				}
			}
			switch rapid.IntRange(0, 5).Draw(r, "event") {
			case 0: // this side is killed and starts again
				s = gateway.New(w.Config)
				w.reopen(t, dir)
			case 1: // others answer meanwhile, here
				own := record(1000 + tries)
				own.Project, own.Deployment = proj, "delay"
				if err := w.log.Append(ctx, own); err != nil {
					r.Fatal(err)
				}
			default:
			}
			reached, err := s.Accept(ctx, proj, name, gateway.Batch{Deployment: "delay", DeploymentID: "dep_delay", Instance: "gwi_1", From: at, To: place(to), Records: b})
			if err != nil {
				continue
			}
			if rapid.IntRange(0, 4).Draw(r, "lost") == 0 { // the answer is: the same is handed over again
				again, err := s.Accept(ctx, proj, name, gateway.Batch{Deployment: "delay", DeploymentID: "dep_delay", Instance: "gwi_1", From: at, To: place(to), Records: b})
				if err != nil || again != reached {
					r.Fatalf("again it is %q, %v", again, err)
				}
			}
			if reached != place(to) {
				r.Fatalf("it is at %q, not %q", reached, place(to))
			}
			at, from = reached, to
		}
		n := 0
		if err := w.log.Read(ctx, proj, "delay", prediction.Cursor{}, func(_ prediction.Cursor, rec *prediction.Record) error {
			if rec.Remote == "" {
				return nil // answered here
			}
			if rec.Remote != "gateway/"+name || rec.Zone != "home" || rec.Owner != prediction.OwnerOf("dep_delay") {
				return fmt.Errorf("%+v", rec)
			}
			if want := record(n); rec.ID != want.ID || rec.Shadow != want.Shadow || !rec.Received.Equal(want.Received) {
				return fmt.Errorf("record %d is %+v", n, rec)
			}
			n++
			return nil
		}); err != nil {
			r.Fatal(err)
		}
		if n != total {
			r.Fatalf("%d records of %d", n, total)
		}
	})
}

func TestHandedBack(t *testing.T) {
	ctx, w := t.Context(), open(t, storetest.SQLite)
	w.put(t, delay())
	s := gateway.New(w.Config)
	if _, _, err := s.Apply(ctx, proj, "edge", gateway.Spec{}, false); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for n := range 6 {
		b, _ = prediction.AppendRecords(b, record(n))
	}
	batch := gateway.Batch{Deployment: "delay", DeploymentID: "dep_delay", Instance: "gwi_1", To: "1-50-0-0", Records: b}
	bad := func(change func(*gateway.Batch)) gateway.Batch {
		c := batch
		change(&c)
		return c
	}
	other := delay()
	other.Name = "other"
	w.put(t, other)
	if _, _, err := s.Apply(ctx, proj, "narrow", gateway.Spec{Deployments: []string{"other"}}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Accept(ctx, proj, "narrow", batch); !fault.Is(err, fault.NotFound) { // nor are they dropped
		t.Errorf("predictions of a deployment that is not this gateway's: %v", err)
	}
	if _, err := s.Accept(ctx, proj, "nobody", batch); !fault.Is(err, fault.NotFound) { // not Gone: they would be dropped
		t.Errorf("a gateway that was deleted: %v", err)
	}
	for name, c := range map[string]struct {
		batch gateway.Batch
		kind  fault.Kind
	}{
		"damaged":      {bad(func(c *gateway.Batch) { c.Records = b[:len(b)-1] }), fault.Invalid},
		"noise":        {bad(func(c *gateway.Batch) { c.Records = []byte("what?") }), fault.Invalid},
		"too large":    {bad(func(c *gateway.Batch) { c.Records = make([]byte, gateway.MaxBatch+1) }), fault.Invalid},
		"no end":       {bad(func(c *gateway.Batch) { c.To = "" }), fault.Invalid},
		"no instance":  {bad(func(c *gateway.Batch) { c.Instance = "" }), fault.Invalid},
		"another one":  {bad(func(c *gateway.Batch) { c.DeploymentID = "dep_other" }), fault.Gone},
		"not deployed": {bad(func(c *gateway.Batch) { c.Deployment = "nowhere" }), fault.Gone},
	} {
		if _, err := s.Accept(ctx, proj, "edge", c.batch); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// p1 was erased, in the third second; what was asked of p1 later is of a new relation.
	w.erased = []gateway.Erased{{Until: record(2).Received.Add(-10 * time.Second), Person: prediction.Person{Project: proj, Keys: []string{"who"}, Is: func(v []string) bool { return v[0] == "p1" }}}}
	if at, err := s.Accept(ctx, proj, "edge", batch); err != nil || at != batch.To {
		t.Fatal(at, err)
	}
	var said []string
	if err := w.log.Read(ctx, proj, "delay", prediction.Cursor{}, func(_ prediction.Cursor, r *prediction.Record) error {
		said = append(said, fmt.Sprint(r.Keys[0].Texts[0], " ", r.Inputs[0].Numbers[0], " ", r.Erased, " ", math.IsNaN(r.Scores[0])))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := "[p0 0 false false  NaN true true p2 2 false false p0 3 false false p1 4 false false p2 5 false false]"
	if fmt.Sprint(said) != want {
		t.Errorf("%v\nwant %v", said, want)
	}

	// A clock that is an hour ahead is put right; what is of the future all the same is of
	// now, and of nobody who was erased.
	now := time.Now().UTC()
	ahead, future := record(1), record(1)
	ahead.At, ahead.Received = now.Add(time.Hour-time.Minute), now.Add(time.Hour-time.Minute)
	future.At, future.Received = now.Add(9*time.Hour), now.Add(9*time.Hour)
	w.erased[0].Until = now.Add(-30 * time.Minute)
	c, _ := prediction.AppendRecords(nil, ahead)
	c, _ = prediction.AppendRecords(c, future)
	if _, err := s.Accept(ctx, proj, "edge", gateway.Batch{Clock: now.Add(time.Hour), Deployment: "delay", DeploymentID: "dep_delay", Instance: "gwi_3", To: "1-50-0-0", Records: c}); err != nil {
		t.Fatal(err)
	}
	var last []*prediction.Record
	if err := w.log.Read(ctx, proj, "delay", prediction.Cursor{}, func(_ prediction.Cursor, r *prediction.Record) error {
		last = append(last, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	last = last[len(last)-2:]
	for i, want := range []time.Time{now.Add(-time.Minute), now} {
		if d := last[i].At.Sub(want); d < -time.Minute/2 || d > time.Minute/2 || !last[i].At.Equal(last[i].Received) || last[i].Erased != (i == 1) {
			t.Errorf("record %d is at %s, want about %s: %+v", i, last[i].At, want, last[i])
		}
	}

	// Who begins elsewhere hears where to begin; another data directory begins anew.
	if at, err := s.Accept(ctx, proj, "edge", bad(func(c *gateway.Batch) { c.From, c.To = "1-99-0-0", "1-100-0-0" })); err != nil || at != batch.To {
		t.Errorf("%q, %v", at, err)
	}
	if at, err := s.Accept(ctx, proj, "edge", bad(func(c *gateway.Batch) { c.Instance, c.To = "gwi_2", "9-99-0-0" })); err != nil || at != "9-99-0-0" {
		t.Errorf("%q, %v", at, err)
	}
}

// TestListIsWhatMayBeRead: a gateway that a policy forbids to read is in no list.
func TestListIsWhatMayBeRead(t *testing.T) {
	w := open(t, storetest.SQLite)
	s := gateway.New(w.Config)
	for _, name := range []string{"a", "b", "c", "d"} {
		if _, _, err := s.Apply(t.Context(), proj, name, gateway.Spec{}, false); err != nil {
			t.Fatal(err)
		}
	}
	w.closed = "b"
	for after, want := range map[string]string{"": "a c", "a": "c d", "c": "d"} {
		all, err := s.List(t.Context(), proj, after, 2)
		var names []string
		for _, g := range all {
			names = append(names, g.Name)
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("after %q: %s, %v; want %s", after, got, err, want)
		}
	}
}
