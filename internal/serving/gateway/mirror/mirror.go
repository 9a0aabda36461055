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
// verified, durable and in memory; each change is one transaction. The key that signs is the one
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
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
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
	Loader  Loader
	States  States
	// Verify checks a signature against a public key; registry.OpenSigned when nil.
	Verify func(bundle []byte, publicKey string) (registry.Signed, error)
	Logger *slog.Logger
	Now    func() time.Time // nil is time.Now
}

// Loader loads what is mirrored. serving.Loader is one.
type Loader interface {
	// Adopt loads what a deployment needs, and then has its row written.
	Adopt(ctx context.Context, d serving.Deployment, commit func(context.Context) error) error
	Refresh(ctx context.Context, project, name string) error
}

// States tells how a mirrored deployment is in this process. serving.Deployments is one.
type States interface {
	One(ctx context.Context, project, name string) (serving.Deployment, error)
}

// Mirror follows another server. Safe for concurrent use; Close it.
type Mirror struct {
	Config
	up     *upstream
	naming sync.Mutex // held by instance
}

// New makes a mirror.
func New(c Config) *Mirror {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Verify == nil {
		c.Verify = registry.OpenSigned
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
	factEra      = "era "       // and a deployment's id: how often its log began anew
	factKnown    = "known "     // and a deployment's name: its id when it was last here
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
	m.naming.Lock()
	defer m.naming.Unlock()
	name, err := m.fact(ctx, factInstance)
	if err != nil || name != "" {
		return name, err
	}
	name = id.New("gwi")
	return name, m.note(ctx, factInstance, name)
}

// Own says whether a data directory is a gateway's: it has no deployments of its own.
// Error: fault.Conflict for one that another server has used.
func Own(ctx context.Context, db *store.DB, st Store, deployments serving.Store) error {
	return db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := st.Fact(ctx, tx, factInstance); !fault.Is(err, fault.NotFound) {
			return err
		}
		all, err := deployments.All(ctx, tx)
		if err == nil && len(all) > 0 {
			err = fault.New(fault.Conflict, "the data directory contains deployments of a server, not of a gateway").
				WithHint("Leave gateway.upstream empty for a server, or start the gateway with its own data directory.")
		}
		return err
	})
}

// local are the deployments that are here.
func (m *Mirror) local(ctx context.Context) (all []serving.Deployment, err error) {
	err = m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err = m.Deployments.All(ctx, tx)
		return err
	})
	return slices.DeleteFunc(all, func(d serving.Deployment) bool { return d.Project != m.Upstream.Project }), err
}

// RunOnce asks the other server what is to be served, and makes it so. Errors: why it
// could not ask, or what of it could not be done; the rest was.
func (m *Mirror) RunOnce(ctx context.Context) error {
	ctx = identity.With(ctx, identity.Loop("gateway"))
	wanted, err := m.ask(ctx)
	if fault.Is(err, fault.Gone) { // this gateway was deleted
		return errors.Join(err, m.keep(ctx, nil), m.tidy(ctx, nil))
	}
	if err != nil {
		return errors.Join(err, m.alone(ctx))
	}
	key, err := m.fact(ctx, factKey)
	if err != nil {
		return err
	}
	var failed []error
	for _, s := range wanted.Deployments {
		if err := m.bring(ctx, key, s); err != nil {
			failed = append(failed, fault.Wrap(err, "deployment %s", s.Deployment.Name))
		}
	}
	failed = append(failed, m.keep(ctx, wanted.Deployments), m.note(ctx, factContact, m.Now().UTC().Format(time.RFC3339)))
	return errors.Join(append(failed, m.tidy(ctx, wanted.Deployments))...)
}

// ask is what the other server says, if that makes sense.
func (m *Mirror) ask(ctx context.Context) (w gateway.Wanted, err error) {
	report, err := m.report(ctx)
	if err != nil {
		return w, err
	}
	if w, err = m.up.sync(ctx, report); err != nil {
		return w, err
	}
	if w.Project != m.Upstream.Project {
		return w, fault.New(fault.Conflict, "the upstream server returned project %q", w.Project)
	}
	if err := m.pin(ctx, w.PublicKey); err != nil {
		return w, err
	}
	return w, fault.Wrap(m.Project(ctx, w), "project %s", w.Project)
}

