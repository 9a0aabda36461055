package erasure

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/ingestion"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/governance/privacy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/serving/prediction"
	"github.com/falaj-ml/falaj/internal/usecase/featuredata"
)

// erasedDatasets are the versions of datasets.
type erasedDatasets struct {
	datasets dataset.Services
	features *feature.Erasure
	// learned maps dataset versions to the models that were trained on them.
	learned func(ctx context.Context, p project.Name) (map[string][]string, error)
}

// Kind implements privacy.Participant.
func (erasedDatasets) Kind() string { return "datasets" }

// keysOf are the join keys of the person's entity; none when nobody knows.
func keysOf(use feature.Use, s privacy.Subject) []string {
	if was := s.Where().Keys; len(was) > 0 { // the pseudonym is of their values
		return was
	}
	return use.Keys
}

// person is who is looked for, and by which columns: those of now, and those of when
// the person was erased first.
func (e erasedDatasets) person(ctx context.Context, s privacy.Subject) (dataset.Person, error) {
	use, err := e.features.Use(ctx, project.Name(s.Project), s.Entity)
	if err != nil && !fault.Is(err, fault.NotFound) { // an older backup may not have it
		return dataset.Person{}, err
	}
	purpose := "search for a person"
	if s.Erasure != "" {
		purpose = "erasure " + string(s.Erasure)
	}
	p := dataset.Person{
		Project: project.Name(s.Project), Entity: s.Entity, Keys: keysOf(use, s), Read: use.Read, Columns: s.Where().Columns, Is: s.Is, Pseudonym: s.Pseudonym(), Purpose: purpose,
	}
	if len(p.Keys) > 0 {
		p.Columns, err = e.datasets.Erasure.Telling(ctx, p)
		return p, err
	}
	return p, nil
}

// named are the versions by which models name the rows that were found: those that
// have them now, and those that these stand for, because of other persons.
func (e erasedDatasets) named(ctx context.Context, p project.Name, f privacy.Found) ([]string, error) {
	var refs []string
	for _, place := range slices.Concat(f.Places, f.Deleted) {
		if place.Kind == e.Kind() {
			refs = append(refs, place.Name)
		}
	}
	for _, u := range f.Unsearched { // what was made of a person's rows counts, too
		if u.Kind == "" || u.Kind == e.Kind() {
			refs = append(refs, u.Name)
		}
	}
	for _, text := range refs {
		ref, err := dataset.ParseRef(text)
		if err != nil {
			continue // it is no version of a dataset
		}
		was, err := e.datasets.Lineage.StoodFor(ctx, p, ref)
		if fault.Is(err, fault.NotFound) {
			continue // its dataset was deleted
		}
		if err != nil {
			return nil, err
		}
		for _, r := range was {
			refs = append(refs, r.String())
		}
	}
	return refs, nil
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
	if err != nil {
		return privacy.Found{}, err
	}
	if len(person.Keys) == 0 {
		return privacy.Found{Unsearched: []privacy.Unsearched{{
			Kind: e.Kind(), Name: "every dataset", Reason: "there is no entity " + s.Entity + ", and the ledger does not contain its join keys",
			Tool: "falaj apply -f ENTITY.yaml, then falaj erase again",
		}}}, nil
	}
	found, err := e.datasets.Erasure.Persons(ctx, person)
	if err != nil {
		return privacy.Found{}, err
	}
	var f privacy.Found
	for _, name := range found.Undeclared {
		f.Unsearched = append(f.Unsearched, undeclared(name, person))
	}
	for _, ref := range found.Blind {
		f.Unsearched = append(f.Unsearched, privacy.Unsearched{
			Kind: e.Kind(), Name: ref, Reason: "it was derived from rows of persons and has no column that identifies them",
			Tool: "falaj delete dataset " + ref + ", and make it again",
		})
	}
	for _, h := range found.Held {
		f.Places = append(f.Places, heldPlace(h))
	}
	return f, e.departed(ctx, person, &f)
}

// inUndeclared is the kind of datasets of which nobody says whose their rows are. It is
// not that of participants: what was made of them counts as made of no person's rows, for a
// column id may be of anything.
const inUndeclared = "undeclared datasets"

// undeclared names such a dataset, with what to do about it.
func undeclared(name string, person dataset.Person) privacy.Unsearched {
	columns := "the column " + person.Keys[0]
	if len(person.Keys) > 1 {
		columns = "the columns " + strings.Join(person.Keys, ", ")
	}
	return privacy.Unsearched{
		Kind: inUndeclared, Name: name,
		Reason: "not searched, because no feature view of " + person.Entity + " reads it and its specification does not say whether its rows are of one; it has " + columns,
		Tool:   "set spec.entities." + person.Entity + " of dataset " + name + ": which column has each join key, or {} when no row is of one; falaj apply -f, then falaj erase again",
	}
}

