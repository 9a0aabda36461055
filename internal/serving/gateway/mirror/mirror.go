// Package mirror makes a server a gateway: its deployments are those of another
// server, which it follows.
//
// # Map
//
//   - mirror.go: Mirror.RunOnce makes what is here what the other server says: first
//     the files of the versions, each checked, then the deployments.
//   - models.go gives serving the verified models; handover.go gives the prediction
//     log back; upstream.go speaks to the other server.
//
// # Guarantees
//
// While the other server is away, or says nothing that makes sense, everything stays
// as it was. A deployment changes only when all that its new versions need is here,
// verified and durable; each change is one transaction. The key that signs is the one
// that the first answer named, for ever. Only an answer of the other server, or the
// end of Config.Alone, takes a deployment away.
package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/gateway"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/store"
)

// Store keeps what a gateway knows. What is not there is fault.NotFound.
type Store interface {
	Version(ctx context.Context, tx *store.Tx, project, model string, number int64) (gateway.Version, error)
	PutVersion(ctx context.Context, tx *store.Tx, project string, v gateway.Version) error
	DropVersion(ctx context.Context, tx *store.Tx, project, model string, number int64) error
	Versions(ctx context.Context, tx *store.Tx, project string) ([]gateway.Version, error)

	Fact(ctx context.Context, tx *store.Tx, name string) (string, error)
	PutFact(ctx context.Context, tx *store.Tx, name, value string) error
}

// Config is what a Mirror is made of.
type Config struct {
	DB          *store.DB
	Store       Store
	Deployments serving.Store
	Blobs       *blob.Store
	Log         *prediction.Log
	Upstream    Server
	Zone        string        // where this gateway stands
	Version     string        // of its software
	Alone       time.Duration // how long it answers without having heard of the other server; 0 is for ever
	// Project makes the project that the deployments are in.
	Project func(ctx context.Context, w gateway.Wanted) error
	// Serving tells what it is to refresh, and the state of what it holds.
	Serving Serving
	Logger  *slog.Logger
	Now     func() time.Time // nil is time.Now
}

// Serving answers with what is mirrored. serving.Service is one.
type Serving interface {
	Refresh(ctx context.Context, project, name string) error
	One(ctx context.Context, project, name string) (serving.Deployment, error)
}

// Mirror follows another server. Safe for concurrent use; Close it.
type Mirror struct {
	Config
	up *upstream
}

// New makes a mirror.
func New(c Config) *Mirror {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Mirror{Config: c, up: newUpstream(c.Upstream)}
}

// Close ends connections.
func (m *Mirror) Close() error {
	m.up.close()
	return nil
}

// The facts.
const (
	factInstance = "instance"   // of this data directory
	factKey      = "public key" // PEM, of the first answer
	factContact  = "contact"    // when the other server last answered, RFC 3339
	factHanded   = "handed "    // and a deployment's id: position up to which its log was handed over
	factKnown    = "known "     // and a deployment's name: its id when it was last here
	factLeftOut  = "left out"   // JSON: what the last answer did not give
)

// fact reads a fact; empty when there is none.
func (m *Mirror) fact(ctx context.Context, name string) (value string, err error) {
	err = m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		value, err = m.Store.Fact(ctx, tx, name)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	})
	return value, err
}

func (m *Mirror) note(ctx context.Context, name, value string) error {
	return m.DB.Update(ctx, m.Upstream.Project, func(ctx context.Context, tx *store.Tx) error { return m.Store.PutFact(ctx, tx, name, value) })
}

// instance names this data directory, made at first.
func (m *Mirror) instance(ctx context.Context) (string, error) {
	name, err := m.fact(ctx, factInstance)
	if err != nil || name != "" {
		return name, err
	}
	name = id.New("gwi")
	return name, m.note(ctx, factInstance, name)
}

// local are the deployments that are here.
func (m *Mirror) local(ctx context.Context) (all []serving.Deployment, err error) {
	err = m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = m.Deployments.All(ctx, tx)
		return err
	})
	return all, err
}

