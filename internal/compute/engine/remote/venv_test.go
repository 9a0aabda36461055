package remote_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// pythonOf is a Python of this machine, and its version.
func pythonOf(t *testing.T) (path, version string) {
	t.Helper()
	const path0 = "/usr/bin/python3"
	out, err := exec.CommandContext(t.Context(), path0, "-I", "-c", `import sys; print("%d.%d" % sys.version_info[:2])`).Output()
	if err != nil {
		t.Fatalf("this test needs Python: apt-get install python3: %v", err)
	}
	return path0, strings.TrimSpace(string(out))
}

// venv is an environment on the server that was made for an interpreter which no
// node has, as far as paths go.
func (w *world) venv(site map[string]string) (dir string, mount engine.Mount) {
	w.Helper()
	python, version := pythonOf(w.T)
	dir = filepath.Join(w.root, "env")
	out, err := exec.CommandContext(w.ctx, python, "-m", "venv", "--without-pip", "--system-site-packages", dir).CombinedOutput()
	if err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	bin := filepath.Join(dir, "bin")
	for _, name := range []string{"python", "python3"} { // as uv links its own interpreters
		w.check(os.Remove(filepath.Join(bin, name)))
		w.check(os.Symlink("/opt/not/there/bin/python"+version, filepath.Join(bin, name)))
	}
	cfg := "home = /opt/not/there/bin\nversion_info = " + version + ".99\ninclude-system-site-packages = true\n"
	w.check(os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte(cfg), 0o600))
	w.check(os.WriteFile(filepath.Join(bin, "tool"), []byte("#!"+bin+"/python\nimport sys, mine\nprint('tool in', sys.prefix, mine.x)\n"), 0o755))
	w.check(os.WriteFile(filepath.Join(dir, "lib", "python"+version, "site-packages", "mine.py"), []byte("x = 41 + 1\n"), 0o600))
	if site != nil {
		b, err := json.Marshal(map[string]any{"packages": site})
		w.check(err)
		w.check(os.WriteFile(filepath.Join(dir, ".falaj-site.json"), b, 0o600))
	}
	return dir, engine.Mount{Path: dir, Role: engine.Venv, Digest: "sha256:venv"}
}

// TestVenv: an environment works on a node with an interpreter of its own, and
// is fetched once.
func TestVenv(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	dir, mount := w.venv(nil)
	for range 2 {
		s := w.spec(1, "")
		s.Command = []string{dir + "/bin/tool"}
		s.Env["PATH"] = dir + "/bin:/usr/bin:/bin"
		s.Mounts = append(s.Mounts, mount)
		h := w.start(s)
		w.ok(w.wait(h))
		log := w.logs(h)
		if !strings.HasPrefix(log, "tool in "+w.nodes) || !strings.HasSuffix(log, " 42\n") {
			t.Errorf("log %q", log)
		}
		w.check(os.RemoveAll(filepath.Join(dir, "bin"))) // the second has it from the node
	}
}

// TestVenvOfOtherPackages: a node whose interpreter has other packages than the
// environment was checked with does not start the worker, and says why.
func TestVenvOfOtherPackages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	dir, mount := w.venv(map[string]string{"torch": "99.9", "No_Such.Package": "1.0"})
	s := w.spec(1, "")
	s.Command = []string{dir + "/bin/tool"}
	s.Mounts = append(s.Mounts, mount)
	st := w.run(s)
	if st.Reason != engine.NotStarted || !strings.Contains(st.Message, "No_Such.Package 1.0 is missing") || !strings.Contains(st.Message, "torch") {
		t.Errorf("%+v", st)
	}
}

// TestVenvWithoutPython: a version that the node has not.
func TestVenvWithoutPython(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	dir, mount := w.venv(nil)
	w.check(os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte("home = /opt\nversion = 3.2.1\n"), 0o600))
	s := w.spec(1, "")
	s.Command = []string{dir + "/bin/tool"}
	s.Mounts = append(s.Mounts, mount)
	if st := w.run(s); st.Reason != engine.NotStarted || !strings.Contains(st.Message, "this node has no Python 3.2") {
		t.Errorf("%+v", st)
	}
}

// TestInterpreterComesAlong: where the node has no Python of the version, the
// server's comes along.
func TestInterpreterComesAlong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	dir, mount := w.venv(nil)
	// A Python of a version that nobody has, which is a script.
	w.check(os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte("home = /opt\nversion = 3.99.1\n"), 0o600))
	fake := "#!/bin/sh\nif [ \"$1\" = -I ]; then echo 3.99; echo \"$0\"; else echo fake \"$0\"; fi\n"
	prefix := w.dir("python", map[string]string{"bin/python3.99": fake})
	w.check(os.Chmod(filepath.Join(prefix, "bin", "python3.99"), 0o755))
	s := w.spec(1, "")
	s.Command = []string{dir + "/bin/python", "x"}
	s.Mounts = append(s.Mounts, mount, engine.Mount{Path: prefix, Role: engine.Interpreter})
	h := w.start(s)
	w.ok(w.wait(h))
	if log := w.logs(h); !strings.HasPrefix(log, "fake "+w.nodes) {
		t.Errorf("log %q", log)
	}
}
