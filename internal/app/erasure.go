package app

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/privacy/privacysql"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
)

// openErasures opens what erases persons, with every place that keeps rows of them,
// and erases again whom a restored backup brought back, before anybody is answered.
func (a *App) openErasures(ctx context.Context) error {
	ledger, err := privacy.OpenLedger(a.cfg.ledgerPath(), a.keys.Lasting("erasure ledger"))
	if err != nil {
		return err
	}
	a.erasures = privacy.New(privacy.Config{
		DB: a.db, Store: privacysql.Store{}, Authorizer: a.authority, Sealer: a.keys, Ledger: ledger, Key: a.keys.Lasting("erased persons"), Log: a.log,
		Canonical: func(ctx context.Context, p, entity string, values []string) ([]string, error) {
			return a.features.Identify(ctx, project.Name(p), entity, values)
		},
		Trained: func(ctx context.Context, p string, f privacy.Found, id privacy.ID) ([]string, error) {
			refs := slices.Clone(f.Unsearched) // what was made of a person's rows counts, too
			for _, place := range f.Places {
				if place.Kind == (erasedDatasets{}).Kind() {
					refs = append(refs, place.Name)
				}
			}
			return a.registry.TrainedOn(ctx, project.Name(p), refs, string(id))
		},
	})
	// What is made of something else comes after it: else it would be made again.
	a.erasures.Register(
		erasedStreams{a.features}, erasedDatasets{a.datasets, a.features}, erasedOnline{a.features}, erasedPredictions{a.predictions, a.features},
	)
	if err := a.erasures.Recover(ctx); err != nil {
		return fault.Wrap(err, "erasures")
	}
	a.group.Add(a.erasures.Background())
	return nil
}

// ledgerPath is where the erasure ledger is.
func (c Config) ledgerPath() string {
	return cmp.Or(c.Erasures.Ledger, filepath.Join(c.Data, "erasures.jsonl"))
}

// erasedDatasets are the versions of datasets.
type erasedDatasets struct {
	datasets *dataset.Service
	features *feature.Service
}

// Kind implements privacy.Participant.
func (erasedDatasets) Kind() string { return "datasets" }

func (e erasedDatasets) person(ctx context.Context, s privacy.Subject) (dataset.Person, error) {
	use, err := e.features.Use(ctx, project.Name(s.Project), s.Entity)
	if fault.Is(err, fault.NotFound) { // an older backup may not have it
		err = nil
	}
	purpose := "looking for a person"
	if s.Erasure != "" {
		purpose = "erasure " + string(s.Erasure)
	}
	return dataset.Person{Project: project.Name(s.Project), Entity: s.Entity, Keys: use.Keys, Read: use.Read, Is: s.Is, Purpose: purpose}, err
}

func heldPlace(h dataset.Held) privacy.Place {
	p := privacy.Place{Name: h.Version.Ref().String(), Rows: h.Rows, Into: h.Redacted}
	if h.Version.State == dataset.Rejected {
		p.Note = "a rejected version, removed whole"
	}
	return p
}

// Find implements privacy.Participant.
func (e erasedDatasets) Find(ctx context.Context, s privacy.Subject) (privacy.Found, error) {
	person, err := e.person(ctx, s)
	if err != nil || len(person.Keys) == 0 {
		return privacy.Found{}, err
	}
	held, unsearched, err := e.datasets.Persons(ctx, person)
	f := privacy.Found{Unsearched: unsearched}
	for _, h := range held {
		f.Places = append(f.Places, heldPlace(h))
	}
	return f, err
}

// Erase implements privacy.Participant.
func (e erasedDatasets) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	person, err := e.person(ctx, s)
	if err != nil || len(person.Keys) == 0 {
		return err
	}
	return e.datasets.Redact(ctx, person, func(h dataset.Held) error {
		if h.Redacted != "" {
			v, err := featureData{e.datasets}.Resolve(ctx, person.Project, h.Redacted)
			if err == nil {
				err = e.features.Redacted(ctx, person.Project, h.Version.Ref().String(), v)
			}
			if err != nil && !fault.Is(err, fault.Gone) { // a later erasure may have replaced it
				return err
			}
		}
		return done(privacy.Found{Places: []privacy.Place{heldPlace(h)}})
	})
}

// erasedOnline are the rows of the online store, materialised and pushed.
type erasedOnline struct{ features *feature.Service }

// Kind implements privacy.Participant.
func (erasedOnline) Kind() string { return "online features" }

func personOf(s privacy.Subject) feature.Person {
	values, _ := s.Values()
	return feature.Person{Project: project.Name(s.Project), Entity: s.Entity, Values: values, Is: s.Is, Purpose: "erasure " + string(s.Erasure)}
}