// RunOnce asks the other server what is to be served, and makes it so. Errors: why it
// could not ask, or what of it could not be done; the rest was.
func (m *Mirror) RunOnce(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("gateway"))
	report, err := m.report(ctx)
	if err != nil {
		return err
	}
	wanted, err := m.up.sync(ctx, report)
	switch {
	case fault.Is(err, fault.Gone): // this gateway was deleted
		return errors.Join(err, m.keep(ctx, nil))
	case err != nil:
		return errors.Join(err, m.alone(ctx))
	}
	if wanted.Project != m.Upstream.Project {
		return fault.New(fault.Conflict, "the server that this gateway follows answers of project %q", wanted.Project)
	}
	key, err := m.pinned(ctx, wanted.PublicKey)
	if err != nil {
		return err
	}
	if err := m.Project(ctx, wanted); err != nil {
		return fault.Wrap(err, "project %s", wanted.Project)
	}
	var failed []error
	for _, s := range wanted.Deployments {
		if err := m.bring(ctx, key, s); err != nil {
			failed = append(failed, fault.Wrap(err, "deployment %s", s.Deployment.Name))
		}
	}
	left, err := json.Marshal(wanted.LeftOut)
	if err == nil {
		err = m.note(ctx, factLeftOut, string(left))
	}
	failed = append(failed, err, m.keep(ctx, wanted.Deployments), m.note(ctx, factContact, m.Now().UTC().Format(time.RFC3339)))
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return m.tidy(ctx, wanted.Deployments)
}

// report is what this gateway says of itself.
func (m *Mirror) report(ctx context.Context) (r gateway.Report, err error) {
	r = gateway.Report{Version: m.Version, Zone: m.Zone}
	if r.Instance, err = m.instance(ctx); err != nil {
		return r, err
	}
	if r.Waiting, err = m.waiting(ctx); err != nil {
		return r, err
	}
	all, err := m.local(ctx)
	for _, d := range all {
		now, err := m.Serving.One(ctx, d.Project, d.Name)
		if err != nil {
			return r, err
		}
		reason := now.Reason
		r.Holds = append(r.Holds, gateway.Held{Deployment: d.Name, Version: now.Version, State: now.State, Reason: reason[:min(len(reason), 900)]})
	}
	return r, err
}

// pinned is the key that signs: that of the first answer.
func (m *Mirror) pinned(ctx context.Context, said string) (string, error) {
	key, err := m.fact(ctx, factKey)
	if err != nil {
		return "", err
	}
	if key == "" {
		return said, m.note(ctx, factKey, said)
	}
	if key != said {
		return "", fault.New(fault.Conflict, "the server that this gateway follows signs with another key than it did").
			WithHint("What is here goes on being served, and nothing new is taken. If the server was really made anew, start the gateway with an empty data directory.")
	}
	return key, nil
}

// alone takes everything away when the other server was not heard of for too long.
func (m *Mirror) alone(ctx context.Context) error {
	if m.Alone == 0 {
		return nil
	}
	text, err := m.fact(ctx, factContact)
	if err != nil || text == "" {
		return err
	}
	last, err := time.Parse(time.RFC3339, text)
	if err != nil || m.Now().Sub(last) < m.Alone {
		return err
	}
	m.Logger.ErrorContext(ctx, "the server that this gateway follows was not heard of for too long; nothing is served any more", slog.Time("last", last))
	return m.keep(ctx, nil)
}

// bring makes a deployment here what it is there.
func (m *Mirror) bring(ctx context.Context, key string, s gateway.Served) error {
	if s.Deployment.Project != m.Upstream.Project {
		return fault.New(fault.Conflict, "it is of project %q", s.Deployment.Project)
	}
	for _, v := range s.Versions {
		if err := m.fetch(ctx, key, v); err != nil {
			return fault.Wrap(err, "version %d of %s", v.Number, v.Model)
		}
	}
	d := s.Deployment
	d.Trials, d.FeatureSet, d.Targets = s.Trials, nil, nil
	changed := false
	err := m.DB.Update(ctx, d.Project, func(ctx context.Context, tx *store.Tx) error {
		changed = false
		old, err := m.Deployments.One(ctx, tx, d.Project, d.Name)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if old.ID != "" && old.ID != d.ID { // another one of the name
			if err := m.Deployments.Delete(ctx, tx, d.Project, d.Name); err != nil {
				return err
			}
		}
		ran, err := m.runs(ctx, tx, d, s.Rollout)
		if err != nil {
			return err
		}
		if old.ID == d.ID && old.Revision == d.Revision && slices.Equal(roles(old.Trials), roles(d.Trials)) {
			changed = ran
			return nil
		}
		changed = true
		if err := m.Store.PutFact(ctx, tx, factKnown+d.Name, string(d.ID)); err != nil {
			return err
		}
		return m.Deployments.Put(ctx, tx, d)
	})
	if err != nil || !changed {
		return err
	}
	return m.Serving.Refresh(ctx, d.Project, d.Name)
}

// roles are what trials are, to compare them.
func roles(all []serving.Trial) []string {
	var out []string
	for _, t := range all {
		out = append(out, string(t.Role)+" "+t.Digest)
	}
	return out
}

