package training

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionRedact is that of erasing persons: what a job said of one goes.
const ActionRedact policy.Action = "erasure.apply"

// LogFiles changes what is kept of the output of attempts.
type LogFiles interface {
	// Rewrite gives change the content of each file below logs/ of a run, and stores what
	// it returns in its place, unless that is nil.
	Rewrite(ctx context.Context, p project.Name, run string, change func(content []byte) []byte) error
}

// outputs is an optional power of Compute.
type outputs interface {
	// DropOutput removes what an engine keeps of a workload that has ended. That there is
	// nothing is no error.
	DropOutput(ctx context.Context, id compute.WorkloadID) error
}

// RedactRequest asks for texts to be taken out of a job's script and logs.
type RedactRequest struct {
	Texts  []string
	Reason string // kept for ever, so it has none of the texts
	Dry    bool   // only says where they are
}

// Redacted is where texts were found.
type Redacted struct {
	Place string `json:"place" doc:"Location: script, attempts or logs"`
	Count int    `json:"count" doc:"Number of occurrences"`
}

// Limits of a request. A shorter text is in too many places.
const (
	maxRedacted  = 100
	leastRedact  = 3
	maxRedact    = 4 << 10
	maxRedReason = 2000
)

func (r RedactRequest) validate() error {
	switch {
	case len(r.Texts) == 0 || len(r.Texts) > maxRedacted:
		return fault.New(fault.Invalid, "a redaction takes 1 to %d texts, not %d", maxRedacted, len(r.Texts))
	case slices.ContainsFunc(r.Texts, func(t string) bool { return len(t) < leastRedact || len(t) > maxRedact }):
		return fault.New(fault.Invalid, "a text to redact has %d to %d bytes", leastRedact, maxRedact)
	case !r.Dry && strings.TrimSpace(r.Reason) == "":
		return fault.New(fault.Invalid, "a redaction needs a reason").WithHint("Refer to the request, such as \"request 2026-17\", not to the person.")
	case len(r.Reason) > maxRedReason:
		return fault.New(fault.Invalid, "the reason has %d bytes; the limit is %d", len(r.Reason), maxRedReason)
	case slices.ContainsFunc(r.Texts, func(t string) bool { return strings.Contains(r.Reason, t) }):
		return fault.New(fault.Invalid, "the reason contains a text to redact, and reasons are kept permanently").WithHint("Refer to the request instead, such as \"request 2026-17\".")
	}
	return nil
}

// Redact takes texts out of a job's script, command, parameters and environment
// variables, out of what its attempts quote, and out of its logs; each byte of them
// becomes an asterisk. The digests of what ran stay as they were. What an engine keeps of
// the output is removed: the log remains as an artifact of the run. Needs erasure.apply.
// Errors: fault.Conflict while the job has not ended; fault.Invalid.
func (s *Outputs) Redact(ctx context.Context, p project.Name, jid JobID, r RedactRequest) ([]Redacted, error) {
	if _, err := s.one(ctx, p, jid, ActionRedact); err != nil {
		return nil, err
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	j, err := s.job(ctx, jid)
	if err != nil {
		return nil, err
	}
	if !r.Dry && !j.State.Ended() {
		return nil, fault.New(fault.Conflict, "job %s has not ended", jid).WithHint("Wait until it has ended, or cancel it: falaj job cancel %s.", jid)
	}
	inLogs, attempts, err := s.redactLogs(ctx, j, r)
	if err != nil {
		return nil, err
	}
	out := []Redacted{{Place: "script"}, {Place: "attempts"}, {Place: "logs", Count: inLogs}}
	x := stars(r.Texts)
	if r.Dry {
		_, out[0].Count, err = x.job(j)
		for _, a := range attempts {
			if err == nil {
				var n int
				_, n, err = redactJSON(x, a)
				out[1].Count += n
			}
		}
		return out, err
	}
	return out, s.cfg.DB.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		out[0].Count, out[1].Count = 0, 0
		j, err := s.jobStore.Job(ctx, tx, jid)
		if err != nil {
			return err
		}
		attempts, err := s.attemptStore.Attempts(ctx, tx, jid)
		if err != nil {
			return err
		}
		for _, a := range attempts {
			b, n, err := redactJSON(x, a)
			if err != nil {
				return err
			}
			if out[1].Count += n; n > 0 {
				if err := s.attemptStore.UpdateAttempt(ctx, tx, b); err != nil {
					return err
				}
			}
		}
		if j, out[0].Count, err = x.job(j); err != nil {
			return err
		}
		if out[0].Count > 0 {
			if err := s.jobStore.UpdateJob(ctx, tx, j); err != nil {
				return err
			}
		}
		tx.Scrub("training_job")
		tx.Scrub("training_attempt")
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(p), Action: string(ActionRedact), Object: "job " + string(jid), Reason: r.Reason,
			Detail: map[string]any{"phase": "redacted", "texts": len(r.Texts), "script": out[0].Count, "attempts": out[1].Count, "logs": out[2].Count},
		})
	})
}

