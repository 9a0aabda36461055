package replica

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Mode is the hidden mode of this binary that is a replica on another pool.
const Mode = "replica"

// Protocol is what the connection of a replica is upgraded to: the messages of
// serving/runtime/child, of a build of the same day.
const Protocol = "falaj-replica"

// callTime is how long a replica tries to reach its server.
const callTime = time.Minute

// Call asks the server for a connection, as the workload that the environment names.
func Call(ctx context.Context, env map[string]string) (io.ReadWriteCloser, error) {
	base, err := url.Parse(env["FALAJ_URL"])
	if err != nil || base.Host == "" {
		return nil, fault.New(fault.Invalid, "FALAJ_URL is %.100q, which is not a URL: replicas are started by their engine", env["FALAJ_URL"])
	}
	at := base.JoinPath("api/v1/projects", env["FALAJ_PROJECT"], "workloads", env["FALAJ_WORKLOAD"], "replica").String()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, ResponseHeaderTimeout: 30 * time.Second}}
	until := time.Now().Add(callTime)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		conn, err := callOnce(ctx, client, at, env["FALAJ_TOKEN"])
		if err == nil || !fault.Is(err, fault.Unavailable) || time.Now().Add(pause).After(until) {
			return conn, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

func callOnce(ctx context.Context, client *http.Client, at, token string) (io.ReadWriteCloser, error) {
	// The connection outlives the context: a replica that is to end says so over it.
	r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", Protocol)
	resp, err := client.Do(r)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "%w", err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode == http.StatusSwitchingProtocols && ok {
		return conn, nil
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	_ = resp.Body.Close()
	kind := fault.Conflict
	if resp.StatusCode >= http.StatusInternalServerError {
		kind = fault.Unavailable
	}
	return nil, fault.New(kind, "it returned %s: %s", resp.Status, strings.ToValidUTF8(string(said), "?"))
}
