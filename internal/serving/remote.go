package serving

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/serving/batching"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// Remote is a server of somebody who runs models for this one, as the operator named
// it: where it is, a manifest cannot say.
type Remote struct {
	Zone     residency.Zone
	Projects []string // that may use it; none means all
	Runs     int      // of all its models at a time
}

// RemoteSpec is which model of which remote answers.
type RemoteSpec struct {
	Name    string `json:"name" doc:"Remote in serving.remotes of the server's configuration"`
	Model   string `json:"model,omitempty" doc:"Model name on the remote; {version} is replaced by the registered version's number; default the registered model's name"`
	Version string `json:"version,omitempty" doc:"Version on the remote; {version} is replaced as in model; none for a server without versions; default {version}, or none when model contains it"`
}

// number is what stands for a version's number.
const number = "{version}"

// remote is the spec's; zero for a model that runs here.
func (s Spec) remote() RemoteSpec {
	if s.Runtime == nil {
		return RemoteSpec{}
	}
	return s.Runtime.Remote
}

func (r RemoteSpec) validate(s Spec) error {
	if r == (RemoteSpec{}) {
		return nil
	}
	if err := id.CheckName("remote name", r.Name); err != nil {
		return err
	}
	for field, text := range map[string]string{"model": r.Model, "version": r.Version} {
		if len(text) > 256 || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == '/' || c == 0x7f }) {
			return fault.New(fault.Invalid, "%s: %.40q is not a valid name of at most 256 bytes without spaces and slashes", field, text)
		}
	}
	if s.Threads != 0 {
		return fault.New(fault.Invalid, "spec.threads: not supported for remote models")
	}
	if r.fixed() && s.alias() != "" {
		return fault.New(fault.Invalid, "it does not depend on the version, but spec.version is an alias, which can move").
			WithHint("Use {version} in model or version, or a number in spec.version.")
	}
	return nil
}

// fixed reports whether every registered version would be the same model there.
func (r RemoteSpec) fixed() bool {
	return !strings.Contains(r.Model, number) && !strings.Contains(cmp.Or(r.Version, number), number)
}

// of is a version's model there.
func (r RemoteSpec) of(m Model) models.Remote {
	version := r.Version
	switch {
	case version == "none", version == "" && strings.Contains(r.Model, number):
		version = ""
	case version == "":
		version = number
	}
	set := func(text string) string { return strings.ReplaceAll(text, number, strconv.FormatInt(m.Version, 10)) }
	return models.Remote{Server: r.Name, Model: set(cmp.Or(r.Model, m.Name)), Version: set(version)}
}

// remote is the one that a deployment names, if its project may use it.
func (s *core) remote(project string, spec Spec) (Remote, error) {
	name := spec.remote().Name
	r, ok := s.cfg.Remotes[name]
	if !ok || len(r.Projects) > 0 && !slices.Contains(r.Projects, project) {
		return r, fault.New(fault.Invalid, "spec.runtime.remote.name: remote %q does not exist for this project", name).
			WithHint("Ask the server's administrator to add it to serving.remotes.")
	}
	return r, nil
}

// crossed lets what has a label go to a deployment's remote, or not.
func (s *core) crossed(ctx context.Context, project string, spec Spec, action policy.Action, what string, label residency.Label) error {
	r, err := s.remote(project, spec)
	if err != nil {
		return err
	}
	return s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: project, What: what, Label: label, Where: "remote " + spec.remote().Name, Zone: r.Zone, Action: string(action),
	})
}

// featuresCross lets features go to a deployment's remote, by the label that they
// have now.
func (s *core) featuresCross(ctx context.Context, project string, spec Spec, action policy.Action, set *FeatureSet) error {
	if spec.remote().Name == "" || set == nil {
		return nil
	}
	label, err := s.cfg.Features.Label(ctx, project, set.Ref)
	if err != nil {
		return fault.Wrap(err, "reading the residency of features %s", set.Ref)
	}
	return s.crossed(ctx, project, spec, action, "feature service "+set.Ref, label)
}

// place is the zone where a deployment's model runs.
func (s *core) place(spec Spec) residency.Zone {
	if r := spec.remote(); r.Name != "" {
		return s.cfg.Remotes[r.Name].Zone
	}
	return s.cfg.Zone
}

// defaultRuns is Remote.Runs that is not said.
const defaultRuns = 64

// coresOf are what the runs of a model share: this machine's, or the places that its
// remote has.
func (s *core) coresOf(h how) *batching.Cores {
	if c := s.places[h.runtime.Remote.Name]; c != nil {
		return c
	}
	return s.cores
}

// bounded are a queue's options for a session that takes so many rows at most.
func bounded(o batching.Options, session models.Session) batching.Options {
	if d, ok := session.(models.Distant); ok && d.MaxRows() > 0 {
		o.MaxRows = min(cmp.Or(o.MaxRows, batching.DefaultMaxRows), d.MaxRows())
	}
	return o
}