// report is what this gateway says of itself.
func (m *Mirror) report(ctx context.Context) (r gateway.Report, err error) {
	r = gateway.Report{Version: m.Version, Zone: m.Zone}
	if r.Instance, err = m.instance(ctx); err != nil {
		return r, err
	}
	if r.Waiting, err = m.waiting(ctx); err != nil { // the log is broken; what is served goes on
		m.Logger.WarnContext(ctx, "counting the pending predictions failed", slog.String("error", err.Error()))
	}
	have, err := m.versions(ctx)
	if err != nil {
		return r, err
	}
	for _, v := range have {
		r.Has = append(r.Has, v.String())
	}
	all, err := m.local(ctx)
	for _, d := range all {
		now, err := m.States.One(ctx, d.Project, d.Name)
		if err != nil {
			return r, err
		}
		reason := strings.ToValidUTF8(now.Reason[:min(len(now.Reason), 900)], "")
		r.Holds = append(r.Holds, gateway.Held{Deployment: d.Name, Version: now.Version, State: now.State, Reason: reason})
	}
	return r, err
}

// pin makes the key of the first answer the one that signs, and refuses any other.
func (m *Mirror) pin(ctx context.Context, said string) error {
	key, err := m.fact(ctx, factKey)
	if err != nil {
		return err
	}
	if key == "" {
		return m.DB.Update(ctx, m.Upstream.Project, func(ctx context.Context, tx *store.Tx) error {
			if err := m.Store.PutFact(ctx, tx, factKey, said); err != nil {
				return err
			}
			return m.audit(ctx, tx, "model signing key", map[string]any{"pinned": said})
		})
	}
	if key != said {
		return fault.New(fault.Conflict, "the upstream server signs with another key than before").
			WithHint("Existing models are still served, but no updates are accepted. If the server was reinstalled, start the gateway with an empty data directory.")
	}
	return nil
}

// audit puts on record what changes here.
func (m *Mirror) audit(ctx context.Context, tx *store.Tx, object string, detail map[string]any) error {
	detail["from"] = m.Upstream.URL
	return audit.Append(ctx, tx, audit.Entry{Project: m.Upstream.Project, Action: string(gateway.ActionPull), Object: object, Detail: detail})
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
	m.Logger.ErrorContext(ctx, "contact with the upstream server was lost for too long; the gateway stops serving", slog.Time("last", last))
	return errors.Join(m.keep(ctx, nil), m.tidy(ctx, nil))
}

// bring makes a deployment here what it is there.
func (m *Mirror) bring(ctx context.Context, key string, s gateway.Served) error {
	d := s.Deployment
	d.Trials, d.FeatureSet, d.Targets = s.Trials, nil, nil
	if d.Project != m.Upstream.Project {
		return fault.New(fault.Conflict, "it belongs to project %q", d.Project)
	}
	for _, v := range needs(d) {
		if !slices.ContainsFunc(s.Versions, func(x gateway.Version) bool {
			return x.Model == v.Model && x.Number == v.Number && x.Digest == v.Digest
		}) {
			return fault.New(fault.Conflict, "version %d of %s is missing in the response", v.Number, v.Model)
		}
	}
	for _, v := range s.Versions {
		if err := m.fetch(ctx, key, v); err != nil {
			return fault.Wrap(err, "version %d of %s", v.Number, v.Model)
		}
	}
	same, err := m.same(ctx, d, s.Rollout)
	if err != nil || same {
		return err
	}
	return m.Loader.Adopt(ctx, d, func(ctx context.Context) error {
		return m.DB.Update(ctx, d.Project, func(ctx context.Context, tx *store.Tx) error {
			old, err := m.Deployments.One(ctx, tx, d.Project, d.Name)
			if err == nil && old.ID != d.ID { // another one of the name, of which nothing is left
				err = m.Deployments.Delete(ctx, tx, d.Project, d.Name)
			}
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			// The rollout that runs there is the only one here.
			if err := m.Deployments.DropRollouts(ctx, tx, d.Project, d.Name); err != nil {
				return err
			}
			if err := m.Deployments.Put(ctx, tx, d); err != nil {
				return err
			}
			if s.Rollout != nil {
				if err := m.Deployments.PutRollout(ctx, tx, *s.Rollout); err != nil {
					return err
				}
			}
			if err := m.Store.PutFact(ctx, tx, factKnown+d.Name, string(d.ID)); err != nil {
				return err
			}
			return m.audit(ctx, tx, "deployment "+d.Name, map[string]any{"model": d.Model, "version": d.Version, "digest": d.Digest, "trials": d.Trials})
		})
	})
}

