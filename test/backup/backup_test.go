// Package backup backs a real server up, kills a backup in the middle, restores into
// another data directory and into a bucket, and looks whether all is there and who was
// erased since is not.
package backup

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = `
{api_version: falaj/v1, kind: Entity, name: customer, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Dataset, name: orders, project: PROJECT, spec: {classification: confidential, columns: [{name: customer, type: string}]}}
---
{api_version: falaj/v1, kind: Dataset, name: visits, project: PROJECT, spec: {protection: open, entities: {customer: {customer: customer}}, columns: [{name: customer, type: string}]}}
`

const view = `
api_version: falaj/v1
kind: FeatureView
name: facts
project: PROJECT
spec:
  source: {dataset: orders}
  entities: [customer]
  timestamp: seen
  features: [{name: word, type: string}]
`

func csv(word string, who ...string) string {
	var b strings.Builder
	b.WriteString("customer,seen,word\n")
	for i, w := range who {
		fmt.Fprintf(&b, "%s,2013-01-01T00:00:%02dZ,%s-%s\n", w, i, word, w)
	}
	return b.String()
}

// rows is what a dataset has, and what is online of a customer.
func rows(p *live.Project, dataset, who string) (all, online string) {
	p.T.Helper()
	var got, of client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": "SELECT customer, word FROM " + dataset + " ORDER BY customer"}, &got))
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("features/online"), map[string]any{"features": []string{"facts:word"}, "entities": []any{map[string]any{"customer": who}}}, &of))
	return got.Text("rows"), fmt.Sprint(of)
}

