package attack

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/test/live"
)

// TestHostileOutput has jobs leave what leads elsewhere, in place of plain
// files. Nothing of it is followed, stored or removed beyond the link itself.
func TestHostileOutput(t *testing.T) {
	s, c := start(t, nil)
	key := filepath.Join(s.Data, "master.key")
	treasure := filepath.Join(t.TempDir(), "treasure")
	if err := os.MkdirAll(treasure, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(treasure, "model.onnx"), []byte("not yours"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []struct {
		name, script string
		refused      bool // by what it leaves; else the job may end well
	}{
		{"a link to the key", `ln -s "$KEY" "$FALAJ_OUTPUT_DIR/key.txt"`, true},
		{"a link to a directory", `ln -s "$TREASURE" "$FALAJ_OUTPUT_DIR/files"`, true},
		{"a link deep inside", `mkdir -p "$FALAJ_OUTPUT_DIR/a/b"; ln -s ../../../../../../master.key "$FALAJ_OUTPUT_DIR/a/b/c"`, true},
		{"a link to nowhere", `ln -s /nowhere "$FALAJ_OUTPUT_DIR/x"`, true},
		{"the model is a link", `ln -s "$TREASURE" "$FALAJ_OUTPUT_DIR/model"`, true},
		{"the model's file is a link", `mkdir "$FALAJ_OUTPUT_DIR/model"; ln -s "$TREASURE/model.onnx" "$FALAJ_OUTPUT_DIR/model/model.onnx"`, true},
		{"a pipe", `mkfifo "$FALAJ_OUTPUT_DIR/pipe"`, true},
		{"links where it works", `ln -s "$TREASURE" work; ln -s "$TREASURE" "$FALAJ_SCRATCH_DIR/x"; ln -s "$TREASURE" "$TMPDIR/y"`, false},
		{"checkpoints are links", `ln -sfn "$TREASURE" "$FALAJ_CHECKPOINT_DIR/step-1"; ln -sfn "$TREASURE" "$FALAJ_CHECKPOINT_DIR/step-2.tmp"; ln -sfn "$TREASURE" "$FALAJ_CHECKPOINT_DIR/.x"; exit 75`, false},
	} {
		t.Run(a.name, func(t *testing.T) {
			job := submit(t, c, "leaver", map[string]any{
				"command": []string{"/bin/sh", "-ec", a.script}, "max_attempts": 2,
				"env": map[string]string{"KEY": key, "TREASURE": treasure},
			})
			o := ended(t, c, job)
			if a.refused && (o.Text("state") != "failed" || !strings.Contains(o.Text("reason"), "neither a plain file nor a directory") || o.Text("hint") == "") {
				t.Errorf("it ended as %v\n%s", o, logs(t, c, job))
			}
			if out := logs(t, c, job); out != "" {
				t.Error(out)
			}
			for _, artifact := range artifacts(t, c, o.Text("run_id"), "") {
				if !strings.HasPrefix(artifact, "logs/") {
					t.Errorf("stored: %s", artifact)
				}
			}
		})
	}
	if after, err := os.ReadFile(key); err != nil || !slices.Equal(before, after) {
		t.Errorf("the key was changed: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(treasure, "model.onnx")); err != nil || string(b) != "not yours" {
		t.Errorf("what a link led to was changed: %q %v", b, err)
	}
	// A job has ended before its place is cleared.
	(&live.Project{T: t, C: c}).Eventually("something is left behind", func() (bool, error) {
		left, err := filepath.Glob(filepath.Join(s.Data, "training", "*", "*"))
		return err == nil && len(left) == 0, fmt.Errorf("%v %w", left, err)
	})
	verify(t, s)
}

// artifacts lists the paths of a run's artifacts, by a token of the project
// because MLflow's routes cannot name one.
func artifacts(t *testing.T, c *client.Client, run, dir string) (paths []string) {
	t.Helper()
	var o struct {
		Files []struct {
			Path  string
			IsDir bool `json:"is_dir"`
		}
	}
	path := "/api/2.0/mlflow/artifacts/list?run_id=" + url.QueryEscape(run) + "&path=" + url.QueryEscape(dir)
	header := http.Header{"Falaj-Project": {project}}
	resp, err := c.Send(t.Context(), http.MethodGet, path, nil, header)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := client.Decode(resp.Body, &o); err != nil {
		t.Fatal(err)
	}
	for _, f := range o.Files {
		if f.IsDir {
			paths = append(paths, artifacts(t, c, run, f.Path)...)
			continue
		}
		paths = append(paths, f.Path)
	}
	return paths
}

// TestGreedyJob has jobs take all they can get. Their limits end them, the
// server answers meanwhile, and nothing of them is left.
func TestGreedyJob(t *testing.T) {
	s, c := start(t, nil)
	s.Mark = "GREEDY_" + id.New("x")
	program := source(t, c, map[string][]byte{"attacker": s.Bin.Program(t, "./test/attack/testdata/attacker")})
	for _, a := range []struct {
		mode    string
		classes []string
	}{
		{"fork", []string{"timeout", "out_of_memory", "user_error"}}, // whichever limit comes first
		{"memory", []string{"out_of_memory", "user_error"}},          // without cgroups the program learns that there is no more
	} {
		job := submit(t, c, a.mode, map[string]any{
			"command": []string{"./attacker", a.mode}, "source": program, "timeout": "5s", "grace": "1s", "max_attempts": 1,
			"env": map[string]string{"MARK": s.Mark}, "resources": map[string]any{"cpu": "0.2", "memory": "128MiB"},
		})
		eventually(t, func() string {
			if !strings.Contains(logs(t, c, job), "ing") {
				return a.mode + " does not begin"
			}
			return ""
		})
		if err := c.Do(t.Context(), http.MethodGet, "/api/v1/whoami", nil, nil); err != nil {
			t.Errorf("the server does not answer beside %s: %v", a.mode, err)
		}
		o := ended(t, c, job)
		out := logs(t, c, job)
		if o.Text("state") != "failed" || strings.Contains(out, "FAIL") || o.Text("reason") == "" {
			t.Errorf("%s ended as %v\n%s", a.mode, o, out)
		}
		if class := o.Text("class"); !slices.Contains(a.classes, class) {
			t.Errorf("%s ended by %s, not %v: %s", a.mode, class, a.classes, o.Text("reason"))
		}
		eventually(t, func() string {
			if left := s.Processes(); len(left) > 0 {
				return "left running: " + left[0].Line
			}
			return ""
		})
	}
}
