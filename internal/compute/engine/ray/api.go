package ray

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

const maxAnswer = 256 << 20

// submission is the body of POST /api/jobs/.
type submission struct {
	Entrypoint  string            `json:"entrypoint"`
	ID          string            `json:"submission_id"`
	Environment environment       `json:"runtime_env"`
	Metadata    map[string]string `json:"metadata"`
}

type environment struct {
	WorkingDir string `json:"working_dir"`
}

// job is what Ray says of one.
type job struct {
	Type      string            `json:"type"`
	ID        string            `json:"submission_id"`
	Status    string            `json:"status"`
	Message   string            `json:"message"`
	ErrorType string            `json:"error_type"`
	Start     int64             `json:"start_time"` // milliseconds
	End       int64             `json:"end_time"`
	Metadata  map[string]string `json:"metadata"`
}

// over reports whether Ray does no more with the job.
func (j job) over() bool {
	return j.Status == "SUCCEEDED" || j.Status == "FAILED" || j.Status == "STOPPED"
}

func (j job) ours(mark string) bool { return j.ID != "" && j.Metadata[metaKey] == mark }

func (l *Launcher) job(ctx context.Context, id string) (j job, err error) {
	err = l.call(ctx, http.MethodGet, "/api/jobs/"+url.PathEscape(id), nil, &j)
	return j, err
}

func (l *Launcher) jobs(ctx context.Context) (all []job, err error) {
	if err := l.call(ctx, http.MethodGet, "/api/jobs/", nil, &all); err != nil {
		return nil, fault.Wrap(err, "listing Ray's jobs")
	}
	l.ghosts(ctx, all)
	return all, nil
}

// state asks Ray's state API for objects of a kind.
func state[T any](ctx context.Context, l *Launcher, kind string, filter url.Values) ([]T, error) {
	if filter == nil {
		filter = url.Values{}
	}
	filter.Set("detail", "1")
	filter.Set("limit", "10000") // the most that Ray gives
	var answer struct {
		Result  bool   `json:"result"`
		Message string `json:"msg"`
		Data    struct {
			Result struct {
				Result []T `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := l.call(ctx, http.MethodGet, "/api/v0/"+kind+"?"+filter.Encode(), nil, &answer); err != nil {
		return nil, fault.Wrap(err, "listing Ray's %s", kind)
	}
	if !answer.Result {
		return nil, fault.New(fault.Unavailable, "Ray does not list its %s: %.300s", kind, answer.Message)
	}
	return answer.Data.Result.Result, nil
}

// call makes one call. A []byte body is sent as it is, another as JSON.
//
// Errors: fault.NotFound; fault.PermissionDenied when the token is wrong or
// missing; fault.Invalid for what Ray refuses; fault.Unavailable.
func (l *Launcher) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	kind := "application/octet-stream"
	switch v := in.(type) {
	case nil:
	case []byte:
		body = bytes.NewReader(v)
	default:
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		body, kind = bytes.NewReader(b), "application/json"
	}
	r, err := http.NewRequestWithContext(ctx, method, l.base.String()+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	if l.c.TokenFile != "" {
		token, err := os.ReadFile(l.c.TokenFile)
		if err != nil {
			return fault.New(fault.Unavailable, "reading Ray's token: %w", err)
		}
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	answer, err := l.c.Client.Do(r)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			return err
		}
		return fault.New(fault.Unavailable, "Ray's Jobs API does not respond: %w", err).WithHint("Check that the head node runs and its dashboard listens at %s.", l.base)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return fault.New(fault.Unavailable, "Ray's response was interrupted: %w", err)
	}
	text := strings.TrimSpace(string(b[:min(len(b), 2000)]))
	switch code := answer.StatusCode; {
	case code < 300:
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(b, out); err != nil {
			return fault.New(fault.Unavailable, "Ray's response is invalid: %w", err)
		}
		return nil
	case code == http.StatusNotFound || strings.Contains(text, "does not exist"):
		return fault.New(fault.NotFound, "Ray did not find it: %s", text)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fault.New(fault.PermissionDenied, "Ray denies access: %d %s", code, text).
			WithHint("Set token_file of the engine to a file with the cluster's token.")
	case code < 500:
		return fault.New(fault.Invalid, "Ray refuses: %d %s", code, text)
	default:
		return fault.New(fault.Unavailable, "Ray answers %d: %s", code, text)
	}
}
