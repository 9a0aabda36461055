package serving

import (
	"context"
	"runtime/debug"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/serving/chain"
	models "github.com/falaj-ml/falaj/internal/serving/runtime"
)

// open verifies, checks residency and loads a version, with the deployment's steps;
// the caller has its use. Deaths of its processes are counted in h.
func (s *core) open(ctx context.Context, d Deployment, version string, h *health) (*target, error) {
	project, name, spec := d.Project, d.Name, d.Spec
	m, err := s.verified(ctx, project, spec.Model, version)
	if err != nil {
		return nil, err
	}
	session, environment, err := s.session(ctx, project, name, spec, &m, s.supervise(h, ""))
	if err != nil {
		return nil, err
	}
	several, _ := session.(*replicas)
	var steps *chain.Session
	if spec.Chained() {
		if steps, m, d.Steps, err = s.chained(ctx, d, m, session, h); err != nil {
			return nil, err
		}
		session = steps
	}
	t, err := s.newTarget(ctx, project, m, d.how(), session, s.tallyOf(key{project, name}, m.Version))
	if err != nil {
		return nil, err
	}
	t.machine = s.cfg.Machine
	t.zone, t.steps, t.replicas, t.environment, t.health = s.place(spec), d.Steps, several, environment, h
	if steps != nil {
		err = t.dress(steps, spec.Prediction)
	} else {
		t.score, err = scoreOf(spec.Prediction, t.meta)
	}
	if err == nil {
		err = spec.Features.fits(t.meta)
	}
	if err != nil {
		t.leave()
		return nil, err
	}
	return t, nil
}

// session loads a verified version, if it may be here and, when the spec names a
// remote, there; environment is that of a Python model. It takes the files out of the
// model.
func (s *core) session(ctx context.Context, project, name string, spec Spec, m *Model, died func(models.Death) bool) (session models.Session, environment string, err error) {
	if err := s.cfg.Guard.Pass(ctx, residency.Transfer{
		Project: project, What: "model " + m.Name, Label: m.Residency, Where: "this server", Zone: s.cfg.Zone, Machine: s.cfg.Machine, Action: string(actionApply),
	}); err != nil {
		return nil, "", err
	}
	if spec.remote().Name != "" {
		if err := s.crossed(ctx, project, spec, actionApply, "model "+m.Name, m.Residency); err != nil {
			return nil, "", err
		}
	}
	python, err := s.python(ctx, project, spec, *m)
	if err != nil {
		return nil, "", err
	}
	options, err := spec.options(project, *m, s.cfg.InProcess)
	if err != nil {
		return nil, "", err
	}
	options.Python = python
	options.Time, options.Again, options.Died = s.cfg.LoadTime, s.again(project, *m), died
	session, err = s.cfg.Runtime.Load(ctx, m.File, options)
	if err == nil {
		session = s.replicate(project, name, spec, *m, options, session)
	}
	large := len(m.File) > freed
	m.File, m.Files = nil, nil
	if large {
		debug.FreeOSMemory()
	}
	if options.Python != nil {
		environment = options.Python.Environment
	}
	return session, environment, err
}

// freed is the size of a model's file from which on its memory is given back at
// once, and not when the collector comes to it.
const freed = 8 << 20

// verified reads a verified version, within the time that it may take.
func (s *core) verified(ctx context.Context, project, model, version string) (Model, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.LoadTime, models.Late(s.cfg.LoadTime))
	defer cancel()
	m, err := s.cfg.Models.OpenVerified(ctx, project, model, version)
	if err != nil && ctx.Err() != nil {
		return m, context.Cause(ctx)
	}
	return m, err
}

// again reads the file of a version that is loaded once more. It keeps nothing of it.
func (s *core) again(project string, m Model) func(context.Context) ([]byte, error) {
	m.File, m.Files = nil, nil
	return func(ctx context.Context) ([]byte, error) {
		now, err := s.verified(identity.With(ctx, identity.Loop("model loader")), project, m.Name, versionText(m.Version))
		if err == nil && now.Digest != m.Digest {
			err = fault.New(fault.Conflict, "version %d's digest differs from the loaded one", m.Version)
		}
		return now.File, err
	}
}

// absent is a version that was verified and may be here, and is not in memory: its
// environment is still being built.
func (s *Deployments) absent(ctx context.Context, project string, spec Spec, version string) (*target, error) {
	m, err := s.verified(ctx, project, spec.Model, version)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Guard.Pass(ctx, residency.Transfer{ // the alias may have moved since
		Project: project, What: "model " + m.Name, Label: m.Residency, Where: "this server", Zone: s.cfg.Zone, Machine: s.cfg.Machine, Action: string(actionApply),
	}); err != nil {
		return nil, err
	}
	m.File, m.Files = nil, nil
	return &target{model: m, how: spec.how()}, nil
}
