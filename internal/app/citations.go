package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/deletion"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/monitoring/monitoringsql"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/serving/gateway/gatewaysql"
	"github.com/falaj-ml/falaj/internal/serving/servingsql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/trainingsql"
)

// What cites what, and what stays of it when it is deleted:
//
//	kind                    cited by                                   stays
//	dataset, its version    jobs, runs, models, training sets, views,  digest, schema, parents, whose
//	                        monitors, sources, versions made of it,    rows it had (dataset.Tombstone)
//	                        deployments of such models (in use)
//	model, its version      deployments (never deleted then)           its record, with all that it came from
//	run                     model versions (then prune keeps it)       all, until it is pruned
//	checkpoint              jobs that resume from it                   its digest, in the audit log
//	monitor                 its deployment                             its findings, in the audit log
//	deployment              monitors that people made, gateways        its predictions, until they expire
//	entity, view, service   never deleted
//	job, environment, pool  never deleted
//	source, sweep           nothing: what they made names itself
//	secret                  jobs and sources (never deleted then)
//	project                 whatever is in it (never deleted then)
//
// Datasets ask for themselves, because a tombstone is made in between; the rest is
// asked for here, before it is deleted.

// citing finds what cites an object of a kind that is deleted by a request.
var citing = map[string]struct {
	action policy.Action
	find   func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error)
}{
	"checkpoint": {"checkpoint.delete", func(ctx context.Context, tx *store.Tx, p project.Name, name string) (by []string, err error) {
		job, _, _ := strings.Cut(name, "/")
		word := fmt.Sprintf("%q:%q", "resume", name)
		return by, trainingsql.Store{}.Mentions(ctx, tx, p, strings.TrimSuffix(word, `"`), func(who, text string) {
			if who != "job "+job && strings.Contains(text, word) {
				by = append(by, who)
			}
		})
	}},
	"monitor": {"monitor.apply", func(ctx context.Context, tx *store.Tx, p project.Name, name string) ([]string, error) {
		m, err := monitoringsql.Store{}.One(ctx, tx, string(p), name)
		if err != nil {
			return nil, err
		}
		d, err := servingsql.Store{}.One(ctx, tx, string(p), m.Deployment)
		if unseen(err) {
			return nil, nil
		}
		return []string{"deployment " + d.Name}, err
	}},
	"deployment": {"deployment.apply", func(ctx context.Context, tx *store.Tx, p project.Name, name string) (by []string, err error) {
		for after := ""; ; {
			ms, err := monitoringsql.Store{}.List(ctx, tx, string(p), after, 500)
			if err != nil {
				return nil, err
			}
			for _, m := range ms {
				after = m.Name
				if m.Deployment == name && !m.Automatic {
					by = append(by, "monitor "+m.Name)
				}
			}
			if len(ms) < 500 {
				break
			}
		}
		for after := ""; ; {
			gs, err := gatewaysql.Store{}.List(ctx, tx, string(p), after, 500)
			if err != nil {
				return nil, err
			}
			for _, g := range gs {
				after = g.Name
				if slices.Contains(g.Spec.Deployments, name) {
					by = append(by, "gateway "+g.Name)
				}
			}
			if len(gs) < 500 {
				return by, nil
			}
		}
	}},
}

// deletions implements httpapi.Deletions.
type deletions struct{ a *App }

// Allow refuses to delete what something cites, unless the request says that it may go.
// Who may not delete it is not told what does: that is refused by its domain.
func (d deletions) Allow(ctx context.Context, p project.Name, kind, name string, r deletion.Request) error {
	may, err := d.a.authorizer.Permits(ctx, citing[kind].action, policy.Object{Project: string(p), Kind: kind, Name: name})
	if err != nil || !may {
		return err
	}
	var by []string
	err = d.a.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		by, err = citing[kind].find(ctx, tx, p, name)
		return err
	})
	if unseen(err) {
		return nil // its domain says so
	}
	if err != nil {
		return err
	}
	cited := make([]deletion.Citation, len(by))
	for i, b := range by {
		cited[i] = deletion.Citation{By: b, Of: name}
	}
	return r.Allow(kind+" "+name, cited)
}

// answersWith names the deployments that answer with a model version, which is written
// as "model delay@3".
func answersWith(ctx context.Context, tx *store.Tx, p project.Name, by string) ([]string, error) {
	model, ok := strings.CutPrefix(by, "model ")
	if !ok {
		return nil, nil
	}
	name, number, _ := registry.SplitRef(model)
	n, err := strconv.Atoi(number)
	if err != nil {
		return nil, nil //nolint:nilerr // it is another model's record
	}
	user, err := modelUsers(ctx, tx, p, name, n)
	if err != nil || user == "" {
		return nil, err
	}
	return []string{user}, nil
}

// runCited reports whether a model version came from a run.
func runCited(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error) {
	return registrysql.Store{}.FromRun(ctx, tx, p, run)
}

// pseudonyms implements dataset.Pseudonyms: who had rows in versions that are deleted is
// named as erasures name persons.
type pseudonyms struct{ a *App }

var _ dataset.Pseudonyms = pseudonyms{}

// Entities implements dataset.Pseudonyms.
func (n pseudonyms) Entities(ctx context.Context, p project.Name) (all []dataset.Person, err error) {
	ctx = identity.With(ctx, identity.Loop("erasure"))
	for after := ""; ; {
		entities, err := n.a.features.Entities(ctx, p, after, 500)
		if err != nil {
			return nil, err
		}
		for _, e := range entities {
			after = e.Name
			use, err := n.a.features.Use(ctx, p, e.Name)
			if err != nil {
				return nil, err
			}
			all = append(all, dataset.Person{Project: p, Entity: e.Name, Keys: use.Keys, Read: use.Read})
		}
		if len(entities) < 500 {
			return all, nil
		}
	}
}

// Of implements dataset.Pseudonyms.
func (n pseudonyms) Of(p project.Name, entity string, values []string) [sha256.Size]byte {
	return n.a.erasures.Pseudonym(string(p), entity, values)
}

// Erased implements dataset.Pseudonyms.
func (n pseudonyms) Erased(ctx context.Context, p project.Name) (map[string]map[[sha256.Size]byte]string, error) {
	gone, err := n.a.erasures.Gone(ctx, string(p))
	out := map[string]map[[sha256.Size]byte]string{}
	for _, g := range gone {
		if out[g.Subject.Entity] == nil {
			out[g.Subject.Entity] = map[[sha256.Size]byte]string{}
		}
		out[g.Subject.Entity][g.Subject.Pseudonym()] = string(g.Subject.Erasure)
	}
	return out, err
}

// Box implements dataset.Pseudonyms.
func (n pseudonyms) Box(ctx context.Context, p project.Name) (tink.AEAD, error) {
	return n.a.erasures.Box(ctx, string(p))
}
