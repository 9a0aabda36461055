// Package starve sends the real server what makes parsers slow and answers large, all at
// once and by several principals, and checks that it stays within its memory and answers
// others.
package starve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/heavy"
	"github.com/falaj-ml/falaj/test/live"
)

const (
	project = "north"
	base    = "/api/v1/projects/" + project
	most    = 2500 << 20 // bytes of memory that the server may use
)

// TestStarve: none of the attacks ends the server or takes more than its memory, each is
// refused for what it is, and another principal is answered all the while.
func TestStarve(t *testing.T) {
	if testing.Short() {
		t.Skip("sends gigabytes")
	}
	s := live.New(t, "")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := s.Client(t)
	attacks, err := heavy.Requests(project)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Apply(t.Context(), "", []byte("{api_version: falaj/v1, kind: Project, name: "+project+"}\n"), false); err != nil {
		t.Fatal(err)
	}
	token := func(name string) string {
		var made client.Object
		if err := admin.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": name, "role": "engineer"}, &made); err != nil {
			t.Fatal(err)
		}
		return made.Text("secret")
	}
	send := func(ctx context.Context, token, method string, r heavy.Request) (status int, text string, err error) {
		q, err := http.NewRequestWithContext(ctx, method, s.URL+r.Path, bytes.NewReader(r.Body))
		if err != nil {
			return 0, "", err
		}
		q.Header.Set("Authorization", "Bearer "+token)
		if r.Encoding != "" {
			q.Header.Set("Content-Encoding", r.Encoding)
		}
		a, err := (&http.Client{Timeout: live.Wait}).Do(q)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = a.Body.Close() }()
		b, err := io.ReadAll(io.LimitReader(a.Body, 200))
		return a.StatusCode, string(b), err
	}

	// The attackers attack twice, and on while the other principal has few answers.
	const enough = 10
	var answers atomic.Int64
	var attackers sync.WaitGroup
	for i := range 3 {
		secret := token(fmt.Sprintf("attacker%d", i))
		for name, r := range attacks {
			attackers.Go(func() {
				for n := 0; n < 2 || answers.Load() < enough && !t.Failed(); n++ {
					status, text, err := send(t.Context(), secret, http.MethodPost, r)
					if err != nil {
						t.Logf("%s: %v", name, err) // the connection was ended before all was sent
						continue
					}
					if status < 400 || status == http.StatusInternalServerError {
						t.Errorf("%s: %d %s", name, status, text)
					}
				}
			})
		}
	}
	quiet := token("quiet")
	var over atomic.Bool
	var other sync.WaitGroup
	other.Go(func() {
		pace := time.NewTicker(20 * time.Millisecond) // the attackers are those that take the machine
		defer pace.Stop()
		for ; !over.Load(); answers.Add(1) {
			if status, text, err := send(t.Context(), quiet, http.MethodGet, heavy.Request{Path: base + "/datasets"}); err != nil || status != http.StatusOK {
				t.Errorf("another principal: %d %s, %v", status, text, err)
				return
			}
			<-pace.C
		}
	})
	attackers.Wait()
	over.Store(true)
	other.Wait()
	t.Logf("another principal was answered %d times", answers.Load())
	peak := peakOf(t, s.PID())
	t.Logf("at most %d MiB", peak>>20)
	if peak > most {
		t.Errorf("the server used %d MiB", peak>>20)
	}
	// All is given back.
	if status, text, err := send(t.Context(), quiet, http.MethodPost, heavy.Request{Path: base + "/query", Body: []byte(`{"sql":"SELECT 1"}`)}); err != nil || status != http.StatusOK {
		t.Errorf("a query afterwards: %d %s, %v", status, text, err)
	}
}

// peakOf is the most memory that a process has had, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
