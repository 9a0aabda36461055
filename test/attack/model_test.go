package attack

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // to change what a stopped server has stored

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestTamperedModel changes what a signed model is stored as, in each place
// where it is stored. What was changed is neither deployed nor loaded again by
// a server that had deployed it; it says so, and it is on record.
func TestTamperedModel(t *testing.T) {
	s, c := start(t, nil)
	good, err := os.ReadFile(filepath.Join(s.Bin.Root, "internal", "serving", "runtime", "onnx", "testdata", "logistic.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range [][]byte{good, append(bytes.Clone(good), 0x32, 1, 'x')} { // field 6 of a model is a comment
		job := submit(t, c, "train", map[string]any{
			"command":  []string{"/bin/sh", "-ec", `mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx README.md "$FALAJ_OUTPUT_DIR/model/"`},
			"source":   source(t, c, map[string][]byte{"model.onnx": model, "README.md": []byte("tiny")}),
			"register": "tiny",
		})
		if o := ended(t, c, job); o.Text("state") != "succeeded" {
			t.Fatal(o, logs(t, c, job))
		}
	}
	apply(t, c, deployment("live", 1))
	apply(t, c, deployment("second", 2))
	if err := infer(t, c, "live"); err != nil {
		t.Fatal(err)
	}
	w := &tampering{s: s, c: c}

	// The files, while the server runs.
	stored, err := filepath.Glob(filepath.Join(s.Data, "objects", "projects", project, "models", "*", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	card, one := objects(t, stored, "v1")
	_, two := objects(t, stored, "v2")
	other, err := os.ReadFile(two)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []struct {
		name, path string
		change     func(b []byte) []byte // nil removes the file
		says       string
	}{
		{"a bit in the middle", one, func(b []byte) []byte { return flip(b, len(b)/2) }, "its stored bytes were modified"},
		{"a bit at the beginning", one, func(b []byte) []byte { return flip(b, 0) }, "its stored bytes were modified"},
		{"a bit at the end", one, func(b []byte) []byte { return flip(b, len(b)-1) }, "its stored bytes were modified"},
		{"a file that is not loaded", card, func(b []byte) []byte { return flip(b, len(b)/2) }, "README.md"},
		{"another version's file", one, func([]byte) []byte { return other }, "its stored bytes were modified"},
		{"a file that was never sealed", one, func([]byte) []byte { return good }, "its stored bytes were modified"},
		{"less", one, func(b []byte) []byte { return b[:len(b)-100] }, "its stored bytes were modified"},
		{"more", one, func(b []byte) []byte { return append(bytes.Clone(b), 0) }, "its stored bytes were modified"},
		{"nothing", one, func([]byte) []byte { return nil }, "its stored bytes were modified"},
		{"no file", one, nil, "is missing from storage"},
	} {
		t.Run(a.name, func(t *testing.T) {
			before, err := os.ReadFile(a.path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { write(t, a.path, before) }()
			if a.change == nil {
				err = os.Remove(a.path)
			} else {
				write(t, a.path, a.change(before))
			}
			if err != nil {
				t.Fatal(err)
			}
			w.refused(t, a.says)
		})
	}
	if err := infer(t, c, "live"); err != nil {
		t.Errorf("what was loaded before answers no more: %v", err)
	}
	apply(t, c, deployment("fresh", 1)) // as it was

	// What the database says, and a file, while the server is away.
	flipped := func() (undo func()) {
		b, err := os.ReadFile(one)
		if err != nil {
			t.Fatal(err)
		}
		write(t, one, flip(b, len(b)/2))
		return func() { write(t, one, b) }
	}
	set := func(table, column, value string) func() func() {
		return func() func() { return w.set(t, table, column, value) }
	}
	for _, a := range []struct {
		name   string
		tamper func() (undo func())
		says   string
	}{
		{"file", flipped, "its stored bytes were modified"},
		{"signature", set("registry_version", "signature", "CAST(replace(CAST(signature AS TEXT), '\"sig\":\"ME', '\"sig\":\"MF') AS BLOB)"), "the signature"},
		{"no signature", set("registry_version", "signature", "NULL"), "the signature is missing"},
		{"another version's signature", set("registry_version", "signature", "(SELECT signature FROM registry_version WHERE number = 2)"), "does not match its signature: version"},
		{"zones", set("registry_version", "residency", `'["DE","home"]'`), "residency"},
		{"classification", set("registry_version", "classification", "'public'"), "does not match its signature: classification"},
		{"digest of a file", set("registry_file", "digest", "(SELECT f.digest FROM registry_file f WHERE f.number = 2 AND f.path = registry_file.path)"), "was signed"},
		{"object of a file", set("registry_file", "object", "(SELECT f.object FROM registry_file f WHERE f.number = 2 AND f.path = registry_file.path)"), "does not match its signature"},
	} {
		t.Run("restart, "+a.name, func(t *testing.T) {
			if err := s.Kill(); err != nil {
				t.Fatal(err)
			}
			undo := a.tamper()
			w.restart(t)
			defer func() {
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
				undo()
				w.restart(t)
			}()
			w.refused(t, a.says)
			o := w.loaded(t, "live")
			if o.Text("state") != "failed" || !strings.Contains(o.Text("reason"), a.says) {
				t.Errorf("deployed before, and now %v", o)
			}
			var refused *client.Error
			if err := infer(t, w.c, "live"); !errors.As(err, &refused) || refused.Status != http.StatusServiceUnavailable || strings.Contains(refused.Detail, a.says) { // of why it hears nothing
				t.Errorf("asked for an answer: %v", err)
			}
			w.loaded(t, "second")
			if err := infer(t, w.c, "second"); err != nil {
				t.Errorf("a model that nobody changed: %v", err)
			}
		})
	}
	if o := w.loaded(t, "live"); o.Text("state") != "ready" {
		t.Errorf("as it was signed again, and %v", o)
	}
	if err := infer(t, w.c, "live"); err != nil {
		t.Error(err)
	}
	verify(t, s)
}

// tampering is the server whose storage is changed.
type tampering struct {
	s *live.Server
	c *client.Client
}

// refused checks that version 1 cannot be deployed, in words that say why, and
// that this is on record.
func (w *tampering) refused(t *testing.T, says string) {
	t.Helper()
	before := len(refusals(t, w.c, url.Values{"action": {"model.verify"}}))
	_, err := w.c.Apply(t.Context(), "", []byte(deployment("fresh", 1)), false)
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict || !strings.Contains(refused.Detail, says) || refused.Hint == "" {
		t.Fatalf("deploying: %v\nnot a conflict that says %q and what to do", err, says)
	}
	file := filepath.Join(t.TempDir(), "deployment.yaml")
	write(t, file, []byte(deployment("fresh", 1)))
	if out, code := w.s.Command(t.Context(), "apply", "-f", file); code != 5 || !strings.Contains(out, says) {
		t.Errorf("falaj apply: exit code %d\n%s", code, out)
	}
	eventually(t, func() string {
		on := refusals(t, w.c, url.Values{"action": {"model.verify"}})
		for _, e := range on[:max(0, len(on)-before)] {
			if e.Project == project && e.Object == "model tiny@1" && strings.Contains(e.Reason, says) && e.Actor != "" {
				return ""
			}
		}
		return fmt.Sprintf("not in the audit log: the refusal that says %q: %v", says, on)
	})
}

func (w *tampering) restart(t *testing.T) {
	t.Helper()
	if err := w.s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.c = w.s.Client(t)
}

// loaded waits until the deployment was loaded or could not be.
func (w *tampering) loaded(t *testing.T, name string) (o client.Object) {
	t.Helper()
	eventually(t, func() string {
		o = nil
		if err := w.c.Do(t.Context(), http.MethodGet, base+"/deployments/"+name, nil, &o); err != nil {
			t.Fatal(err)
		}
		if o.Text("state") == "loading" {
			return name + " is still loading"
		}
		return ""
	})
	return o
}

// set changes a column of version 1 in the database of the stopped server;
// value is SQL.
func (w *tampering) set(t *testing.T, table, column, value string) (undo func()) {
	t.Helper()
	exec := func(query string) {
		db, err := sql.Open("sqlite3", "file:"+url.PathEscape(filepath.Join(w.s.Data, "falaj.db")))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for statement := range strings.SplitSeq(query, ";") {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	kept := "kept_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	exec("CREATE TABLE " + kept + " AS SELECT rowid AS id, " + column + " AS value FROM " + table + " WHERE number = 1;" +
		"UPDATE " + table + " SET " + column + " = " + value + " WHERE number = 1")
	return func() {
		exec("UPDATE " + table + " SET " + column + " = (SELECT value FROM " + kept + " WHERE id = " + table + ".rowid) WHERE number = 1;DROP TABLE " + kept)
	}
}

func deployment(name string, version int) string {
	return fmt.Sprintf("{api_version: falaj/v1, kind: Deployment, name: %s, project: %s, spec: {model: tiny, version: \"%d\"}}\n", name, project, version)
}

// infer asks by the Open Inference Protocol.
func infer(t *testing.T, c *client.Client, name string) error {
	t.Helper()
	resp, err := c.Send(t.Context(), http.MethodPost, "/v2/models/"+name+"/infer", map[string]any{"inputs": []any{
		map[string]any{"name": "X", "datatype": "FP32", "shape": []int{1, 2}, "data": []float32{1, 2}},
	}}, http.Header{"Falaj-Project": {project}})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// objects are the stored README.md and model.onnx of a version, by their size.
func objects(t *testing.T, stored []string, version string) (small, large string) {
	t.Helper()
	var least, most int64
	for _, path := range stored {
		if filepath.Base(filepath.Dir(path)) != version {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if small == "" || info.Size() < least {
			small, least = path, info.Size()
		}
		if info.Size() > most {
			large, most = path, info.Size()
		}
	}
	if small == large {
		t.Fatalf("%s is not two objects: %v", version, stored)
	}
	return small, large
}
