package httpapi

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/project/tenancy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/governance/residency/border"
	"github.com/falaj-ml/falaj/internal/httpapi/manifest"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/share"
)

// applied is what became of one document.
type applied struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Project string `json:"project,omitempty"`
	Result  string `json:"result"` // created, updated, unchanged
	ID      string `json:"id,omitempty"`
	Version int64  `json:"version,omitempty"`

	Warnings []string `json:"warnings,omitempty"` // what may not be meant so
}

// applier is how one kind of manifest is applied.
type applier struct {
	gate         policy.Action
	installation bool // not in a project
	// wide says, for a kind that may be either, that this one is not in a project;
	// nil never is.
	wide  func(d manifest.Document) bool
	apply func(d manifest.Document) (effect, error)
	// show gives the name and the specification of an object that there is: applied, they
	// change nothing. The service asks for the permission to read it.
	show func(ctx context.Context, project, name string) (called string, spec any, err error)
}

// effect applies a document whose spec was read.
type effect func(ctx context.Context, project string, dryRun bool) (applied, error)

// decoded applies a manifest whose spec is a T.
func decoded[T any](f func(ctx context.Context, project, name string, spec T, dryRun bool) (applied, error)) func(manifest.Document) (effect, error) {
	return func(d manifest.Document) (effect, error) {
		if d.IfRevision != 0 {
			return nil, fault.New(fault.Unsupported, "If-Match is not supported for kind %s", d.Kind)
		}
		return decodedAt(func(ctx context.Context, project, name string, spec T, dryRun bool, _ int64) (applied, error) {
			return f(ctx, project, name, spec, dryRun)
		})(d)
	}
}

// decodedAt is decoded for kinds that can be applied to one revision only.
func decodedAt[T any](f func(ctx context.Context, project, name string, spec T, dryRun bool, revision int64) (applied, error)) func(manifest.Document) (effect, error) {
	return func(d manifest.Document) (effect, error) {
		var spec T
		if err := d.Into(&spec); err != nil {
			return nil, err
		}
		return func(ctx context.Context, project string, dryRun bool) (applied, error) {
			return f(ctx, project, d.Name, spec, dryRun, d.IfRevision)
		}, nil
	}
}

// ifMatch is the revision that a request asks for, 0 when it asks for none.
func ifMatch(r *http.Request) (int64, error) {
	tag := r.Header.Get("If-Match")
	if tag == "" || tag == "*" {
		return 0, nil
	}
	text, err := strconv.Unquote(tag)
	if err == nil && strings.HasPrefix(tag, `"`) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
			return n, nil
		}
	}
	return 0, fault.New(fault.Invalid, "If-Match: %.40q is not an ETag of Falaj", tag).WithHint("Send the ETag header of a GET response, including its quotes.")
}