// Prepare implements privacy.Preparer: keys of views of several entities are in the
// rows that the datasets are about to lose.
func (e erasedOnline) Prepare(ctx context.Context, s privacy.Subject) (memo []byte, tokens []string, err error) {
	keys, err := e.features.PersonKeys(ctx, personOf(s))
	if fault.Is(err, fault.NotFound) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	rows, err := e.features.PersonRows(ctx, personOf(s), keys, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		tokens = append(tokens, r.Tokens()...)
	}
	memo, err = json.Marshal(keys)
	return memo, tokens, err
}

// keys are those that were prepared, or, for somebody who only looks, those of now.
func (e erasedOnline) keys(ctx context.Context, s privacy.Subject) (keys feature.PersonKeys, err error) {
	memo := s.Memo(e.Kind())
	if s.Erasure == "" {
		return e.features.PersonKeys(ctx, personOf(s))
	}
	if len(memo) > 0 {
		err = json.Unmarshal(memo, &keys)
	}
	return keys, err
}

// Find implements privacy.Participant.
func (e erasedOnline) Find(ctx context.Context, s privacy.Subject) (f privacy.Found, err error) {
	keys, err := e.keys(ctx, s)
	if fault.Is(err, fault.NotFound) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	rows, err := e.features.PersonRows(ctx, personOf(s), keys, s.Tokens())
	if fault.Is(err, fault.NotFound) {
		return f, nil
	}
	for _, r := range rows {
		if r.Rows > 0 {
			f.Places = append(f.Places, privacy.Place{Name: r.View, Rows: r.Rows})
		}
		if r.Unknown {
			f.Unsearched = append(f.Unsearched, "rows that were pushed to "+r.View)
		}
	}
	return f, err
}

// Erase implements privacy.Participant.
func (e erasedOnline) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	keys, err := e.keys(ctx, s)
	if err != nil {
		return err
	}
	err = e.features.ForgetOnline(ctx, personOf(s), keys, s.Tokens(), func(r feature.PersonRows) error {
		return done(privacy.Found{Places: []privacy.Place{{Name: r.View, Rows: r.Rows}}})
	})
	if fault.Is(err, fault.NotFound) { // an older backup may not have the entity
		return nil
	}
	return err
}

// erasedPredictions are the answers that are kept.
type erasedPredictions struct {
	log      *prediction.Log
	features *feature.Service
}

// Kind implements privacy.Participant.
func (erasedPredictions) Kind() string { return "predictions" }

func (e erasedPredictions) person(ctx context.Context, s privacy.Subject) (prediction.Person, error) {
	use, err := e.features.Use(ctx, project.Name(s.Project), s.Entity)
	if fault.Is(err, fault.NotFound) { // an older backup may not have it
		err = nil
	}
	return prediction.Person{Project: s.Project, Keys: use.Keys, Is: s.Is}, err
}

// Find implements privacy.Participant.
func (e erasedPredictions) Find(ctx context.Context, s privacy.Subject) (f privacy.Found, err error) {
	person, err := e.person(ctx, s)
	if err != nil {
		return f, err
	}
	counts, err := e.log.Count(ctx, person)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		f.Places = append(f.Places, privacy.Place{Name: name, Rows: counts[name]})
	}
	return f, err
}

// Erase implements privacy.Participant.
func (e erasedPredictions) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	person, err := e.person(ctx, s)
	if err != nil {
		return err
	}
	return e.log.Erase(ctx, person, func(deployment string, rows int64) error {
		return done(privacy.Found{Places: []privacy.Place{{Name: deployment, Rows: rows}}})
	})
}

// erasedStreams are the logs of the events that views follow, and their dead letters.
type erasedStreams struct{ features *feature.Service }

// Kind implements privacy.Participant.
func (erasedStreams) Kind() string { return "streams" }

// each visits the datasets that views of the entity read: no others have a log.
func (e erasedStreams) each(ctx context.Context, s privacy.Subject, dry bool, visit func(privacy.Place) error) error {
	use, err := e.features.Use(ctx, project.Name(s.Project), s.Entity)
	if fault.Is(err, fault.NotFound) { // an older backup may not have it
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(use.Read)) {
		gone, err := e.features.ForgetEvents(ctx, privacy.ActionErase, personOf(s), name, use.Keys, dry)
		if err != nil {
			return fault.Wrap(err, "the stream of dataset %s", name)
		}
		if n := gone.Events + gone.Letters; n > 0 {
			if err := visit(privacy.Place{Name: name, Rows: int64(n)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Find implements privacy.Participant.
func (e erasedStreams) Find(ctx context.Context, s privacy.Subject) (f privacy.Found, err error) {
	err = e.each(ctx, s, true, func(p privacy.Place) error {
		f.Places = append(f.Places, p)
		return nil
	})
	return f, err
}

// Erase implements privacy.Participant.
func (e erasedStreams) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	return e.each(ctx, s, false, func(p privacy.Place) error { return done(privacy.Found{Places: []privacy.Place{p}}) })
}
