package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/falaj-ml/falaj/client"
)

// TestPatiently: who is away is asked again for a minute, is said to be away
// once, and what it answers is the answer.
func TestPatiently(t *testing.T) {
	t.Parallel()
	gone := &client.NoAnswerError{Err: io.EOF}
	for name, c := range map[string]struct {
		back time.Duration // when it answers
		with error
		code int
		said int
	}{
		"at once":         {0, nil, 0, 0},
		"refuses at once": {0, &client.Error{Status: 403, Kind: "permission_denied", Detail: "no"}, 3, 0},
		"a restart":       {30 * time.Second, nil, 0, 1},
		"then refuses":    {30 * time.Second, &client.Error{Status: 404, Kind: "not_found", Detail: "none"}, 4, 1},
		"a proxy's":       {time.Hour, &client.Error{Status: 502, Detail: "bad gateway"}, 6, 1},
		"never":           {time.Hour, nil, 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var said bytes.Buffer
				a := &app{World: World{Stderr: &said}}
				begin := time.Now()
				err := a.patiently(t.Context(), func(context.Context) error {
					if time.Since(begin) >= c.back {
						return c.with
					}
					if c.with != nil && c.back == time.Hour {
						return c.with
					}
					return gone
				})
				code := 0
				if err != nil {
					code = exitCode(err)
				}
				if code != c.code || strings.Count(said.String(), "waiting for it") != c.said {
					t.Errorf("exit code %d: %v\n%s", code, err, said.String())
				}
				if took := time.Since(begin); c.back == time.Hour && (took < patience || took > patience+10*time.Second) {
					t.Errorf("gave up after %s", took)
				}
			})
		})
	}
}

// TestInterrupted: who waits can be stopped.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	a := &app{World: World{Stderr: io.Discard}}
	err := a.patiently(ctx, func(context.Context) error {
		cancel()
		return &client.NoAnswerError{Err: io.EOF}
	})
	if err == nil {
		t.Error("it went on")
	}
}

// TestWaitsSayTheirPhase: on a pipe each phase that the server names is a line on standard
// error, once, and the request names the phase that was seen.
func TestWaitsSayTheirPhase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args    []string
		answers []string // state and phase
		out     string
		said    string
	}{
		"environment": {
			args:    []string{"env", "wait", "py"},
			answers: []string{"locking|locking its requirements", "building|installing 3 packages", "building|installing 3 packages", "ready|ready"},
			out:     "py is ready: Python 3.11.7, 3 packages, sha256:1\n", said: "locking its requirements\ninstalling 3 packages\n",
		},
		"job": {
			args:    []string{"job", "wait", "job_1"},
			answers: []string{"queued|pool home is full", "running|running on pool home", "succeeded|succeeded"},
			out:     "job_1 succeeded\n", said: "pool home is full\nrunning on pool home\n",
		},
		"server without phases": {
			args:    []string{"job", "wait", "job_1"},
			answers: []string{"queued|", "queued|", "succeeded|"},
			out:     "job_1 succeeded\n", said: "queued\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen := "-"
				if asked > 0 {
					_, last, _ := strings.Cut(c.answers[asked-1], "|")
					seen = first(last, "-")
				}
				if q := r.URL.Query(); q.Get("phase") != seen || q.Get("wait") == "" {
					t.Errorf("request %d: %s, want phase %q", asked, r.URL, seen)
				}
				state, phase, _ := strings.Cut(c.answers[asked], "|")
				asked++
				_ = json.NewEncoder(w).Encode(map[string]any{"state": state, "phase": phase, "python": "3.11.7", "packages": 3, "digest": "sha256:1"})
			}))
			defer server.Close()
			var out, said bytes.Buffer
			code := Run(t.Context(), World{Args: append(c.args, "-p", "nyc", "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
			if code != 0 || out.String() != c.out || said.String() != c.said || asked != len(c.answers) {
				t.Errorf("exit code %d after %d requests\n%s\nsaid\n%s", code, asked, out.String(), said.String())
			}
		})
	}
}