// needs are the versions that a deployment has to have.
func needs(d serving.Deployment) []gateway.Version {
	all := []gateway.Version{{Model: d.Model, Number: d.Version, Digest: d.Digest}}
	for _, t := range d.Trials {
		all = append(all, gateway.Version{Model: d.Model, Number: t.Version, Digest: t.Digest})
	}
	for _, m := range d.Steps {
		all = append(all, gateway.Version{Model: m.Model, Number: m.Version, Digest: m.Digest})
	}
	return all
}

// same reports whether a deployment is here as it is there.
func (m *Mirror) same(ctx context.Context, d serving.Deployment, there *serving.Rollout) (same bool, err error) {
	err = m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		same = false
		old, err := m.Deployments.One(ctx, tx, d.Project, d.Name)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		last, err := m.Deployments.Rollouts(ctx, tx, d.Project, d.Name, 1)
		if err != nil {
			return err
		}
		var here *serving.Rollout
		if len(last) > 0 {
			here = &last[0]
		}
		same = alike(old, d) && (alike(old.Trials, d.Trials) || len(old.Trials)+len(d.Trials) == 0) && (here == nil) == (there == nil) && (here == nil || here.ID == there.ID && here.Weight == there.Weight)
		return nil
	})
	return same, err
}

// alike compares what the two sides tell each other.
func alike[T any](a, b T) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
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
		err := m.DB.Update(ctx, d.Project, func(ctx context.Context, tx *store.Tx) error {
			if err := m.Deployments.Delete(ctx, tx, d.Project, d.Name); err != nil {
				return err
			}
			return m.audit(ctx, tx, "deployment "+d.Name, map[string]any{"deleted": true})
		})
		if err == nil {
			err = m.Loader.Refresh(ctx, d.Project, d.Name)
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
	if len(v.Bundle) == 0 {
		return fault.New(fault.Conflict, "its signature is missing")
	}
	signed, err := signedOf(m.Verify, key, project, v)
	if err != nil {
		return err
	}
	file, err := signed.File(gateway.ModelFile)
	if err != nil {
		return err
	}
	err = m.up.file(ctx, v.Model, v.Number, gateway.ModelFile, func(r io.Reader) error {
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
func signedOf(verify func([]byte, string) (registry.Signed, error), key, project string, v gateway.Version) (registry.Signed, error) {
	signed, err := verify(v.Bundle, key)
	if err != nil {
		return signed, err
	}
	if signed.Project != project || signed.Model != v.Model || int64(signed.Number) != v.Number || signed.Digest != v.Digest {
		return signed, fault.New(fault.Conflict, "the signature belongs to version %d of model %.255q with digest %s of project %s", signed.Number, signed.Model, signed.Digest, signed.Project)
	}
	return signed, nil
}

// versions are those whose files are here.
func (m *Mirror) versions(ctx context.Context) (have []gateway.Version, err error) {
	err = m.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		have, err = m.Store.Versions(ctx, tx, m.Upstream.Project)
		return err
	})
	return have, err
}

// tidy removes the files of versions that nothing needs: neither what is wanted, nor
// what is here because something wanted could not be had.
func (m *Mirror) tidy(ctx context.Context, wanted []gateway.Served) error {
	all, err := m.local(ctx)
	if err != nil {
		return err
	}
	for _, s := range wanted {
		d := s.Deployment
		d.Trials = s.Trials
		all = append(all, d)
	}
	needed, files := map[string]bool{}, map[string]bool{} // two versions may have the same file
	for _, d := range all {
		for _, v := range needs(d) {
			needed[v.String()] = true
			files[string(refOf(m.Upstream.Project, v.Digest).Key)] = true
		}
	}
	have, err := m.versions(ctx)
	if err != nil {
		return err
	}
	for _, v := range have {
		if !needed[v.String()] {
			if err := m.DB.Update(ctx, m.Upstream.Project, func(ctx context.Context, tx *store.Tx) error {
				return m.Store.DropVersion(ctx, tx, m.Upstream.Project, v.Model, v.Number)
			}); err != nil {
				return err
			}
		}
	}
	return m.Blobs.List(ctx, "gateway/", func(k blob.Key) error {
		if files[string(k)] {
			return nil
		}
		return m.Blobs.Delete(ctx, blob.Ref{Project: m.Upstream.Project, Owner: "gateway", Key: k})
	})
}