func TestBackup(t *testing.T) {
	dir := t.TempDir()
	ledger := "FALAJ_ERASURES_LEDGER=" + filepath.Join(dir, "ledger.jsonl")
	s := live.New(t, "")
	s.Env = []string{ledger}
	s.Up(t)
	p := s.Project(t, "shop")
	p.Apply(manifests)
	p.Import("orders", csv("order", "anna", "bert"))
	p.Import("visits", csv("visit", "anna", "bert"))
	p.Apply(view)
	p.Materialise("facts")

	first := filepath.Join(dir, "first")
	if said, code := s.Command(t.Context(), "backup", first, "--data", s.Data); code != 5 || !strings.Contains(said, "process") {
		t.Errorf("of a server that runs: %d\n%s", code, said)
	}
	p.Must(s.Kill())
	if said, code := s.Command(t.Context(), "backup", first, "--data", s.Data); code != 0 || !strings.Contains(said, "Backed up") {
		t.Fatalf("%d\n%s", code, said)
	}

	// A backup that is killed in the middle is none.
	big, err := os.Create(filepath.Join(s.Data, "big"))
	p.Must(err)
	p.Must(big.Truncate(8 << 30)) // takes no room, but time
	p.Must(big.Close())
	second := filepath.Join(dir, "second")
	cmd := exec.Command(s.Bin.Falaj, "backup", second, "--data", s.Data)
	cmd.Env = s.Environ()
	p.Must(cmd.Start())
	p.Eventually("the backup does not begin", func() (bool, error) {
		_, err := os.Stat(filepath.Join(second, "manifest.jsonl.part"))
		return err == nil, err
	})
	p.Must(cmd.Process.Kill())
	_ = cmd.Wait()
	p.Must(os.Remove(big.Name()))
	_ = os.Remove(filepath.Join(second, "files", "big"))
	empty := filepath.Join(dir, "empty")
	if said, code := s.Command(t.Context(), "restore", second, "--data", empty); code != 1 && code != 2 || !strings.Contains(said, "is incomplete") {
		t.Errorf("of a backup that was killed: %d\n%s", code, said)
	}

	// What comes after the backup, and who goes.
	p.Again()
	p.Import("orders", csv("late", "anna", "bert", "cleo"))
	p.Run(0, "erase", "customer", "anna", "--reason", "request 1")
	p.Must(s.Stop())

	restored := func(t *testing.T, env ...string) *live.Server {
		t.Helper()
		to := live.New(t, "")
		to.Env, to.Token = slices.Concat(env, []string{ledger}), s.Token
		said, code := to.Command(t.Context(), "restore", first, "--data", to.Data)
		if code != 0 || !strings.Contains(said, "Restored") {
			t.Fatalf("%d\n%s", code, said)
		}
		if said, code := to.Command(t.Context(), "restore", first, "--data", to.Data); code != 5 {
			t.Errorf("over an installation: %d\n%s", code, said)
		}
		to.Up(t)
		q := &live.Project{Server: to, T: t, C: to.Client(t), Name: p.Name}
		for dataset, word := range map[string]string{"orders": "order", "visits": "visit"} {
			q.Eventually("anna is there", func() (bool, error) {
				all, online := rows(q, dataset, "anna")
				return !strings.Contains(all+online, "-anna"), fmt.Errorf("%s %s", all, online)
			})
			all, online := rows(q, dataset, "bert")
			if !strings.Contains(all, word+"-bert") || !strings.Contains(online, "order-bert") || strings.Contains(all, "cleo") {
				t.Errorf("%s: %s\n%s", dataset, all, online)
			}
		}
		q.Must(to.Stop())
		q.Again()
		if all, _ := rows(q, "orders", "bert"); !strings.Contains(all, "order-bert") {
			t.Errorf("after another start: %s", all)
		}
		q.Must(to.Stop())
		return to
	}
	t.Run("into a directory", func(t *testing.T) { restored(t) })
	half := live.New(t, "")
	p.Must(os.MkdirAll(half.Data, 0o700))
	p.Must(os.WriteFile(filepath.Join(half.Data, "restore.unfinished"), nil, 0o600))
	if err := half.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "is incomplete") {
		t.Errorf("on half a restore: %v", err)
	}
	t.Run("into a bucket", func(t *testing.T) {
		at, ca := sourcetest.S3(t)
		if err := sourcetest.S3Client(t, at, ca).MakeBucket(t.Context(), "falaj", minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
		file := func(name, content string) string {
			path := filepath.Join(dir, name)
			p.Must(os.WriteFile(path, []byte(content), 0o600))
			return path
		}
		old := restored(t,
			"FALAJ_BLOB_S3_ENDPOINT=https://"+at, "FALAJ_BLOB_S3_BUCKET=falaj", "FALAJ_BLOB_S3_ZONE=home", "FALAJ_BLOB_S3_CA="+file("ca.pem", string(ca)),
			"FALAJ_BLOB_S3_CREDENTIALS="+file("keys", "access_key = "+sourcetest.S3User+"\nsecret_key = "+sourcetest.S3Password+"\n"),
		)
		// The bucket of a server that may be running is not taken by itself.
		third := filepath.Join(dir, "third")
		if said, code := old.Command(t.Context(), "backup", third, "--data", old.Data); code != 0 {
			t.Fatalf("%d\n%s", code, said)
		}
		to := live.New(t, "")
		to.Env, to.Token = old.Env, old.Token
		if said, code := to.Command(t.Context(), "restore", third, "--data", to.Data); code != 5 || !strings.Contains(said, "--take-bucket") {
			t.Errorf("into the bucket of another: %d\n%s", code, said)
		}
		if err := old.Start(t.Context()); err != nil {
			t.Errorf("the bucket is not its own any more: %v", err)
		}
		p.Must(old.Stop())
		if said, code := to.Command(t.Context(), "restore", third, "--data", to.Data, "--take-bucket"); code != 0 {
			t.Fatalf("%d\n%s", code, said)
		}
		to.Up(t)
		q := &live.Project{Server: to, T: t, C: to.Client(t), Name: p.Name}
		if all, _ := rows(q, "orders", "bert"); !strings.Contains(all, "order-bert") {
			t.Errorf("from the bucket that was taken: %s", all)
		}
		if err := old.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "is not the one that has the objects") {
			t.Errorf("two servers on one bucket: %v", err)
		}
	})
}
