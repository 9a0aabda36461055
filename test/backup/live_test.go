package backup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const streamed = `
{api_version: falaj/v1, kind: Dataset, name: purchases, project: PROJECT, spec: {columns: [{name: customer, type: string}, {name: at, type: timestamp}, {name: amount, type: int64}]}}
---
{api_version: falaj/v1, kind: FeatureView, name: spending, project: PROJECT, spec: {source: {dataset: purchases, stream: {push: {}}}, entities: [customer], timestamp: at,
  aggregations: [{name: bought, function: count, window: 1d}]}}
`

// writers change an installation in several ways until they are stopped, and remember
// what was acknowledged.
type writers struct {
	p       *live.Project
	stop    atomic.Bool
	all     sync.WaitGroup
	mu      sync.Mutex
	failed  error
	events  []map[string]any // that were acknowledged, each with the id of its place
	orders  int              // versions of orders that were
	deletes int              // datasets that came and went
}

func (w *writers) forever(step func() error) {
	w.all.Go(func() {
		for !w.stop.Load() {
			if err := step(); err != nil {
				w.mu.Lock()
				w.failed = errors.Join(w.failed, err)
				w.mu.Unlock()
				return
			}
		}
	})
}

func (w *writers) begin(ctx context.Context) {
	load := func(dataset, content string) error {
		_, err := w.p.C.Import(ctx, w.p.Name, dataset, dataset+".csv", strings.NewReader(content))
		return err
	}
	w.forever(func() error {
		n := len(w.events)
		e := map[string]any{"customer": "anna", "at": time.Now().UTC().Format(time.RFC3339Nano), "amount": n}
		if err := w.push(ctx, w.p, n, e); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
		return nil
	})
	w.forever(func() error {
		if err := load("orders", csv(fmt.Sprintf("order%d", w.orders+1), "anna", "bert")); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.orders++
		return nil
	})
	// What goes while it is backed up is of the moment, if it was there.
	w.forever(func() error {
		for _, protection := range []string{"sealed", "open"} {
			name := fmt.Sprintf("%s%d", protection, w.deletes)
			if _, err := w.p.Try(w.p.C, "{api_version: falaj/v1, kind: Dataset, name: "+name+", project: "+w.p.Name+", spec: {protection: "+protection+"}}"); err != nil {
				return err
			}
			if err := load(name, csv(name, "anna")); err != nil {
				return err
			}
			if w.deletes < 3 {
				continue
			}
			gone := fmt.Sprintf("%s%d", protection, w.deletes-3)
			if err := w.p.C.Do(ctx, http.MethodDelete, w.p.Path("datasets/"+gone), nil, nil); err != nil {
				return err
			}
		}
		w.deletes++
		return nil
	})
}

func (w *writers) push(ctx context.Context, p *live.Project, n int, e map[string]any) error {
	return p.C.Do(ctx, http.MethodPost, p.Path("feature-views/spending/push"), map[string]any{"events": []any{e}, "ids": []string{fmt.Sprint("e", n)}}, nil)
}

func (w *writers) acknowledged() (events, orders int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events), w.orders
}

// bought is how many events the windows have.
func bought(p *live.Project) int {
	p.T.Helper()
	var got struct {
		Columns []struct{ Values []*int }
	}
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("features/online"), map[string]any{"features": []string{"spending:bought"}, "entities": []any{map[string]any{"customer": "anna"}}}, &got))
	if len(got.Columns) != 1 || len(got.Columns[0].Values) != 1 || got.Columns[0].Values[0] == nil {
		return 0
	}
	return *got.Columns[0].Values[0]
}

// audited looks for an act of the installation, which says all of some words.
func audited(p *live.Project, act string, words ...string) {
	p.T.Helper()
	p.Eventually("the audit log says "+act, func() (bool, error) {
		out, code := p.Command(p.T.Context(), "audit", "list", "--action", act, "-o", "json")
		for _, w := range words {
			if code != 0 || !strings.Contains(out, w) {
				return false, fmt.Errorf("it says %d\n%s", code, out)
			}
		}
		return true, nil
	})
}

