package training

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/secret"
)

// maxJobSecrets is how many secrets a job may name.
const maxJobSecrets = 64

// SecretRef names one value of a secret that a job gets. The value itself is in no
// specification, event or log: the worker that starts the program fetches it.
type SecretRef struct {
	Secret string `json:"secret" doc:"Name of a secret of the project"`
	Key    string `json:"key,omitempty" doc:"Key of the secret; optional when it has only one"`
	File   bool   `json:"file,omitempty" doc:"Write the value into a file in memory that only the job can read; the variable contains its path"`
}

// Secrets opens named secrets. It is *secrets.Service.
type Secrets interface {
	// Use checks that the context's principal may use a secret, and that it has the keys.
	Use(ctx context.Context, p, name string, keys ...string) error
	// Open reads all values of a secret.
	Open(ctx context.Context, p, name string) (map[string]secrets.Text, error)
}

func (s Spec) validSecrets() error {
	if len(s.Secrets) > maxJobSecrets {
		return fault.New(fault.Invalid, "spec.secrets: a job has at most %d secrets, not %d", maxJobSecrets, len(s.Secrets))
	}
	for _, variable := range slices.Sorted(maps.Keys(s.Secrets)) {
		if err := validEnv(map[string]string{variable: ""}); err != nil {
			return fault.Wrap(err, "spec.secrets")
		}
		if _, twice := s.Env[variable]; twice {
			return fault.New(fault.Invalid, "spec.secrets.%s: duplicate of a variable in spec.env", variable).WithHint("Remove it from spec.env.")
		}
		ref := s.Secrets[variable]
		if err := id.CheckName("spec.secrets."+variable+": secret", ref.Secret); err != nil {
			return err
		}
		if ref.Key != "" && !secrets.ValidKey(ref.Key) {
			return fault.New(fault.Invalid, "spec.secrets.%s: %.80q is not a valid key of a secret", variable, ref.Key)
		}
	}
	return nil
}

// Secrets opens the secrets of a running attempt, and records that. Only the attempt's
// own token may call it. Errors: fault.NotFound when there is no such attempt, or a
// secret or key was deleted since; fault.Conflict when the attempt has ended.
func (s *Execution) Secrets(ctx context.Context, attempt AttemptID) (secret.Set, error) {
	set := secret.Set{Variables: map[string]string{}, Files: map[string]string{}}
	var j Job
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, attempt)
		if err != nil {
			return err
		}
		if a.State == AttemptEnded {
			return fault.New(fault.Conflict, "attempt %s has ended", attempt)
		}
		j, err = s.jobStore.Job(ctx, tx, a.Job)
		return err
	})
	if err != nil || len(j.Spec.Secrets) == 0 {
		return set, err
	}
	opened := map[string]map[string]secrets.Text{}
	used := map[string][]string{}
	for _, variable := range slices.Sorted(maps.Keys(j.Spec.Secrets)) {
		ref := j.Spec.Secrets[variable]
		if opened[ref.Secret] == nil {
			if opened[ref.Secret], err = s.cfg.Secrets.Open(ctx, string(j.Project), ref.Secret); err != nil {
				return secret.Set{}, fault.Wrap(err, "spec.secrets.%s", variable)
			}
		}
		value, key, err := ref.pick(opened[ref.Secret])
		switch {
		case err != nil:
			return secret.Set{}, fault.Wrap(err, "spec.secrets.%s", variable)
		case ref.File:
			set.Files[variable] = value
		case strings.ContainsRune(value, 0):
			return secret.Set{}, fault.New(fault.Invalid, "spec.secrets.%s: the value contains a zero byte, which environment variables do not allow", variable).
				WithHint("Set file: true.")
		default:
			set.Variables[variable] = value
		}
		used[ref.Secret] = append(used[ref.Secret], key)
	}
	err = s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		for _, name := range slices.Sorted(maps.Keys(used)) {
			err := audit.Append(ctx, tx, audit.Entry{
				Project: string(j.Project), Action: string(secrets.ActionUse), Object: "secret " + name,
				Detail: map[string]any{"job": j.ID, "attempt": attempt, "keys": used[name]},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return set, err
}

// pick is the value that a reference names, and its key.
func (r SecretRef) pick(values map[string]secrets.Text) (value, key string, err error) {
	key = r.Key
	if key == "" && len(values) == 1 {
		key = slices.Collect(maps.Keys(values))[0]
	}
	v, found := values[key]
	if !found {
		return "", "", fault.New(fault.NotFound, "secret %s has no key %q", r.Secret, key)
	}
	return v.Reveal(), key, nil
}
