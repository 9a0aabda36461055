package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/audit/auditsql"
	"github.com/falaj-ml/falaj/internal/governance/keys"
	"github.com/falaj-ml/falaj/internal/governance/keys/keyssql"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/store"
)

func (b *bench) audit(ctx context.Context) error {
	if err := b.reads(ctx); err != nil {
		return err
	}
	return b.verification(ctx)
}

const views = `
{api_version: falaj/v1, kind: Entity, name: id, project: bench, spec: {type: int64}}
---
{api_version: falaj/v1, kind: Dataset, name: internal, project: bench, spec: {classification: internal}}
---
{api_version: falaj/v1, kind: Dataset, name: confidential, project: bench, spec: {classification: confidential}}
`

const view = `
{api_version: falaj/v1, kind: FeatureView, name: CLASS, project: bench, spec: {source: {dataset: CLASS}, entities: [id], timestamp: at, features: [{name: a, type: float64}, {name: b, type: float64}]}}
`

// reads measures online reads that are recorded beside reads that are not.
func (b *bench) reads(ctx context.Context) error {
	s, err := b.serve(ctx, "read", -1, "")
	if err != nil {
		return err
	}
	defer func() { _ = s.on.Stop() }()
	c, err := s.on.Client()
	if err != nil {
		return err
	}
	if _, err := c.Apply(ctx, "bench", []byte(views), false); err != nil {
		return err
	}
	var rows strings.Builder
	rows.WriteString("id,at,a,b\n")
	for i := range 1000 {
		fmt.Fprintf(&rows, "%d,2026-01-01T00:00:00Z,%d.5,%d.25\n", i, i, i)
	}
	classes := []string{"internal", "confidential"}
	for _, class := range classes {
		if _, err := c.Import(ctx, "bench", class, class+".csv", strings.NewReader(rows.String())); err != nil {
			return err
		}
		if _, err := c.Apply(ctx, "bench", []byte(strings.ReplaceAll(view, "CLASS", class)), false); err != nil {
			return err
		}
		if err := c.Do(ctx, http.MethodPost, "/api/v1/projects/bench/feature-views/"+class+"/materialise", map[string]any{"wait": "60s"}, nil); err != nil {
			return err
		}
	}
	span := time.Second
	if b.Quick {
		span = 50 * time.Millisecond
	}
	for _, at := range []int{1, 8} {
		var cpu, p50, p99 [2][]float64
		for range b.Rounds {
			for i, class := range classes {
				body := fmt.Appendf(nil, `{"features":["%s:a","%s:b"],"entities":{"id":[7,8,9]}}`, class, class)
				f, err := closed(ctx, s.on, request(s.on, "/get-online-features", s.header+"Falaj-Project: bench\r\nContent-Type: application/json\r\n", body), at, span)
				if err != nil || f.failed > 0 {
					return fmt.Errorf("%d reads of %s features failed: %w", f.failed, class, err)
				}
				cpu[i], p50[i], p99[i] = append(cpu[i], f.cpu), append(p50[i], f.p50), append(p99[i], f.p99)
			}
		}
		const peer = "features of the class internal, whose reads are not recorded"
		for _, m := range []struct {
			what   string
			values [2][]float64
		}{{"CPU", cpu}, {"p50", p50}, {"p99", p99}} {
			b.Add(harness.Row{
				Name: fmt.Sprintf("%s of an online read that is recorded, %d at a time", m.what, at), Unit: "µs", Better: harness.Lower,
				Ours: middle(m.values[1]), Theirs: middle(m.values[0]), Peer: peer, Note: "two features of three entities, HTTP; the record is on disk before the answer", Detail: m.what == "p99",
			})
		}
	}
	return nil
}

type allow struct{}

func (allow) Allow(context.Context, policy.Action, policy.Object) error { return nil }

// verification measures how long the whole log takes to verify: for the server, which
// does it part by part, and for `falaj audit verify` from an export.
func (b *bench) verification(ctx context.Context) (err error) {
	n := 1_000_000
	if b.Quick {
		n = 1_000
	}
	dir := filepath.Join(b.Dir, "log")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Config{URL: "sqlite://" + filepath.Join(dir, "falaj.db"), Migrations: []store.Migrations{keyssql.Migrations, auditsql.Migrations}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ring, err := keys.Open(ctx, keys.Config{DB: db, Store: keyssql.Store{}, Authorizer: allow{}, MasterFile: filepath.Join(dir, "master.key")})
	if err != nil {
		return err
	}
	log, err := audit.Open(ctx, audit.Config{
		DB: db, Store: auditsql.Store{}, Sealer: ring, JournalDir: filepath.Join(dir, "journal"), Witness: audit.NewCheckpointFile(filepath.Join(dir, "checkpoints.jsonl")),
	})
	if err != nil {
		return err
	}
	b.Say("%d entries", n)
	for from := 0; from < n; from += 1000 {
		if err := db.Update(ctx, "bench", func(ctx context.Context, tx *store.Tx) error {
			for i := range 1000 {
				if err := audit.Append(ctx, tx, audit.Entry{Project: "bench", Action: "dataset.query", Object: fmt.Sprintf("dataset d@%d", from+i), Outcome: audit.Done}); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if _, err := log.RunOnce(ctx); err != nil {
			return err
		}
	}
	svc := audit.New(audit.ServiceConfig{DB: db, Log: log, Authorize: func(context.Context, string, string) error { return nil }})
	export := filepath.Join(dir, "export.jsonl")
	out, err := os.Create(export)
	if err != nil {
		return err
	}
	if err := errors.Join(svc.Export(ctx, out), out.Close()); err != nil {
		return err
	}
	var sweeps, offline []float64
	for range b.Rounds {
		began := time.Now()
		for ended := false; !ended; {
			if ended, err = log.Sweep(ctx, 1<<16); err != nil {
				return err
			}
		}
		sweeps = append(sweeps, time.Since(began).Seconds())
		in, err := os.Open(export)
		if err != nil {
			return err
		}
		began = time.Now()
		report, err := audit.Verify(in, audit.VerifyOptions{PublicKey: log.PublicKey()})
		offline = append(offline, time.Since(began).Seconds())
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
		if report.Entries < int64(n) {
			return fmt.Errorf("%d entries were verified, of %d", report.Entries, n)
		}
	}
	info, err := os.Stat(export)
	if err != nil {
		return err
	}
	const what = "verification of 10⁶ entries of the audit log"
	b.Add(harness.Row{Name: what + ", by the server", Unit: "s", Better: harness.Lower, Ours: middle(sweeps), Note: "SQLite; the server does it in parts, beside its other work"})
	b.Add(harness.Row{Name: what + ", by falaj audit verify", Unit: "s", Better: harness.Lower, Ours: middle(offline), Note: fmt.Sprintf("from an export of %.0f MB, without a server", float64(info.Size())/1e6)})
	return nil
}
