// Package quota uses a deployment's quota up with the built binary, and kills the server
// in between.
package quota

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

func TestQuota(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Register("delay", p.Logistic())
	p.Apply("{api_version: falaj/v1, kind: Deployment, name: delay, project: PROJECT, spec: {model: delay, limits: {quota: {requests: 5, every: month}}}}")
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "app", "role": "engineer", "expires_in": "24h"}, &made))
	asker := &http.Client{Timeout: live.Wait}
	secret := made.Text("secret")

	ask := func(token string) (status int, again, text string) {
		t.Helper()
		body := `{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[4,3]}]}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/v2/models/delay/infer", bytes.NewReader([]byte(body)))
		p.Must(err)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := asker.Do(r)
		p.Must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		p.Must(err)
		return resp.StatusCode, resp.Header.Get("Retry-After"), string(b)
	}
	for range 3 {
		if status, _, text := ask(secret); status != http.StatusOK {
			t.Fatal(status, text)
		}
	}
	// The loop writes it down by itself; then the server is killed.
	var u struct {
		Usage []struct {
			User, Token    string
			Requests, Rows int
		}
		Resets time.Time
	}
	used := func() {
		t.Helper()
		p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("deployments/delay/usage"), nil, &u))
	}
	out := p.Run(0, "deploy", "usage", "delay")
	if !strings.Contains(out, "5 requests a month for each token") || !strings.Contains(out, "tok_") {
		t.Error(out)
	}
	p.Must(s.Kill())
	p.Again()
	p.Loaded()
	if used(); len(u.Usage) != 1 || u.Usage[0].Requests != 3 || u.Usage[0].Rows != 3 || u.Usage[0].Token == "" || u.Usage[0].User == "" {
		t.Errorf("used %+v", u)
	}
	for i, want := range []int{200, 200, 429, 429} {
		most := time.Until(u.Resets).Seconds()
		status, again, text := ask(secret)
		if status != want {
			t.Errorf("request %d after the kill: %d %s", i, status, text)
		}
		seconds, _ := strconv.Atoi(again)
		if left := time.Until(u.Resets).Seconds(); want == 429 && (float64(seconds) < left-1 || float64(seconds) > most+1 || !strings.Contains(text, "this token has used its quota of 5 requests per month")) {
			t.Errorf("again in %q, and the quota begins anew in %.0f s: %s", again, left, text)
		}
	}
	// An orderly end forgets nothing, though nobody asked for the usage.
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "other", "role": "engineer", "expires_in": "24h"}, &made))
	if status, _, text := ask(made.Text("secret")); status != http.StatusOK {
		t.Error(status, text)
	}
	p.Must(s.Stop())
	p.Again()
	p.Loaded()
	if used(); len(u.Usage) != 2 || u.Usage[0].Requests != 5 || u.Usage[1].Requests != 1 {
		t.Errorf("used %+v", u)
	}
}