// runs makes the rollout that runs here the one that runs there. It says whether that
// changed anything.
func (m *Mirror) runs(ctx context.Context, tx *store.Tx, d serving.Deployment, there *serving.Rollout) (bool, error) {
	last, err := m.Deployments.Rollouts(ctx, tx, d.Project, d.Name, 1)
	if err != nil {
		return false, err
	}
	here := len(last) > 0 && last[0].State == serving.Running
	switch {
	case !here && there == nil:
		return false, nil
	case here && there != nil && last[0].ID == there.ID && last[0].Weight == there.Weight:
		return false, nil
	case here && (there == nil || last[0].ID != there.ID):
		ended := last[0]
		ended.State, ended.Ended, ended.Reason = serving.Cancelled, m.Now().UTC(), "it does not run any more at the server that this gateway follows"
		if err := m.Deployments.PutRollout(ctx, tx, ended); err != nil {
			return false, err
		}
	}
	if there == nil {
		return true, nil
	}
	return true, m.Deployments.PutRollout(ctx, tx, *there)
}

// keep removes the deployments that are not wanted any more.
func (m *Mirror) keep(ctx context.Context, wanted []gateway.Served) error {
	all, err := m.local(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, d := range all {
		if slices.ContainsFunc(wanted, func(s gateway.Served) bool { return s.Deployment.Name == d.Name }) {
			continue
		}
		err := m.DB.Update(ctx, d.Project, func(ctx context.Context, tx *store.Tx) error { return m.Deployments.Delete(ctx, tx, d.Project, d.Name) })
		if err == nil {
			err = m.Serving.Refresh(ctx, d.Project, d.Name)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// maxModel bounds a model's file, in bytes.
const maxModel = 4 << 30

// fetch makes sure that a version is here: its signature holds and its file is what
// was signed, on disk.
func (m *Mirror) fetch(ctx context.Context, key string, v gateway.Version) error {
	project := m.Upstream.Project
	var have gateway.Version
	err := m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		have, err = m.Store.Version(ctx, tx, project, v.Model, v.Number)
		return err
	})
	if err == nil && have.Digest == v.Digest {
		return nil
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	signed, err := signedOf(key, project, v)
	if err != nil {
		return err
	}
	file, err := signed.File(modelFile)
	if err != nil {
		return err
	}
	err = m.up.file(ctx, v.Model, v.Number, modelFile, func(r io.Reader) error {
		_, err := m.Blobs.Put(ctx, refOf(project, v.Digest), r, blob.WithDigest(file.Digest), blob.WithLimit(maxModel))
		return err
	})
	if err != nil {
		return err
	}
	m.Logger.InfoContext(ctx, "model fetched", slog.String("model", v.Model), slog.Int64("version", v.Number))
	return m.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error { return m.Store.PutVersion(ctx, tx, project, v) })
}

// signedOf checks a version's signature, and that it is this version's.
func signedOf(key, project string, v gateway.Version) (registry.Signed, error) {
	signed, err := registry.OpenSigned(v.Bundle, key)
	if err != nil {
		return signed, err
	}
	if signed.Project != project || int64(signed.Number) != v.Number || signed.Digest != v.Digest {
		return signed, fault.New(fault.Conflict, "the signature is of version %d with digest %s of project %s", signed.Number, signed.Digest, signed.Project)
	}
	return signed, nil
}

// tidy removes the files of versions that nothing needs.
func (m *Mirror) tidy(ctx context.Context, wanted []gateway.Served) error {
	needed := map[string]bool{}  // by model and number
	digests := map[string]bool{} // two may have the same files
	name := func(v gateway.Version) string { return v.Model + "@" + numberText(v.Number) }
	for _, s := range wanted {
		for _, v := range s.Versions {
			needed[name(v)], digests[v.Digest] = true, true
		}
	}
	project := m.Upstream.Project
	var have []gateway.Version
	if err := m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		have, err = m.Store.Versions(ctx, tx, project)
		return err
	}); err != nil {
		return err
	}
	for _, v := range have {
		if needed[name(v)] {
			continue
		}
		if err := m.DB.Update(ctx, project, func(ctx context.Context, tx *store.Tx) error {
			return m.Store.DropVersion(ctx, tx, project, v.Model, v.Number)
		}); err != nil {
			return err
		}
		if !digests[v.Digest] {
			if err := m.Blobs.Delete(ctx, refOf(project, v.Digest)); err != nil {
				return err
			}
		}
	}
	return nil
}
