package jobs

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/identity/account"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training"
)

// attemptScopes is all that an attempt's token may do, beside reading the job's
// inputs, and reading and writing its tables.
var attemptScopes = []string{"project.read", "run.read", "run.write", "sweep.read", "sweep.write", "model.read", "model.write", "workload.work"}

// Tokens issues the tokens of attempts.
type Tokens struct{ Accounts *account.Service }

// IssueIn implements training.Tokens.
func (t Tokens) IssueIn(ctx context.Context, tx *store.Tx, j training.Job, attempt training.AttemptID, bound bool, ttl time.Duration) (string, error) {
	_, secret, err := t.Accounts.IssueAttemptIn(ctx, tx, account.AttemptSpec{
		Attempt: string(attempt), Name: string(j.ID), Project: j.Project, Behalf: submitter(j.Project, j.By.ID).ID, Bound: bound, Scopes: scopesOf(j), TTL: ttl,
	})
	return secret, err
}

// scopesOf is what the token of an attempt of j may.
func scopesOf(j training.Job) []string {
	scopes := slices.Clone(attemptScopes)
	add := func(name string, actions ...policy.Action) {
		for _, action := range actions {
			if scope := string(action) + ":" + name; !slices.Contains(scopes, scope) { // an input may have two names
				scopes = append(scopes, scope)
			}
		}
	}
	for _, in := range j.Inputs {
		if in.Dataset() == "" { // a model, of which the scope names this version
			if m := in.Model(); len(m) < 150 && !strings.ContainsAny(m, " \t\r\n:") { // what a scope can name
				add(m, registry.ActionRead)
			}
			continue
		}
		add(in.Dataset(), dataset.ActionRead, dataset.ActionQuery)
	}
	for _, name := range j.Spec.Tables {
		add(name, dataset.ActionRead, dataset.ActionQuery, dataset.ActionImport)
	}
	return scopes
}

// RevokeIn implements training.Tokens.
func (t Tokens) RevokeIn(ctx context.Context, tx *store.Tx, _ project.Name, attempt training.AttemptID) error {
	return t.Accounts.RevokeAttemptIn(ctx, tx, string(attempt))
}
