// Package secret brings a job's named secrets into its processes, and keeps their
// values out of its log. Standard library only.
//
// The worker that starts a job's program fetches the secrets with the attempt's own
// token, from Falaj itself, just before the start. So no specification, no file of the
// server and no engine (Slurm, Kubernetes, Ray) ever holds a value.
//
//   - Fetch asks the server.
//   - Place sets the variables, and writes the files into memory.
//   - Mask replaces known values in a stream.
package secret

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Set is what the server answers: values by the variable that the job's
// specification names.
type Set struct {
	Variables map[string]string `json:"variables,omitempty"` // the variable has the value
	Files     map[string]string `json:"files,omitempty"`     // the variable has the path of a file with the value
}

// Values are all values of the set.
func (s Set) Values() []string {
	return slices.Concat(slices.Collect(maps.Values(s.Variables)), slices.Collect(maps.Values(s.Files)))
}

const (
	maxAnswer = 8 << 20
	patience  = 2 * time.Minute // for a server that restarts meanwhile
)

// Fetch asks the server for the secrets of an attempt, and repeats that while the
// server is away. environ has FALAJ_URL, FALAJ_TOKEN, FALAJ_PROJECT and FALAJ_ATTEMPT.
func Fetch(ctx context.Context, environ map[string]string) (Set, error) {
	for _, name := range []string{"FALAJ_URL", "FALAJ_TOKEN", "FALAJ_PROJECT", "FALAJ_ATTEMPT"} {
		if environ[name] == "" {
			return Set{}, fault.New(fault.Invalid, "fetching the job's secrets: %s is not set", name)
		}
	}
	at, err := url.JoinPath(environ["FALAJ_URL"], "api/v1/projects", url.PathEscape(environ["FALAJ_PROJECT"]), "workloads", url.PathEscape(environ["FALAJ_ATTEMPT"]), "worker/secrets")
	if err != nil {
		return Set{}, fault.New(fault.Invalid, "fetching the job's secrets: FALAJ_URL is not an address")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := &http.Client{Timeout: 30 * time.Second}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		set, again, err := fetch(ctx, client, at, environ["FALAJ_TOKEN"])
		if err == nil || !again {
			return set, fault.Wrap(err, "fetching the job's secrets")
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return Set{}, fault.Wrap(err, "fetching the job's secrets")
		case <-timer.C:
		}
	}
}

// fetch asks once; again says that another try may succeed.
func fetch(ctx context.Context, client *http.Client, at, token string) (set Set, again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return set, false, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(r)
	if err != nil {
		return set, true, fault.New(fault.Unavailable, "%w", err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return set, true, fault.New(fault.Unavailable, "reading the answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		var problem struct {
			Detail string `json:"detail"`
			Hint   string `json:"hint"`
		}
		_ = json.Unmarshal(b, &problem)
		if problem.Detail == "" {
			problem.Detail = "the server answered " + answer.Status
		}
		again = answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests
		return set, again, fault.New(fault.Unavailable, "%s", problem.Detail).WithHint("%s", problem.Hint)
	}
	if json.Unmarshal(b, &set) != nil {
		return set, false, fault.New(fault.Internal, "the answer is not JSON")
	}
	return set, false, nil
}

// memory is where files are written: a file system in memory, private to each sandbox.
const memory = "/dev/shm"

// Place sets the variables in env, and writes the files, readable by their owner only,
// into a new directory in memory. remove deletes the directory; call it when the job's
// processes have ended.
func (s Set) Place(env map[string]string) (remove func(), err error) {
	return s.place(env, memory)
}

func (s Set) place(env map[string]string, dir string) (remove func(), err error) {
	maps.Copy(env, s.Variables)
	remove = func() {}
	if len(s.Files) == 0 {
		return remove, nil
	}
	root, err := os.MkdirTemp(dir, "falaj-secrets-")
	if err != nil {
		return remove, fmt.Errorf("making the directory of the job's secrets: %w", err)
	}
	remove = func() { _ = os.RemoveAll(root) }
	for name, value := range s.Files {
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, []byte(value), 0o400); err != nil {
			remove()
			return func() {}, fmt.Errorf("writing the job's secret %s: %w", name, errors.Unwrap(err))
		}
		env[name] = path
	}
	return remove, nil
}