// redactLogs goes through the logs of a job's attempts.
func (s *Outputs) redactLogs(ctx context.Context, j Job, r RedactRequest) (n int, attempts []Attempt, err error) {
	if err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		attempts, err = s.attemptStore.Attempts(ctx, tx, j.ID)
		return err
	}); err != nil {
		return 0, nil, err
	}
	if s.cfg.LogFiles == nil {
		return 0, attempts, nil
	}
	x := stars(r.Texts)
	ctx = identity.With(ctx, identity.Loop("redaction"))
	for _, a := range attempts {
		if a.Run == "" {
			continue
		}
		if err := s.cfg.LogFiles.Rewrite(ctx, j.Project, a.Run, func(content []byte) []byte {
			found := x.in(content)
			if n += found; found == 0 || r.Dry {
				return nil
			}
			return content
		}); err != nil {
			return 0, nil, fault.Wrap(err, "the log of attempt %d", a.Number)
		}
		if o, ok := s.cfg.Compute.(outputs); ok && !r.Dry {
			if err := o.DropOutput(ctx, compute.WorkloadID(a.ID)); err != nil {
				return 0, nil, fault.Wrap(err, "the engine's output of attempt %d", a.Number)
			}
		}
	}
	return n, attempts, nil
}

// stars replaces texts by asterisks of the same length.
type stars []string

// in replaces them in place, and counts them.
func (x stars) in(content []byte) (n int) {
	for _, text := range x {
		for from := 0; ; {
			i := bytes.Index(content[from:], []byte(text))
			if i < 0 {
				break
			}
			at := content[from+i : from+i+len(text)]
			copy(at, bytes.Repeat([]byte("*"), len(text)))
			n, from = n+1, from+i+len(text)
		}
	}
	return n
}

func (x stars) text(s string) (string, int) {
	b := []byte(s)
	n := x.in(b)
	return string(b), n
}

// job is a job without the texts in what its submitter wrote and in why it ended.
func (x stars) job(j Job) (Job, int, error) {
	spec := j.Spec
	told := struct {
		Script       string
		Command      []string
		Env          map[string]string
		Params       Params
		Roles        []Role
		Reason, Hint string
	}{spec.Script, spec.Command, spec.Env, spec.Params, spec.Roles, j.Reason, j.Hint}
	told, n, err := redactJSON(x, told)
	if err != nil || n == 0 {
		return j, n, err
	}
	j.Spec.Script, j.Spec.Command, j.Spec.Env, j.Spec.Params, j.Spec.Roles = told.Script, told.Command, told.Env, told.Params, told.Roles
	j.Reason, j.Hint = told.Reason, told.Hint
	return j, n, nil
}

// redactJSON replaces texts in all texts of a value, at any depth; names of fields and
// keys of maps stay.
func redactJSON[T any](x stars, v T) (out T, n int, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return v, 0, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return v, 0, err
	}
	if tree, n = x.tree(tree); n == 0 {
		return v, 0, nil
	}
	if b, err = json.Marshal(tree); err != nil {
		return v, 0, err
	}
	return out, n, json.Unmarshal(b, &out)
}

func (x stars) tree(v any) (any, int) {
	n := 0
	switch v := v.(type) {
	case string:
		return x.text(v)
	case json.Number: // a parameter may be a person's number
		if slices.Contains(x, v.String()) {
			return json.Number("0"), 1
		}
	case []any:
		for i := range v {
			var m int
			v[i], m = x.tree(v[i])
			n += m
		}
	case map[string]any:
		for k := range v {
			var m int
			v[k], m = x.tree(v[k])
			n += m
		}
	}
	return v, n
}

// Texts are what the submitter of a job wrote, for a search.
func (j Job) Texts() string {
	told, err := json.Marshal([]any{j.Spec.Params, j.Spec.Roles})
	if err != nil {
		told = nil // parameters that do not marshal were refused
	}
	all := append([]string{j.Name, j.Spec.Experiment, j.Spec.Script, string(told), j.Reason}, j.Spec.Command...)
	for k, v := range j.Spec.Env {
		all = append(all, k, v)
	}
	return strings.Join(all, "\n")
}
