package remote_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
)

// TestRestarts: a server that dies again and again, in the middle of everything,
// has the whole output, the checkpoints and the end.
func TestRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.spec(2, `
		i=0; while [ $i -lt 200 ]; do
			echo "line $i"; i=$((i+1))
			if [ $((i % 50)) = 0 ]; then mkdir "$SAVES/s$i.tmp"; echo "$i" >"$SAVES/s$i.tmp/$RANK"; mv "$SAVES/s$i.tmp" "$SAVES/s$i"; fi
			sleep 0.01
		done; echo out >"$OUT/$RANK"`)
	h := w.start(s)
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.eventually(func() bool {
			o, _ := w.p.Observe(w.ctx, []string{string(h)})
			return o[string(h)].State == engine.Ended
		})
	}()
	for restarts := 0; ; restarts++ {
		select {
		case <-over:
		case <-time.After(150 * time.Millisecond):
			w.close()
			w.open()
			if again := w.start(s); again != h {
				t.Fatalf("started again as %s", again)
			}
			continue
		}
		t.Logf("%d restarts", restarts)
		break
	}
	w.ok(w.wait(h))
	log := w.logs(h)
	for rank := range 2 {
		var want strings.Builder
		for i := range 200 {
			fmt.Fprintf(&want, "[%d] line %d\n", rank, i)
		}
		var got strings.Builder
		for line := range strings.Lines(log) {
			if strings.HasPrefix(line, fmt.Sprintf("[%d]", rank)) {
				got.WriteString(line)
			}
		}
		if got.String() != want.String() {
			t.Errorf("of worker %d: %d bytes of output, want %d", rank, got.Len(), want.Len())
		}
	}
	saves := w.files(filepath.Join(w.root, "checkpoints"))
	for _, i := range []string{"50", "100", "150", "200"} {
		if saves["s"+i+"/0"] != i+"\n" || saves["s"+i+"/1"] != i+"\n" {
			t.Errorf("checkpoint s%s is %q", i, saves)
		}
	}
	if out := w.files(filepath.Join(w.root, "output")); len(out) != 2 || len(saves) != 8 {
		t.Errorf("output %q, checkpoints %q", out, saves)
	}
}

// TestLongLine: a hundred megabytes without an end of line pass, up to the limit.
func TestLongLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *remote.Config) { c.LogLimit = 8 << 20 })
	h := w.start(w.spec(1, `head -c 100000000 /dev/zero | tr '\0' x; echo; echo end >&2`))
	w.ok(w.wait(h))
	log := w.logs(h)
	if len(log) < 8<<20 || len(log) > 8<<20+200 || !strings.Contains(log[8<<20:], "the log ends here") {
		t.Errorf("%d bytes, ends with %q", len(log), log[max(0, len(log)-100):])
	}
}

// TestAPI: the worker reaches Falaj at FALAJ_URL with a token of its own.
func TestAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	python, _ := pythonOf(t)
	s := w.spec(1, "")
	s.Network.API = true
	s.Env["FALAJ_TOKEN"] = "secret"
	s.Command = []string{python, "-c", `
import os, urllib.request, urllib.error
u = os.environ["FALAJ_URL"]
assert u == os.environ["MLFLOW_TRACKING_URI"] and u.startswith("http://127.0.0.1:")
r = urllib.request.Request(u + "/api/v1/projects/demo/workloads/x/worker/mounts/0?index=0", headers={"Authorization": "Bearer mine"})
try: urllib.request.urlopen(r)
except urllib.error.HTTPError as e: print(e.read().decode())
print([k for k in os.environ if "AGENT" in k])`}
	tokens := make(chan string, 1000)
	w.server.Before(func(r *http.Request) error {
		if strings.Contains(r.URL.Path, "/workloads/x/") {
			tokens <- "worker: " + r.Header.Get("Authorization")
		} else if strings.HasSuffix(r.URL.Path, "/join") {
			tokens <- "agent: " + r.Header.Get("Authorization")
		}
		return nil
	})
	h := w.start(s)
	w.ok(w.wait(h))
	if a, b := <-tokens, <-tokens; a != "agent: Bearer secret" || b != "worker: Bearer mine" {
		t.Errorf("%q %q", a, b)
	}
	if log := w.logs(h); !strings.Contains(log, `has no workload`) || !strings.Contains(log, "[]") {
		t.Errorf("log %q", log)
	}
}

// TestUsage: what a worker uses is known while it runs, and how it ended after.
func TestUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	python, _ := pythonOf(t)
	s := w.spec(1, "")
	enough := filepath.Join(t.TempDir(), "enough")
	s.Command = []string{python, "-c", `
import os, sys, time
x = bytearray(b"x") * 80_000_000
while not os.path.exists(sys.argv[1]) or time.process_time() < 0.5: pass
`, enough}
	h := w.start(s)
	w.eventually(func() bool {
		m, err := w.d.Members(w.ctx, h)
		return err == nil && m[0].State == engine.Running && m[0].Usage.Memory > 70_000_000 && m[0].Usage.CPU > 0.01 && m[0].CPU > 0 && !m[0].Heard.IsZero()
	})
	w.check(os.WriteFile(enough, nil, 0o600))
	st := w.wait(h)
	w.ok(st)
	if st.CPU < 400*time.Millisecond || st.PeakRSS < 70_000_000 {
		t.Errorf("%+v", st)
	}
	facts, err := w.d.Facts(w.ctx, h)
	w.check(err)
	if facts[0]["kernel"] == "" || facts[0]["arch"] == "" {
		t.Errorf("facts %q", facts)
	}
}

// TestOutOfMemory: a worker that is killed at its limit was out of memory.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	python, _ := pythonOf(t)
	s := w.spec(1, "")
	s.Resources.Memory = 64 << 20
	s.Command = []string{python, "-c", `
import os
x = bytearray(b"x") * 80_000_000
os.kill(os.getpid(), 9)  # as the kernel does
`}
	if st := w.run(s); st.Reason != engine.OutOfMemory || !strings.Contains(st.Message, "of 64 MiB") {
		t.Errorf("%+v", st)
	}
}

// TestCutStreams: what breaks off in the middle is fetched and sent again.
func TestCutStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	big := strings.Repeat("0123456789", 200_000)
	s := w.spec(1, `cat "$DATA/big" >"$OUT/copy"`)
	data := w.dir("data", map[string]string{"big": big})
	s.Env["DATA"] = data
	s.Mounts = append(s.Mounts, engine.Mount{Path: data})
	tries := 0
	w.server.Before(func(r *http.Request) error {
		switch {
		case r.Method == http.MethodPut && tries < 2:
			tries++
			_, _ = io.CopyN(io.Discard, r.Body, 100_000)
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodPut:
		}
		return nil
	})
	h := w.start(s)
	w.ok(w.wait(h))
	b, err := os.ReadFile(filepath.Join(w.root, "output", "copy"))
	if err != nil || string(b) != big || tries != 2 {
		t.Errorf("%d bytes after %d tries: %v", len(b), tries, err)
	}
}