// departed adds the versions that were deleted with rows of the person in them. Those of
// which nobody knows count when a model was trained on them.
func (e erasedDatasets) departed(ctx context.Context, person dataset.Person, f *privacy.Found) error {
	gone, err := e.datasets.Erasure.Departed(ctx, person)
	if err != nil {
		return err
	}
	var unknown []dataset.Version
	for _, g := range gone {
		v := g.Version
		if g.Had {
			f.Deleted = append(f.Deleted, privacy.Place{Name: v.Ref().String(), Note: "deleted" + onAndBy(v) + "; the number of the person's rows was not stored"})
		} else {
			unknown = append(unknown, v)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	learned, err := e.learned(ctx, person.Project)
	if err != nil || len(learned) == 0 {
		return err
	}
	for _, v := range unknown {
		models := learned[v.Ref().String()]
		if v.Redacts > 0 { // models name the version that it stood for
			was, err := e.datasets.Lineage.StoodFor(ctx, person.Project, v.Ref())
			if err != nil {
				return err
			}
			for _, ref := range was {
				models = append(models, learned[ref.String()]...)
			}
		}
		if len(models) == 0 {
			continue // it left nothing
		}
		why := "an earlier release of Falaj deleted it"
		if v.Tombstone != nil && v.Tombstone.Unknown != "" {
			why = v.Tombstone.Unknown
		} else if v.Tombstone != nil {
			why = "it was not declared as personal data of the entity at that time"
		}
		f.Unsearched = append(f.Unsearched, privacy.Unsearched{
			Kind: e.Kind(), Name: v.Ref().String(), Reason: "it was deleted" + onAndBy(v) + ", and whose rows it had is not known: " + why,
			Tool: "train " + strings.Join(models, ", ") + " again",
		})
	}
	return nil
}

// onAndBy says when and by whom a version was deleted.
func onAndBy(v dataset.Version) (text string) {
	if !v.DeletedAt.IsZero() {
		text = " on " + v.DeletedAt.UTC().Format(time.DateOnly)
	}
	if v.DeletedBy != "" {
		text += " by " + v.DeletedBy
	}
	return text
}

// Erase implements privacy.Participant.
func (e erasedDatasets) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	person, err := e.person(ctx, s)
	if err != nil || len(person.Keys) == 0 {
		return err
	}
	return e.datasets.Erasure.Redact(ctx, person, func(h dataset.Held) error {
		if h.Redacted != "" {
			v, err := featuredata.Data{Datasets: e.datasets}.Resolve(ctx, person.Project, h.Redacted)
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
type erasedOnline struct {
	features        *feature.Erasure
	materialisation *feature.Materialisation
	log             *slog.Logger
}

// Kind implements privacy.Participant.
func (erasedOnline) Kind() string { return "online features" }

func personOf(s privacy.Subject) feature.Person {
	values, _ := s.Values()
	return feature.Person{Project: project.Name(s.Project), Entity: s.Entity, Values: values, Is: s.Is, Purpose: "erasure " + string(s.Erasure)}
}

// maxTokens bounds those of a view in a line of the ledger.
const maxTokens = 10_000

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
		if its := r.Tokens(); len(its) <= maxTokens { // else only the rows that the backup has tell
			tokens = append(tokens, its...)
		}
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
	_ = json.Unmarshal(memo, &keys) // none: then what is not found by the key is listed
	return keys, nil
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
	if err != nil {
		return f, err
	}
	for _, r := range rows {
		if r.Rows > 0 {
			f.Places = append(f.Places, privacy.Place{Name: r.View, Rows: r.Rows})
		}
		if r.Unknown {
			f.Unsearched = append(f.Unsearched, privacy.Unsearched{
				Kind: e.Kind(), Name: r.View, Reason: "it has rows under keys that no dataset has any more", Tool: "falaj feature clear " + r.View,
			})
		}
	}
	if s.Erasure == "" {
		return f, nil // nothing was redacted for it
	}
	outdated, err := e.outdated(ctx, s, rows)
	for _, o := range outdated {
		f.Unsearched = append(f.Unsearched, privacy.Unsearched{
			Kind: e.Kind(), Name: o.View, Reason: "it was derived from " + o.Of + "; it is materialised again", Tool: "falaj feature runs " + o.View + ", falaj feature clear " + o.View,
		})
	}
	return f, err
}

// outdated are the views whose rows may be of the person and are not found by its key:
// those of other entities.
func (e erasedOnline) outdated(ctx context.Context, s privacy.Subject, found []feature.PersonRows) ([]feature.Outdated, error) {
	all, err := e.features.Outdated(ctx, project.Name(s.Project))
	return slices.DeleteFunc(all, func(o feature.Outdated) bool {
		return slices.ContainsFunc(found, func(r feature.PersonRows) bool { return r.View == o.View && !r.Unknown })
	}), err
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
	if err != nil && !fault.Is(err, fault.NotFound) { // an older backup may not have the entity
		return err
	}
	return e.remake(ctx, s, keys)
}

// remake asks for what no key finds to be made again, of what stands for its source.
func (e erasedOnline) remake(ctx context.Context, s privacy.Subject, keys feature.PersonKeys) error {
	rows, err := e.features.PersonRows(ctx, personOf(s), keys, s.Tokens())
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	outdated, err := e.outdated(ctx, s, rows)
	if err != nil {
		return err
	}
	for _, o := range outdated {
		_, err := e.materialisation.Materialise(ctx, feature.MaterialiseRequest{Project: project.Name(s.Project), View: o.View})
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil { // it stays on the certificate, for a person to look
			e.log.WarnContext(ctx, "a feature view with rows of an erased person cannot be materialised again",
				slog.String("view", o.View), slog.String("erasure", string(s.Erasure)), slog.Any("error", err))
		}
	}
	return nil
}

// erasedPredictions are the answers that are kept.
type erasedPredictions struct {
	log      *prediction.Log
	features *feature.Erasure
}

// Kind implements privacy.Participant.
func (erasedPredictions) Kind() string { return "predictions" }

func (e erasedPredictions) person(ctx context.Context, s privacy.Subject) (prediction.Person, error) {
	use, err := e.features.Use(ctx, project.Name(s.Project), s.Entity)
	if fault.Is(err, fault.NotFound) { // an older backup may not have it
		err = nil
	}
	return prediction.Person{Project: s.Project, Keys: keysOf(use, s), Is: s.Is}, err
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
type erasedStreams struct{ erasedDatasets }

// Kind implements privacy.Participant.
func (erasedStreams) Kind() string { return "streams" }

// each visits the logs of all datasets whose rows may be the person's, whoever follows
// them.
func (e erasedStreams) each(ctx context.Context, s privacy.Subject, dry bool, visit func(privacy.Place) error) error {
	person, err := e.person(ctx, s)
	if err != nil {
		return err
	}
	logs, err := e.features.Streamed(ctx, person.Project)
	if err != nil {
		return err
	}
	for _, name := range logs {
		columns := person.Columns[name]
		if len(columns) == 0 {
			continue // no row is of somebody of the entity
		}
		gone, err := e.features.ForgetEvents(ctx, privacy.ActionErase, personOf(s), name, columns, dry)
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
	found, err := e.Find(ctx, s)
	if err != nil {
		return err
	}
	if err := done(found); err != nil {
		return err
	}
	return e.each(ctx, s, false, func(p privacy.Place) error { return done(privacy.Found{Places: []privacy.Place{p}}) })
}

// erasedIngestions are what was read of sources and is in no version yet.
type erasedIngestions struct {
	erasedDatasets
	runs *ingestion.Service
}

// Kind implements privacy.Participant.
func (erasedIngestions) Kind() string { return "ingestions" }

// each visits the runs that read rows for datasets of persons before the erasure was
// asked for. What is read later is as the source is then.
func (e erasedIngestions) each(ctx context.Context, s privacy.Subject, visit func(r ingestion.Run) error) error {
	person, err := e.person(ctx, s)
	if err != nil {
		return err
	}
	before := s.Asked()
	if before.IsZero() {
		before = time.Now()
	}
	runs, err := e.runs.ReadBefore(ctx, person.Project, before)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if len(person.Columns[r.Dataset]) == 0 {
			continue // no row is of somebody of the entity
		}
		if err := visit(r); err != nil {
			return fault.Wrap(err, "run %s of source %s", r.ID, r.Source)
		}
	}
	return nil
}

func runPlace(r ingestion.Run) privacy.Place {
	return privacy.Place{Name: "run " + string(r.ID) + " of source " + r.Source, Note: "rows that are in no version yet, perhaps of the person; the source is read again"}
}

// Find implements privacy.Participant.
func (e erasedIngestions) Find(ctx context.Context, s privacy.Subject) (f privacy.Found, err error) {
	err = e.each(ctx, s, func(r ingestion.Run) error {
		f.Places = append(f.Places, runPlace(r))
		return nil
	})
	return f, err
}

// Erase implements privacy.Participant.
func (e erasedIngestions) Erase(ctx context.Context, s privacy.Subject, done func(privacy.Found) error) error {
	return e.each(ctx, s, func(r ingestion.Run) error {
		if err := done(privacy.Found{Places: []privacy.Place{runPlace(r)}}); err != nil {
			return err
		}
		return e.runs.Reread(ctx, r, "erasure "+string(s.Erasure))
	})
}
