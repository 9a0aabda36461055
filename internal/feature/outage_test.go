package feature_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/online/pebble"
	"github.com/falaj-ml/falaj/internal/feature/online/redis"
	"github.com/falaj-ml/falaj/internal/feature/value"
)

// redisProcess is a Redis of a test on a socket of its own, which syncs.
type redisProcess struct {
	dir string
	cmd *exec.Cmd
}

func newRedis(t *testing.T) *redisProcess {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") == "true" { //nolint:forbidigo // The rule of every engine's tests.
			t.Fatal("redis-server is not installed")
		}
		t.Skip("redis-server is not installed; run: make engines")
	}
	dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // A socket's path must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &redisProcess{dir: dir}
	r.start(t)
	t.Cleanup(r.kill)
	return r
}

func (r *redisProcess) url() string { return "unix://" + filepath.Join(r.dir, "s") }

func (r *redisProcess) start(t *testing.T) {
	t.Helper()
	r.cmd = exec.Command("redis-server", "--port", "0", "--unixsocket", filepath.Join(r.dir, "s"), "--dir", r.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log, b := "", make([]byte, 4096)
	for !strings.Contains(log, "eady to accept connections") {
		n, err := out.Read(b)
		if err != nil {
			t.Fatalf("Redis does not start: %s", log)
		}
		log += string(b[:n])
	}
	go func() { // it must not wait for its log to be read
		for {
			if _, err := out.Read(b); err != nil {
				return
			}
		}
	}()
}

func (r *redisProcess) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill() // it may have ended
		_ = r.cmd.Wait()
	}
	r.cmd = nil
}

func redisServer(t *testing.T) (url string) {
	t.Helper()
	return newRedis(t).url()
}

// Reads go on while a view is materialised anew from other data: each answer is
// whole, of what was online before or after, never an error, and none goes back.
func TestServingGoesOn(t *testing.T) {
	for name, driver := range map[string]func(t *testing.T) online.Driver{
		"pebble": func(t *testing.T) online.Driver {
			t.Helper()
			d, err := pebble.Open(pebble.Config{Dir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		"redis": func(t *testing.T) online.Driver {
			t.Helper()
			d, err := redis.Open(t.Context(), redis.Config{URL: redisServer(t)})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := driver(t)
			t.Cleanup(func() { _ = d.Close() })
			w.driver = &spy{Driver: d}
			w.online = online.New(w.driver, w.keys, online.Options{Now: func() time.Time { return w.now }})
			w.configure(func(c *feature.Config) { c.Online = w.online })
			servingGoesOn(t, w)
		})
	}
}

func servingGoesOn(t *testing.T, w *world) {
	t.Helper()
	const entities, rounds = 40, 6
	put := func(round int) {
		rows := table{weatherCols, nil}
		for i := range entities {
			rows.rows = append(rows.rows, []value.Value{str(fmt.Sprintf("A%02d", i)), ts(1), num(float64(round)), num(float64(round))})
		}
		w.data.put("weather", rows)
	}
	put(1)
	w.entity("origin", "string")
	w.view("weather", weatherSpec)
	w.mustMaterialise("weather", at(2))

	var asked []map[string]any
	for i := range entities {
		asked = append(asked, map[string]any{"origin": fmt.Sprintf("A%02d", i)})
	}
	var done atomic.Bool
	var certain atomic.Int64 // the round that is certainly online
	certain.Store(1)
	var readers sync.WaitGroup
	reads := make([]int, 4)
	for n := range reads {
		readers.Go(func() {
			for !done.Load() || reads[n] == 0 {
				least := float64(certain.Load())
				a, err := w.Online(w.ctx, feature.OnlineRequest{Project: nyc, Selection: feature.Selection{Features: []string{"weather"}}, Entities: asked, AsOf: at(2)})
				if err != nil {
					t.Errorf("a read failed: %v", err)
					return
				}
				reads[n]++
				first := a.Columns[0].Values[0].Float()
				for _, c := range a.Columns {
					for i, v := range c.Values {
						if v.IsNull() || v.Float() != first || v.Float() < least {
							t.Errorf("entity %d has %s of %s, the first %v, and %v is online", i, v, c.Name, first, least)
							return
						}
					}
				}
			}
		})
	}
	for round := 2; round <= rounds; round++ {
		put(round)
		w.mustMaterialise("weather", at(2))
		certain.Store(int64(round))
	}
	done.Store(true)
	readers.Wait()
	for n, r := range reads {
		if r == 0 {
			t.Errorf("reader %d read nothing", n)
		}
	}
}