// appliers is the one list of the kinds of manifests.
func (s *Server) appliers() map[string]applier {
	if s.central != "" {
		kinds := s.governanceKinds()
		delete(kinds, "Secret") // nothing at a gateway uses one
		return kinds
	}
	kinds := map[string]applier{
		"Project": {gate: "project.read", installation: true, apply: decodedAt(func(ctx context.Context, _, name string, spec project.Spec, dry bool, revision int64) (applied, error) {
			_, change, err := s.Projects.Apply(ctx, tenancy.Request{Name: project.Name(name), Spec: spec, DryRun: dry, IfRevision: revision})
			return applied{Result: string(change)}, err
		}), show: func(ctx context.Context, _, name string) (string, any, error) {
			p, err := s.Projects.One(ctx, project.Name(name))
			return name, p.Spec(), err
		}},
		"Zone": {gate: "zone.apply", installation: true, apply: decoded(func(ctx context.Context, _, name string, spec residency.ZoneSpec, dry bool) (applied, error) {
			_, change, err := s.Zones.Apply(ctx, border.ZoneRequest{Zone: residency.Zone(name), Spec: spec, DryRun: dry})
			return applied{Result: string(change)}, err
		}), show: s.showZone},
		"Pool": {gate: "pool.apply", installation: true, apply: decoded(func(ctx context.Context, _, name string, spec compute.PoolSpec, dry bool) (applied, error) {
			apply := s.Compute.Pools.ApplyPool
			if dry {
				apply = s.Compute.Pools.PlanPool
			}
			_, change, err := apply(ctx, compute.PoolName(name), spec)
			if err != nil {
				return applied{}, err
			}
			return applied{Result: string(change), Warnings: s.Compute.Pools.WarnUnknownPoolAccelerators(ctx, compute.PoolName(name), spec)}, nil
		}), show: func(ctx context.Context, _, name string) (string, any, error) {
			p, err := s.Compute.Pools.Pool(ctx, compute.PoolName(name))
			return name, p.Spec(), err
		}},
		"Queue": {gate: "queue.apply", installation: true, apply: decoded(func(ctx context.Context, _, name string, spec compute.QueueSpec, dry bool) (applied, error) {
			apply := s.Compute.Queues.ApplyQueue
			if dry {
				apply = s.Compute.Queues.PlanQueue
			}
			_, change, err := apply(ctx, name, spec)
			if err != nil {
				return applied{}, err
			}
			return applied{Result: string(change), Warnings: s.Compute.Pools.WarnUnknownAccelerators(ctx, spec.Amounts()...)}, nil
		}), show: func(ctx context.Context, _, name string) (string, any, error) {
			q, err := s.Compute.Queues.Queue(ctx, name)
			return name, q.QueueSpec, err
		}},
		"Budget": {gate: "budget.apply", installation: true, apply: decoded(func(ctx context.Context, _, name string, spec compute.BudgetSpec, dry bool) (applied, error) {
			apply := s.Compute.Costs.ApplyBudget
			if dry {
				apply = s.Compute.Costs.PlanBudget
			}
			_, change, err := apply(ctx, project.Name(name), spec)
			return applied{Result: string(change)}, err
		}), show: func(ctx context.Context, _, name string) (string, any, error) {
			b, err := s.Compute.Costs.Budget(ctx, project.Name(name))
			return name, b.BudgetSpec, err
		}},
		"Dataset": {gate: "dataset.import", apply: decodedAt(func(ctx context.Context, p, name string, spec dataset.Spec, dry bool, revision int64) (applied, error) {
			unchecked, err := s.Datasets.Transforms.CheckTransform(ctx, project.Name(p), name, spec)
			if err != nil {
				return applied{}, err
			}
			d, change, err := s.Datasets.Definitions.Apply(ctx, dataset.ApplyRequest{Project: project.Name(p), Name: name, Spec: spec, DryRun: dry, IfRevision: revision})
			if err != nil {
				return applied{}, err
			}
			warnings, err := s.Datasets.Definitions.Elsewhere(ctx, project.Name(p), spec)
			if unchecked != "" {
				warnings = append(warnings, unchecked)
			}
			return applied{Result: string(change), ID: string(d.ID), Warnings: warnings}, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			d, err := s.Datasets.Definitions.One(ctx, project.Name(p), name)
			return d.Name, d.Spec, err
		}},
		"Deployment": {gate: "deployment.apply", apply: decoded(func(ctx context.Context, p, name string, spec serving.Spec, dry bool) (applied, error) {
			d, changed, err := s.Serving.Deployments.Apply(ctx, p, name, spec, dry)
			a := applied{Result: string(project.Unchanged), ID: string(d.ID)}
			switch {
			case changed && d.Revision > 1:
				a.Result = string(project.Updated)
			case changed:
				a.Result = string(project.Created)
			}
			return a, err
		}), show: func(ctx context.Context, p, name string) (string, any, error) {
			d, err := s.Serving.Deployments.One(ctx, p, name)
			return d.Name, d.Spec, err
		}},
	}
	maps.Copy(kinds, s.governanceKinds())
	maps.Copy(kinds, s.sourceKinds())
	maps.Copy(kinds, s.featureKinds())
	maps.Copy(kinds, s.trainingKinds())
	maps.Copy(kinds, s.sweepKinds())
	maps.Copy(kinds, s.monitoringKinds())
	kinds["Gateway"] = s.gatewayKind()
	kinds["ModelPolicy"] = s.modelPolicyKind()
	return kinds
}

// apply reads manifests, all of them first, and applies them in order; it stops
// at the first that is refused and says how far it came. Each document's project is its own, the
// request's, or the token's.
func (s *Server) apply(w http.ResponseWriter, r *http.Request) {
	kinds := s.appliers()
	if err := s.mayApply(r, kinds); err != nil {
		s.fail(w, r, err)
		return
	}
	docs, err := manifests(r, kinds)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	revision, err := ifMatch(r)
	if err == nil && revision != 0 && len(docs) != 1 {
		err = fault.New(fault.Invalid, "If-Match supports one document, the request has %d", len(docs))
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	dryRun := r.URL.Query().Get("dry_run") == "true"
	effects := make([]effect, len(docs))
	for i, d := range docs {
		d.IfRevision = revision
		if effects[i], err = kinds[d.Kind].apply(d); err != nil {
			s.fail(w, r, fault.Wrap(err, "%s %s (line %d)", d.Kind, d.Name, d.Line))
			return
		}
	}
	share.TurnOf(r.Context()).End() // all are decoded
	done := make([]applied, 0, len(docs))
	for i, d := range docs {
		a, err := s.applyOne(r, kinds[d.Kind], d, effects[i], dryRun)
		if dryRun {
			a, err = foreseen(done, d, a, err)
		}
		if err != nil {
			err = fault.Wrap(err, "%s %s (line %d)", d.Kind, d.Name, d.Line)
			if len(done) > 0 {
				were := "were applied"
				if dryRun {
					were = "can be applied"
				}
				err = fault.Wrap(err, "%d of %d documents %s; then", len(done), len(docs), were)
			}
			s.fail(w, r, err)
			return
		}
		done = append(done, a)
	}
	answer(w, http.StatusOK, items[applied]{Items: done})
}

// foreseen is what a dry run says of a document: without the identifier of what it does
// not make. One that needs what an earlier document of the request would create is checked
// as far as that goes, and says so.
func foreseen(done []applied, d manifest.Document, a applied, err error) (applied, error) {
	if a.Result != string(project.Unchanged) {
		a.ID = ""
	}
	if !fault.Is(err, fault.NotFound) {
		return a, err
	}
	for _, earlier := range done {
		in := earlier.Kind == "Project" && earlier.Name == a.Project
		if earlier.Result == string(project.Created) && (in || (earlier.Project == "" || earlier.Project == a.Project) && d.Mentions(earlier.Name)) {
			brief, _ := fault.Brief(err)
			return applied{
				Kind: d.Kind, Name: d.Name, Project: a.Project, Result: string(project.Created),
				Warnings: []string{fmt.Sprintf("not checked against %s %s, which does not exist before this file is applied (%s)", strings.ToLower(earlier.Kind), earlier.Name, brief)},
			}, nil
		}
	}
	return a, err
}

// mayApply refuses, before the body is read, a caller whose token is bound to a project in
// which they may apply no kind of manifest: no document could be theirs to apply.
func (s *Server) mayApply(r *http.Request, kinds map[string]applier) error {
	bound := string(identity.From(r.Context()).Project)
	if bound == "" {
		return nil
	}
	var gates []string
	for _, k := range kinds {
		if k.gate == "project.read" { // of who may see a project; the service asks for more
			continue
		}
		gates = append(gates, string(k.gate))
		if ok, err := s.authz.Permits(r.Context(), k.gate, policy.Object{Project: bound}); err != nil || ok {
			return err
		}
	}
	err := s.gate(r.Context(), "dataset.import", bound) // on record; not found for who may not know the project
	if !fault.Is(err, fault.PermissionDenied) {
		return err
	}
	slices.Sort(gates)
	return audit.OnRecord(fault.New(fault.PermissionDenied, "%s cannot apply manifests in project %s: one of these permissions is required: %s", identity.From(r.Context()), bound, strings.Join(slices.Compact(gates), ", ")).
		WithHint("%s", fault.HintOf(err)))
}

// manifests are the documents of a request's body.
func manifests(r *http.Request, kinds map[string]applier) ([]manifest.Document, error) {
	file, err := io.ReadAll(io.LimitReader(r.Body, manifest.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	return manifest.Parse(file, slices.Sorted(maps.Keys(kinds)))
}

func (s *Server) applyOne(r *http.Request, k applier, d manifest.Document, do effect, dryRun bool) (applied, error) {
	in := d.Project
	k.installation = k.installation || k.wide != nil && k.wide(d)
	if in == "" && !k.installation {
		in = r.URL.Query().Get("project")
	}
	if in == "" && !k.installation {
		in = string(identity.From(r.Context()).Project)
	}
	switch {
	case k.installation && d.Project != "":
		return applied{}, fault.New(fault.Invalid, "kind %s does not belong to a project", d.Kind).WithHint("Remove the line `project: %s`.", d.Project)
	case !k.installation && in == "":
		return applied{}, fault.New(fault.Invalid, "project is required").WithHint("Add `project:` to the manifest, or set --project.")
	}
	if !k.installation { // installation-wide kinds: the service asks, knowing the object
		if err := s.gate(r.Context(), k.gate, in); err != nil {
			return applied{Project: in}, err
		}
	}
	a, err := do(r.Context(), in, dryRun)
	err = audit.Describe(err, audit.Entry{Project: in, Action: strings.Replace(string(k.gate), "project.read", "project.update", 1), Object: strings.ToLower(d.Kind) + " " + d.Name})
	a.Kind, a.Name, a.Project = d.Kind, d.Name, in
	return a, err
}
