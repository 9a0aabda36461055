// Package shares runs the real server with few files, and lets one tenant, or an
// address without a token, take all that there is: others are served all the same.
package shares

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const files = 512

// start starts a server that may open so many files.
func start(t *testing.T) *live.Server {
	t.Helper()
	s := live.New(t, "")
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", script, s.Bin.Falaj,
		"up", "--data", s.Data, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--flight", "127.0.0.1:0")
	if err := s.StartCommand(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	return s
}

// engineer makes a project with a dataset, and an engineer's token for it.
func engineer(t *testing.T, s *live.Server, project string) string {
	t.Helper()
	admin := s.Client(t)
	manifest := fmt.Sprintf("{api_version: falaj/v1, kind: Project, name: %[1]s}\n---\n{api_version: falaj/v1, kind: Dataset, name: rows, project: %[1]s, spec: {}}\n", project)
	if _, err := admin.Apply(t.Context(), "", []byte(manifest), false); err != nil {
		t.Fatal(err)
	}
	var token struct{ Secret string }
	if err := admin.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": project + "-engineer", "role": "engineer"}, &token); err != nil {
		t.Fatal(err)
	}
	return token.Secret
}

func query(ctx context.Context, c *client.Client, project, sql string) error {
	return c.Do(ctx, http.MethodPost, "/api/v1/projects/"+project+"/query", map[string]string{"sql": sql}, nil)
}

// used reads how much of a limit is in use, or waits for it.
func used(t *testing.T, c *client.Client, limit string) int {
	t.Helper()
	resp, err := c.Send(t.Context(), http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^falaj_share_(?:used|waiting)\{limit="`+limit+`"\} (\d+)$`).FindAllSubmatch(b, -1) {
		k, _ := strconv.Atoi(string(m[1]))
		n += k
	}
	return n
}

// until polls: the limit is taken by requests that nobody answers.
func until(t *testing.T, c *client.Client, limit string, least int) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(live.Wait); used(t, c, limit) < least; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d of %s are used or wait, want %d", used(t, c, limit), limit, least)
		}
	}
}

func TestOneTenantLeavesRoomForOthers(t *testing.T) {
	s := start(t)
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{}
	clients := map[string]*client.Client{}
	for _, project := range []string{"greedy", "quiet"} {
		secrets[project] = engineer(t, s, project)
		clients[project] = s.ClientWith(t, secrets[project])
	}
	admin, quiet := s.Client(t), clients["quiet"]

	t.Run("statements", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 8 {
			go func() {
				_ = query(ctx, clients["greedy"], "greedy", "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b")
			}()
		}
		until(t, admin, "sql_statements", 8)
		if err := query(t.Context(), quiet, "quiet", "SELECT 41 + 1 AS n"); err != nil {
			t.Error(err)
		}
	})

	t.Run("uploads", func(t *testing.T) {
		for range 8 {
			c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at.Host)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = fmt.Fprintf(c, "POST /api/v1/projects/greedy/datasets/rows/versions?filename=a.csv HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
				"Content-Type: application/octet-stream\r\nContent-Length: 100000000\r\n\r\na,b\n%s", at.Host, secrets["greedy"], strings.Repeat("1,2\n", 50_000))
		}
		until(t, admin, "imports", 8)
		if _, err := quiet.Import(t.Context(), "quiet", "rows", "a.csv", strings.NewReader("a,b\n1,2\n")); err != nil {
			t.Error(err)
		}
	})

	for name, ask := range map[string]string{
		"idle connections":       "GET /healthz HTTP/1.1\r\nHost: " + at.Host + "\r\n\r\n",
		"silent connections":     "",
		"half a header":          "GET /healthz HTTP/1.1\r\nX-",
		"bodies without a token": "POST /api/v1/apply HTTP/1.1\r\nHost: " + at.Host + "\r\nContent-Length: 100000\r\n\r\n{",
		"idle with a token":      "GET /api/v1/whoami HTTP/1.1\r\nHost: " + at.Host + "\r\nAuthorization: Bearer " + secrets["greedy"] + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: live.Wait}
			for range files + 200 {
				c, err := from.DialContext(t.Context(), "tcp", at.Host)
				if err != nil {
					continue
				}
				defer c.Close()
				_, _ = io.WriteString(c, ask) // it may be closed already
			}
			if err := query(t.Context(), s.ClientWith(t, secrets["quiet"]), "quiet", "SELECT 41 + 1 AS n"); err != nil {
				t.Errorf("on a new connection: %v", err)
			}
			if err := query(t.Context(), quiet, "quiet", "SELECT 41 + 1 AS n"); err != nil {
				t.Errorf("on an old connection: %v", err)
			}
		})
	}
}