// A backup of a server that is written to has everything that was acknowledged before,
// each part as it was at one moment.
func TestBackupOfARunningServer(t *testing.T) {
	dir := t.TempDir()
	s := live.New(t, "")
	s.Env = []string{"FALAJ_ERASURES_LEDGER=" + filepath.Join(dir, "ledger.jsonl"), "FALAJ_BACKUP_DIR=" + filepath.Join(dir, "backups")}
	s.Up(t)
	p := s.Project(t, "shop")
	p.Apply(manifests)
	p.Import("orders", csv("order1", "anna", "bert"))
	p.Import("visits", csv("visit", "anna", "bert"))
	p.Apply(view)
	p.Materialise("facts")
	p.Apply(streamed)
	p.Materialise("spending")

	w := &writers{p: p, orders: 1}
	w.begin(t.Context())
	p.Eventually("there are some of all", func() (bool, error) {
		events, orders := w.acknowledged()
		return events > 50 && orders > 5, fmt.Errorf("%d events, %d orders", events, orders)
	})
	// While it runs, rows of a sealed dataset are in its place in the clear.
	reads := p.Apply(`{api_version: falaj/v1, kind: Job, name: reads, project: PROJECT, spec: {data: {train: orders}, timeout: 5m, command: [/bin/sh, -c, 'sleep 240']}}`)[0].ID
	running := func(p *live.Project, attempts string) {
		t.Helper()
		p.Eventually("the job runs", func() (bool, error) {
			var j client.Object
			err := p.C.Do(t.Context(), http.MethodGet, p.Path("jobs/"+reads), nil, &j)
			return j.Text("state") == "running" && j.Text("attempts") == attempts, errors.Join(err, fmt.Errorf("%v", j))
		})
	}
	running(p, "1")
	planted := regexp.MustCompile(`order[0-9]+-(anna|bert)`)
	found := func(dir string) (files []string) {
		t.Helper()
		for path, content := range live.Files(t, dir) {
			if planted.Match(content) {
				files = append(files, path)
			}
		}
		return files
	}
	if len(found(filepath.Join(s.Data, "training"))) == 0 {
		t.Error("no row is in the clear, so this test tests nothing")
	}
	events, orders := w.acknowledged()
	out := p.Run(0, "backup", "make", "first")
	if got := found(filepath.Join(dir, "backups", "first")); len(got) > 0 {
		t.Errorf("rows of a sealed dataset are in the clear in %v", got)
	}
	p.Run(0, "job", "cancel", reads)
	if !strings.Contains(out, "sequence ") {
		t.Errorf("%s", out)
	}
	if out := p.Run(5, "backup", "make", "first"); !strings.Contains(out, "already exists") {
		t.Errorf("a second time: %s", out)
	}
	later, _ := w.acknowledged()
	p.Eventually("they go on", func() (bool, error) {
		now, _ := w.acknowledged()
		return now > later+20, nil
	})

	// One that is killed in the middle is none, and is made anew.
	big := filepath.Join(s.Data, "big")
	p.Must(os.WriteFile(big, nil, 0o600))
	p.Must(os.Truncate(big, 8<<30)) // takes no room here, but time
	w.stop.Store(true)
	w.all.Wait()
	p.Must(w.failed)
	begun := func(name string) {
		t.Helper()
		p.Run(0, "backup", "make", name, "--no-wait")
		p.Eventually("backup "+name+" begins", func() (bool, error) {
			_, err := os.Stat(filepath.Join(dir, "backups", name, "files", "big"))
			return err == nil, err
		})
	}
	begun("stopped")
	p.Run(0, "backup", "stop", "stopped")
	audited(p, "backup.make", "backup stopped", `"stopped"`, "it was cancelled")
	if _, err := os.Stat(filepath.Join(dir, "backups", "stopped")); err == nil {
		t.Error("a backup that was stopped takes room")
	}
	begun("killed")
	p.Must(s.Kill())
	p.Again()
	begun("second")
	if _, err := os.Stat(filepath.Join(dir, "backups", "killed")); err == nil {
		t.Error("a backup that was killed takes room")
	}
	p.Must(s.Kill())
	p.Must(os.Remove(big))
	p.Must(os.Truncate(filepath.Join(dir, "backups", "second", "files", "big"), 0))
	p.Again()
	if out := p.Run(0, "backup", "list"); !strings.Contains(out, "interrupted") || !strings.Contains(out, "whole") {
		t.Errorf("%s", out)
	}
	if _, err := os.Stat(filepath.Join(s.Data, "tmp", "backup")); err == nil {
		t.Error("what the killed backup had linked is there still")
	}
	p.Run(0, "backup", "make", "second")
	audited(p, "backup.make", "backup first", "done", "0-")
	digest := strings.TrimSpace(out[strings.LastIndex(out, ": ")+1:])
	p.Must(s.Kill())

	to := live.New(t, "")
	to.Env, to.Token = s.Env, s.Token
	first := filepath.Join(dir, "backups", "first")
	if said, code := to.Command(t.Context(), "restore", first, "--data", to.Data, "--digest", strings.Repeat("0", 64)); code == 0 {
		t.Errorf("with another digest: %s", said)
	}
	if said, code := to.Command(t.Context(), "restore", first, "--data", to.Data, "--digest", digest); code != 0 {
		t.Fatalf("%d\n%s", code, said)
	}
	to.Up(t)
	q := &live.Project{Server: to, T: t, C: to.Client(t), Name: p.Name}
	audited(q, "backup.restore", digest)
	running(q, "2") // its place was not in the backup
	q.Run(0, "job", "cancel", reads)
	// Every version of every dataset that is on record is there, whole.
	var versions int
	var names []string
	q.Must(q.C.List(t.Context(), q.Path("datasets"), nil, func(o client.Object) error {
		names = append(names, o.Text("name"))
		return nil
	}))
	for _, name := range names {
		if name == "purchases" {
			continue
		}
		for n := 1; ; n++ {
			var got client.Object
			err := q.C.Do(t.Context(), http.MethodPost, q.Path("query"), map[string]any{"sql": fmt.Sprintf(`SELECT count(*), min(word) FROM "%s@%d"`, name, n)}, &got)
			if err != nil {
				if !strings.Contains(err.Error(), "no version") && !strings.Contains(err.Error(), "has no versions") {
					t.Errorf("%s@%d: %v", name, n, err)
				}
				if name == "orders" && n <= orders {
					t.Errorf("of %d acknowledged versions of orders %d are there", orders, n-1)
				}
				break
			}
			versions++
		}
	}
	if versions < orders+2 {
		t.Errorf("%d versions are there", versions)
	}
	if all, online := rows(q, "visits", "bert"); !strings.Contains(all, "visit-bert") || !strings.Contains(online, "-bert") {
		t.Errorf("visits: %s, online %s", all, online)
	}
	// The log of events, their ids and what was folded are of one moment: sent again, each
	// counts once.
	had := 0
	q.Eventually("the acknowledged events are there", func() (bool, error) {
		had = bought(q)
		return had >= events, fmt.Errorf("%d of %d", had, events)
	})
	for n, e := range w.events {
		q.Must(w.push(t.Context(), q, n, e))
	}
	q.Eventually("every event counts once", func() (bool, error) {
		got := bought(q)
		return got == len(w.events), fmt.Errorf("%d of %d; %d before", got, len(w.events), had)
	})
}
