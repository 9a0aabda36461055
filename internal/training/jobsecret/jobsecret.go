// Package jobsecret gives secrets of a project to running attempts. A job's specification names
// them; the values are in no specification, event or log: the worker that starts the program
// fetches them.
package jobsecret

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/secrets"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/worker/secret"
)

// Ref names one value of a secret that a job gets.
type Ref struct {
	Secret string `json:"secret" doc:"Name of a secret of the project"`
	Key    string `json:"key,omitempty" doc:"Key of the secret; optional when it has only one"`
	File   bool   `json:"file,omitempty" doc:"Write the value into a file in memory that only the job can read; the variable contains its path"`
}

// Check refuses what names no secret. field is where it is, for people. Error: fault.Invalid.
func (r Ref) Check(field string) error {
	if err := id.CheckName(field+": secret", r.Secret); err != nil {
		return err
	}
	if r.Key != "" && !secrets.ValidKey(r.Key) {
		return fault.New(fault.Invalid, "%s: %.80q is not a valid key of a secret", field, r.Key)
	}
	return nil
}

// Vault opens named secrets. It is *secrets.Service.
type Vault interface {
	// Use checks that the context's principal may use a secret, and that it has the keys.
	Use(ctx context.Context, p, name string, keys ...string) error
	// Open reads all values of a secret.
	Open(ctx context.Context, p, name string) (map[string]secrets.Text, error)
}

// Job is the job of an attempt, with its references by variable.
type Job struct {
	ID      string
	Project project.Name
	Secrets map[string]Ref
}

// Opener opens the secrets of running attempts. Safe for concurrent use.
type Opener struct {
	DB    *store.DB
	Vault Vault
	// Job gives the job of an attempt. Errors: fault.NotFound when there is no such attempt;
	// fault.Conflict when it has ended.
	Job func(ctx context.Context, attempt string) (Job, error)
}

// Open opens the secrets of a running attempt, and records that. Only the attempt's
// own token may call it. Errors: fault.NotFound when there is no such attempt, or a
// secret or key was deleted since; fault.Conflict when the attempt has ended.
func (s *Opener) Open(ctx context.Context, attempt string) (secret.Set, error) {
	set := secret.Set{Variables: map[string]string{}, Files: map[string]string{}}
	j, err := s.Job(ctx, attempt)
	if err != nil || len(j.Secrets) == 0 {
		return set, err
	}
	opened := map[string]map[string]secrets.Text{}
	used := map[string][]string{}
	for _, variable := range slices.Sorted(maps.Keys(j.Secrets)) {
		ref := j.Secrets[variable]
		if opened[ref.Secret] == nil {
			if opened[ref.Secret], err = s.Vault.Open(ctx, string(j.Project), ref.Secret); err != nil {
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
	err = s.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
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
func (r Ref) pick(values map[string]secrets.Text) (value, key string, err error) {
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