// TestRowsAreNotLeftOutInSilence: a table says that there are more rows, and what programs
// read has all rows or is an error, unless a limit was asked for.
func TestRowsAreNotLeftOutInSilence(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		code  int
		limit string
		said  string
	}{
		"":                   {0, "100", "use --limit for more, at most 10000"},
		"-o json":            {2, "10000", "the query returns more than 10000 rows"},
		"-o yaml":            {2, "10000", "the query returns more than 10000 rows"},
		"-o json --limit 1":  {0, "1", "use --limit for more"},
		"-o table --limit 1": {0, "1", "use --limit for more"},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body struct{ Limit json.Number }
				if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Limit.String() != want.limit {
					t.Errorf("limit %s, %v", body.Limit, err)
				}
				_, _ = io.WriteString(w, `{"columns":["a"],"rows":[[1]],"truncated":true}`)
			}))
			defer server.Close()
			var out, said bytes.Buffer
			line := append([]string{"dataset", "query", "SELECT 1", "-p", "nyc", "--server", server.URL}, strings.Fields(args)...)
			code := Run(t.Context(), World{Args: line, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
			if code != want.code || !strings.Contains(said.String(), want.said) || (code == 0) != (out.Len() > 0) {
				t.Errorf("exit code %d\n%s\n%s", code, out.String(), said.String())
			}
		})
	}
}

// flaky answers a log in pieces, each on a connection that breaks before its
// end, and breaks every other request off unanswered.
type flaky struct {
	log   string
	asked int
	t     *testing.T
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch {
	case r.URL.Query().Get("view") == "full":
		fmt.Fprint(w, `{"id":"job_1","tries":[{"number":1,"workers":1},{"number":2,"workers":2}]}`)
		return
	case q.Get("attempt") != "2" || q.Get("follow") != "true":
		f.t.Errorf("asked for %s", r.URL)
	}
	f.asked++
	offset, err := strconv.Atoi(q.Get("offset"))
	if err != nil || f.asked%2 == 0 {
		panic(http.ErrAbortHandler)
	}
	end := min(offset+7, len(f.log))
	_, _ = io.WriteString(w, f.log[offset:end])
	if end < len(f.log) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// TestFollowGoesOn: a followed log that breaks off goes on where it was, in the
// same attempt, whole or one worker's lines.
func TestFollowGoesOn(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":           "[0] one\n[1] two\n[0] three\n",
		"--worker=0": "one\nthree\n",
	} {
		f := &flaky{log: "[0] one\n[1] two\n[0] three\n", t: t}
		server := httptest.NewServer(f)
		defer server.Close()
		var out, said bytes.Buffer
		line := append([]string{"job", "logs", "job_1", "--follow", "-p", "nyc", "--server", server.URL}, strings.Fields(args)...)
		code := Run(t.Context(), World{Args: line, Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &said})
		if code != 0 || out.String() != want {
			t.Errorf("%s: exit code %d\n%s%s", args, code, out.String(), said.String())
		}
		if !strings.Contains(said.String(), "waiting for it") {
			t.Errorf("%s: nothing says that it waits: %s", args, said.String())
		}
	}
}

// TestNoSuchWorker: a worker that the attempt does not have is an error, and the
// lines of one that is alone have no mark.
func TestNoSuchWorker(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("view") == "full" {
			fmt.Fprint(w, `{"id":"job_1","tries":[{"number":1,"workers":1}]}`)
			return
		}
		fmt.Fprint(w, "alone\n")
	}))
	defer server.Close()
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--worker 5":  {4, "attempt 1 of job_1 has no worker 5: it has 1, counted from 0"},
		"--worker 0":  {0, "alone"},
		"--worker -2": {2, "workers count from 0"},
	} {
		var out bytes.Buffer
		code := Run(t.Context(), World{Args: append([]string{"job", "logs", "job_1", "-p", "nyc", "--server", server.URL}, strings.Fields(args)...), Env: []string{"FALAJ_TOKEN=x"}, Stdout: &out, Stderr: &out})
		if code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%s: exit code %d: %s", args, code, out.String())
		}
	}
}

// TestNoAnswerCode: nobody there is not what a failed job is; a server that
// cannot be spoken to is not waited for.
func TestNoAnswerCode(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for url, want := range map[string]int{gone.URL: 6, server.URL: 1} {
		var said bytes.Buffer
		if code := Run(t.Context(), World{Args: []string{"get", "jobs", "-p", "nyc", "--server", url}, Env: []string{"FALAJ_TOKEN=x"}, Stdout: io.Discard, Stderr: &said}); code != want {
			t.Errorf("%s: exit code %d, not %d: %s", url, code, want, said.String())
		}
	}
	if away(errors.New("x")) {
		t.Error("any error is taken for a server that is away")
	}
}

// TestTopNetwork: what is not known is no traffic of nothing.
func TestTopNetwork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{`{"no_network":true}`: "0.00  -  -  -  -  ", `{"network_in":2048}`: "2KiB/s  0B/s"} {
		var m shownWorker
		if err := json.Unmarshal([]byte(text), &m.Usage); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		a := &app{World: World{Stdout: &out}}
		a.sayTop(shownTop{Workers: []shownWorker{m}})
		if got := regexp.MustCompile(` {2,}`).ReplaceAllString(out.String(), "  "); !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
