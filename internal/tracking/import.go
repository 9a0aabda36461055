package tracking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionImport brings what another MLflow server had.
const ActionImport policy.Action = "run.import"

// Limits of one batch of an import. A batch is one transaction, in which nobody
// else writes.
const (
	MaxImportItems  = 1000
	MaxImportPoints = 50_000
	maxImportDigest = 100
	maxLosses       = 20 // told of one item
	maxForeignID    = 1 << 53
)

// ImportKind says what came.
type ImportKind string

// The kinds.
const (
	ImportExperiment ImportKind = "experiment"
	ImportRun        ImportKind = "run"
	ImportModel      ImportKind = "logged_model"
)

// Imported is the record of an object that came from another MLflow server.
type Imported struct {
	ID     string // an experiment's name there, a run's or logged model's id
	Digest string // of all that the source said of it; empty where not all of it has come
	Origin string // of an experiment: its number and creation time there, which renames do not change
	Object string // of an experiment: its number here
	Base   Base
}

// conflicting begins the digests of objects with conflicts, which each import reports.
const conflicting = "conflict:"

// Import is a part of what another MLflow server had. Digests are of all that it
// said of an item: one that came with the same digest is left as it is now.
type Import struct {
	From        string // which server, for the audit log
	DryRun      bool   // tell what would happen, and keep nothing
	Experiments []ImportedExperiment
	Models      []ImportedModel
	Runs        []ImportedRun
}

// ImportedExperiment has the identifier of its server.
type ImportedExperiment struct {
	Experiment
	Digest string
}

// ImportedRun is a run with its data; Experiment is ours. Metrics are the points of
// its history. A run with many comes in parts: all but the first have nothing but
// points (Part), all but the last say that there is More. Until the last has come
// the import of the run is not complete, and begins anew.
type ImportedRun struct {
	Run
	Part, More bool
	Digest     string
}

// ImportedModel is a logged model with its data; Experiment is ours.
type ImportedModel struct {
	LoggedModel
	Digest string
}

// ImportResult is what became of an item.
type ImportResult string

// The results.
const (
	ImportCreated   ImportResult = "created"
	ImportUpdated   ImportResult = "updated"
	ImportUnchanged ImportResult = "unchanged"
	ImportRefused   ImportResult = "refused"
)

// ImportOutcome says what became of an item, and what of it could not be kept.
type ImportOutcome struct {
	Kind       ImportKind
	ID         string
	Result     ImportResult
	Reason     string       // why it was refused
	Experiment ExperimentID // ours, of an experiment
	Lost       []string     // the first of what was left out, and why; also conflicts
	LostCount  int
	Points     int // metric points that were written
}

func (o *ImportOutcome) lose(err error) {
	if o.LostCount++; len(o.Lost) < maxLosses {
		o.Lost = append(o.Lost, err.Error())
	}
}

// conflicts reports what Falaj and the source changed both.
func (o *ImportOutcome) conflicts(m Merged) {
	for _, c := range m.Conflicts {
		o.lose(errors.New(c))
	}
}

func (o *ImportOutcome) refuse(err error) {
	o.Result, o.Reason = ImportRefused, err.Error()
}

// errDry undoes a transaction that was only tried.
var errDry = errors.New("dry run")

// Imports takes what another MLflow server had. Its caller is the HTTP API.
type Imports struct {
	*core
	logging   *Logging
	models    *LoggedModels
	artifacts *Artifacts
}

// Import keeps a batch in one transaction, and says what became of each item.
// Repeating it changes nothing: an object that came before gets what its server changed
// since (see Base), points that are there are not logged twice, and nothing that was logged
// or changed here since is lost. What may not be logged is left out of a run; a run that
// cannot be one is refused; neither keeps the others from coming.
func (s *Imports) Import(ctx context.Context, p project.Name, in Import) ([]ImportOutcome, error) {
	if err := s.allow(ctx, ActionImport, p, "run", ""); err != nil {
		return nil, err
	}
	if err := checkText("from", in.From, MaxRunName); err != nil {
		return nil, err
	}
	items, points := len(in.Experiments)+len(in.Models)+len(in.Runs), 0
	for _, r := range in.Runs {
		points += len(r.Metrics)
	}
	if items > MaxImportItems || points > MaxImportPoints {
		return nil, fault.New(fault.TooLarge, "a batch may have at most %d items and %d metric values, and this one has %d and %d", MaxImportItems, MaxImportPoints, items, points)
	}
	if err := s.ensureDefault(ctx, p); err != nil {
		return nil, err
	}
	var out []ImportOutcome
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		i := importing{s: s, p: p, dry: in.DryRun, owner: identity.From(ctx).ID, experiments: map[ExperimentID]error{}}
		out = make([]ImportOutcome, 0, items)
		counts := map[ImportResult]int{}
		keep := func(o ImportOutcome, err error) error {
			counts[o.Result]++
			out = append(out, o)
			return err
		}
		if err := i.begin(ctx, tx, in); err != nil {
			return err
		}
		for _, e := range in.Experiments {
			if err := keep(i.experiment(ctx, tx, e)); err != nil {
				return fault.Wrap(err, "importing experiment %s", clip(e.Name))
			}
		}
		for _, m := range in.Models {
			if err := keep(i.model(ctx, tx, m)); err != nil {
				return fault.Wrap(err, "importing logged model %s", clip(string(m.ID)))
			}
		}
		for _, r := range in.Runs {
			if err := keep(i.run(ctx, tx, r)); err != nil {
				return fault.Wrap(err, "importing run %s", clip(string(r.ID)))
			}
		}
		if in.DryRun {
			return errDry
		}
		if counts[ImportCreated]+counts[ImportUpdated] == 0 {
			return nil
		}
		return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionImport), Object: "runs of " + in.From, Detail: map[string]any{
			"experiments": len(in.Experiments), "logged_models": len(in.Models), "runs": len(in.Runs), "points": points,
			"created": counts[ImportCreated], "updated": counts[ImportUpdated], "refused": counts[ImportRefused],
		}})
	})
	if in.DryRun && errors.Is(err, errDry) {
		err = nil
	}
	return out, err
}

// Imported gives the digests with which things came, by id. A thing of which not all has
// come, or that has conflicts, has another digest than any that a source gives.
func (s *Imports) Imported(ctx context.Context, p project.Name, kind ImportKind, ids []string) (map[string]string, error) {
	if err := s.allow(ctx, ActionImport, p, "run", ""); err != nil {
		return nil, err
	}
	if len(ids) > MaxImportItems {
		return nil, fault.New(fault.TooLarge, "a request may name at most %d identifiers", MaxImportItems)
	}
	out := make(map[string]string, len(ids))
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		known, err := s.store.Imported(ctx, tx, p, kind, ids)
		for id, r := range known {
			out[id] = r.Digest
		}
		return err
	})
	return out, err
}

// ImportArtifact stores a file of something that was imported, which may be
// deleted: then its files come, too. Otherwise it is PutArtifact.
func (s *Imports) ImportArtifact(ctx context.Context, p project.Name, place Place, name string, body io.Reader) (File, error) {
	if err := s.allow(ctx, ActionImport, p, "run", place.ID()); err != nil {
		return File{}, err
	}
	kind := ImportRun
	if place.Run == "" {
		kind = ImportModel
	}
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		known, err := s.store.Imported(ctx, tx, p, kind, []string{place.ID()})
		if _, ok := known[place.ID()]; err == nil && !ok {
			err = fault.New(fault.NotFound, "%s was not imported", place).WithHint("Import it first, then its files.")
		}
		return err
	})
	if err != nil {
		return File{}, err
	}
	return s.artifacts.putArtifact(ctx, p, place, name, body, ActionImport, nil)
}

// importing is the import of one batch, in its transaction.
type importing struct {
	s           *Imports
	p           project.Name
	dry         bool // what other batches would have brought is not there
	owner       string
	known       map[ImportKind]map[string]Imported // by id
	origins     map[string]Imported                // experiments, by origin
	experiments map[ExperimentID]error             // that were looked for
	pruned      []RunID                            // of which points are being removed
}

// begin asks what came before.
func (i *importing) begin(ctx context.Context, tx *store.Tx, in Import) error {
	ids, origins := map[ImportKind][]string{}, []string{}
	for _, e := range in.Experiments {
		ids[ImportExperiment] = append(ids[ImportExperiment], e.Name)
		if origin := e.origin(); origin != "" {
			origins = append(origins, origin)
		}
	}
	for _, m := range in.Models {
		ids[ImportModel] = append(ids[ImportModel], string(m.ID))
	}
	for _, r := range in.Runs {
		ids[ImportRun] = append(ids[ImportRun], string(r.ID))
	}
	i.known = map[ImportKind]map[string]Imported{ImportExperiment: {}, ImportModel: {}, ImportRun: {}}
	for kind, list := range ids {
		var err error
		if i.known[kind], err = i.s.store.Imported(ctx, tx, i.p, kind, list); err != nil {
			return err
		}
	}
	var err error
	if i.origins, err = i.s.store.ImportedFrom(ctx, tx, i.p, ImportExperiment, origins); err != nil {
		return err
	}
	i.pruned, err = i.s.store.Pruning(ctx, tx, ids[ImportRun])
	return err
}

// put records that an item came: complete is false where more of it follows. The result is
// that of a new item, unless it came before.
func (i *importing) put(ctx context.Context, tx *store.Tx, o *ImportOutcome, r Imported, complete bool) error {
	o.Result = ImportCreated
	if _, before := i.known[o.Kind][o.ID]; before {
		o.Result = ImportUpdated
	}
	switch {
	case complete:
	case strings.HasPrefix(r.Digest, conflicting):
		r.Digest = conflicting
	default:
		r.Digest = ""
	}
	i.known[o.Kind][o.ID] = r
	return i.s.store.PutImported(ctx, tx, i.p, o.Kind, r, i.s.now())
}

func checkImported(digest string, stage Stage) error {
	if digest == "" || len(digest) > maxImportDigest {
		return fault.New(fault.Invalid, "its digest is empty or exceeds %d bytes", maxImportDigest)
	}
	if stage != Active && stage != Deleted {
		return fault.New(fault.Invalid, "its lifecycle stage %q is not active or deleted", clip(string(stage)))
	}
	return nil
}

// madeHere begins the digests of experiments that were here before one of their name came.
const madeHere = "here:"

// origin is what names an experiment in its source whatever it is called; empty where the
// source is so old that it has no creation time.
func (e ImportedExperiment) origin() string {
	if e.Created.UnixMilli() <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(e.ID), 10) + "@" + strconv.FormatInt(e.Created.UnixMilli(), 10)
}

func (e Experiment) values(native bool) Values {
	v := Values{}.WithTags(e.Tags)
	if !native {
		v.With("name", e.Name).With("lifecycle_stage", string(e.Stage))
	}
	return v
}

// experiment keeps an experiment, which is found again by its origin, or else by its name. Its
// number is kept where nothing else has it.
func (i *importing) experiment(ctx context.Context, tx *store.Tx, e ImportedExperiment) (ImportOutcome, error) {
	o := ImportOutcome{Kind: ImportExperiment, ID: e.Name}
	err := cmp.Or(checkImported(e.Digest, e.Stage), checkExperimentName(e.Name), checkInstant(e.Created), checkInstant(e.Updated))
	if err != nil {
		o.refuse(err)
		return o, nil
	}
	e.Tags = i.pairs(&o, "tag", e.Tags, "", MaxExperimentTag)
	ours, old, before, err := i.found(ctx, tx, e)
	if fault.Is(err, fault.NotFound) {
		o.Result = ImportCreated
		ours = Experiment{Project: i.p, Name: e.Name, Stage: e.Stage, Created: e.Created, Updated: e.Updated}
		if ours.ID, err = i.number(ctx, tx, e.ID); err != nil {
			return o, err
		}
		o.Experiment = ours.ID
		if err := i.s.store.PutExperiment(ctx, tx, ours); err != nil {
			return o, err
		}
		if err := i.s.store.PutExperimentTags(ctx, tx, i.p, ours.ID, e.Tags); err != nil {
			return o, err
		}
		if before && old.ID != e.Name {
			if err := i.s.store.DeleteImported(ctx, tx, i.p, ImportExperiment, old.ID); err != nil {
				return o, err
			}
		}
		values := e.values(false)
		return o, i.putExperiment(ctx, tx, e, Imported{ID: e.Name, Digest: e.Digest, Base: Base(nil).Next(values, values)}, ours.ID)
	}
	if err != nil {
		return o, err
	}
	o.Experiment, o.Result = ours.ID, ImportUnchanged
	// What was made here, and has the name by chance, keeps its name and stage.
	native := !before || strings.HasPrefix(old.Digest, madeHere)
	base, theirs, here := old.Base, e.values(native), ours.values(native)
	if before && base == nil {
		base = untouched(theirs, here)
	}
	if native {
		e.Digest = madeHere + e.Digest
		for _, differs := range [][3]string{{"lifecycle stage", string(e.Stage), string(ours.Stage)}, {"name", e.Name, ours.Name}} {
			if differs[1] != differs[2] {
				o.lose(fmt.Errorf("its %s is %s in the source and stays %s here: the experiment was created here", differs[0], differs[1], differs[2]))
			}
		}
	}
	m := base.Merge(theirs, here)
	if name, renamed := m.Set["name"]; renamed {
		_, err := i.s.store.ExperimentNamed(ctx, tx, i.p, name)
		switch {
		case err == nil:
			delete(m.Set, "name")
			m.Conflicts = append(m.Conflicts, fmt.Sprintf("it was renamed to %s in the source, a name that another experiment has in Falaj: it stays %s", clip(name), clip(ours.Name)))
		case !fault.Is(err, fault.NotFound):
			return o, err
		default:
			ours.Name = name
		}
	}
	o.conflicts(m)
	if stage, ok := m.Set["lifecycle_stage"]; ok {
		ours.Stage = Stage(stage)
	}
	record := Imported{ID: e.Name, Digest: e.Digest, Base: base.Next(theirs, here.Apply(m))}
	if m.Unchanged() && old.ID == record.ID && old.Digest == record.Digest && old.Object != "" && maps.Equal(old.Base, record.Base) {
		return o, nil
	}
	if !m.Unchanged() || !before {
		o.Result = ImportUpdated
	}
	if old.ID != "" && old.ID != e.Name {
		if err := i.s.store.DeleteImported(ctx, tx, i.p, ImportExperiment, old.ID); err != nil {
			return o, err
		}
	}
	if e.Updated.After(ours.Updated) {
		ours.Updated = e.Updated
	}
	if err := i.s.store.PutExperiment(ctx, tx, ours); err != nil {
		return o, err
	}
	set, remove := m.Tags()
	if err := i.s.store.PutExperimentTags(ctx, tx, i.p, ours.ID, set); err != nil {
		return o, err
	}
	for _, key := range remove {
		if _, err := i.s.store.DeleteExperimentTag(ctx, tx, i.p, ours.ID, key); err != nil {
			return o, err
		}
	}
	return o, i.putExperiment(ctx, tx, e, record, ours.ID)
}

// found looks up the experiment that an imported one is here, with the record of its last
// import; before is false where it was not imported. Error: fault.NotFound.
func (i *importing) found(ctx context.Context, tx *store.Tx, e ImportedExperiment) (ours Experiment, old Imported, before bool, err error) {
	if old, before = i.origins[e.origin()]; !before {
		old, before = i.known[ImportExperiment][e.Name]
	}
	if old.Object != "" {
		number, err := strconv.ParseInt(old.Object, 10, 64)
		if err != nil {
			return ours, old, before, err
		}
		if ours, err = i.s.store.Experiment(ctx, tx, i.p, ExperimentID(number)); !fault.Is(err, fault.NotFound) {
			return ours, old, before, err
		}
	}
	ours, err = i.s.store.ExperimentNamed(ctx, tx, i.p, e.Name)
	return ours, old, before, err
}

func (i *importing) putExperiment(ctx context.Context, tx *store.Tx, e ImportedExperiment, r Imported, ours ExperimentID) error {
	r.Origin, r.Object = e.origin(), strconv.FormatInt(int64(ours), 10)
	i.known[ImportExperiment][r.ID] = r
	if r.Origin != "" {
		i.origins[r.Origin] = r
	}
	return i.s.store.PutImported(ctx, tx, i.p, ImportExperiment, r, i.s.now())
}

// untouched is the base of an object that was imported before bases were stored: what the
// source has of it was not changed here.
func untouched(theirs, ours Values) Base {
	base := Base{}
	for key := range theirs {
		if value, here := ours[key]; here {
			base[key] = digestOf(value)
		}
	}
	return base
}

// number is the identifier of a new experiment: theirs, if it is free.
func (i *importing) number(ctx context.Context, tx *store.Tx, theirs ExperimentID) (ExperimentID, error) {
	if theirs > 0 && theirs < maxForeignID {
		_, err := i.s.store.Experiment(ctx, tx, i.p, theirs)
		if fault.Is(err, fault.NotFound) {
			return theirs, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return i.s.store.NextExperiment(ctx, tx, i.p)
}

// within refuses an experiment that is not there.
func (i *importing) within(ctx context.Context, tx *store.Tx, id ExperimentID) error {
	err, ok := i.experiments[id]
	if !ok && !i.dry {
		_, err = i.s.store.Experiment(ctx, tx, i.p, id)
		i.experiments[id] = err
	}
	return err
}

func valuesOfModel(m LoggedModel, tags []Pair) Values {
	return Values{}.With("name", m.Name).With("model_type", m.Type).With("status", string(m.Status)).With("lifecycle_stage", string(m.Stage)).WithTags(tags)
}

// merge is the merge of an object that came before, and its record. Conflicts are told of.
func (i *importing) merge(o *ImportOutcome, old Imported, digest string, theirs, ours Values) (Merged, Imported) {
	base := old.Base
	if base == nil {
		base = untouched(theirs, ours)
	}
	m := base.Merge(theirs, ours)
	o.conflicts(m)
	if len(m.Conflicts) > 0 {
		digest = conflicting + digest
	}
	return m, Imported{ID: o.ID, Digest: digest, Base: base.Next(theirs, ours.Apply(m))}
}

// model keeps a logged model.
func (i *importing) model(ctx context.Context, tx *store.Tx, m ImportedModel) (ImportOutcome, error) {
	o := ImportOutcome{Kind: ImportModel, ID: string(m.ID)}
	err := cmp.Or(CheckModelID(m.ID), checkImported(m.Digest, m.Stage), checkLoggedModelName(m.Name), checkText("model_type", m.Type, MaxLoggedModelName),
		checkInstant(m.Created), checkInstant(m.Updated))
	if m.Run != "" {
		err = cmp.Or(err, CheckRunID(m.Run))
	}
	if !m.Status.Valid() {
		err = cmp.Or[error](err, fault.New(fault.Invalid, "its status %q is not a status of a logged model", clip(string(m.Status))))
	}
	if err != nil {
		o.refuse(err)
		return o, nil
	}
	if err := i.within(ctx, tx, m.Experiment); err != nil {
		return i.away(o, err)
	}
	old, before := i.known[o.Kind][o.ID]
	if before && old.Digest == m.Digest {
		o.Result = ImportUnchanged
		return o, nil
	}
	ours, err := i.s.store.LoggedModel(ctx, tx, i.p, m.ID)
	exists := err == nil
	if err != nil && !fault.Is(err, fault.NotFound) {
		return o, err
	}
	if exists && !before {
		return i.taken(o, nil)
	}
	m.Project, m.Owner, m.Origin = i.p, i.owner, Origin{}
	params, tags := i.pairs(&o, "param", m.Params, "", MaxLoggedModelParam), i.pairs(&o, "tag", m.Tags, "", MaxTagValue)
	theirs := valuesOfModel(m.LoggedModel, tags)
	record := Imported{ID: o.ID, Digest: m.Digest, Base: Base(nil).Next(theirs, theirs)}
	var remove []string
	if exists {
		filled := []LoggedModel{ours}
		if err := i.s.store.FillLoggedModels(ctx, tx, filled); err != nil {
			return o, err
		}
		here := valuesOfModel(ours, filled[0].Tags)
		var merged Merged
		if merged, record = i.merge(&o, old, m.Digest, theirs, here); merged.Unchanged() && old.Digest == record.Digest {
			o.Result = ImportUnchanged
			return o, nil
		}
		after := here.Apply(merged)
		m.Name, m.Type, m.Status, m.Stage = after["name"], after["model_type"], ModelStatus(after["status"]), Stage(after["lifecycle_stage"])
		if ours.Updated.After(m.Updated) {
			m.Updated = ours.Updated
		}
		tags, remove = merged.Tags()
	}
	if kept, err := i.s.store.ReplaceLoggedModel(ctx, tx, m.LoggedModel); err != nil || !kept {
		return i.taken(o, err)
	}
	if err := i.put(ctx, tx, &o, record, true); err != nil {
		return o, err
	}
	if err := i.s.models.putModelPairs(ctx, tx, m.ID, params, tags); err != nil {
		return o, err
	}
	for _, key := range remove {
		if _, err := i.s.store.DeleteLoggedModelTag(ctx, tx, m.ID, key); err != nil {
			return o, err
		}
	}
	ofRun := map[RunID][]Metric{}
	for n, x := range m.Metrics {
		x.Model = m.ID
		if err := cmp.Or(x.validate("metrics["+itoa(n)+"]."), CheckRunID(x.Run)); err != nil {
			o.lose(err)
			continue
		}
		ofRun[x.Run] = append(ofRun[x.Run], x)
		o.Points++
	}
	for run, metrics := range ofRun {
		if err := i.s.store.PutModelMetrics(ctx, tx, run, metrics); err != nil {
			return o, err
		}
	}
	return o, nil
}

// run keeps a run or a part of its history.
func (i *importing) run(ctx context.Context, tx *store.Tx, r ImportedRun) (ImportOutcome, error) {
	o := ImportOutcome{Kind: ImportRun, ID: string(r.ID)}
	r.Project = i.p
	if r.Stage == "" && r.Part {
		r.Stage = Active
	}
	err := cmp.Or(CheckRunID(r.ID), checkImported(r.Digest, r.Stage))
	if !r.Part {
		err = cmp.Or(err, checkText("run_name", r.Name, MaxRunName), checkText("user_id", r.User, MaxRunName), checkMillis("start_time", r.Start), checkMillis("end_time", r.End))
		if !r.Status.Valid() {
			err = cmp.Or[error](err, fault.New(fault.Invalid, "its status %q is not a status of a run", clip(string(r.Status))))
		}
	}
	if err != nil {
		o.refuse(err)
		return o, nil
	}
	old, before := i.known[o.Kind][o.ID]
	switch {
	case slices.Contains(i.pruned, r.ID):
		o.refuse(fault.New(fault.Conflict, "it is being removed here: complete the removal with falaj run prune"))
		return o, nil
	case r.Part && !before && !i.dry:
		o.refuse(fault.New(fault.Conflict, "its first part is missing"))
		return o, nil
	case before && (old.Digest == r.Digest || r.Part && old.Digest == conflicting+r.Digest):
		o.Result = ImportUnchanged
		return o, nil
	case r.Part:
		record := Imported{ID: o.ID, Digest: r.Digest, Base: old.Base}
		if old.Digest == conflicting {
			record.Digest = conflicting + r.Digest
		}
		if err := i.put(ctx, tx, &o, record, !r.More); err != nil {
			return o, err
		}
	default:
		if done, err := i.whole(ctx, tx, r, old, before, &o); err != nil || done {
			return o, err
		}
	}
	points := make([]Metric, 0, len(r.Metrics))
	for n, m := range r.Metrics {
		m.Model = ""
		if err := m.validate("metrics[" + itoa(n) + "]."); err != nil {
			o.lose(err)
			continue
		}
		m.Value += 0 // no minus zero, as in Log
		points = append(points, m)
	}
	o.Points = len(points)
	if r.Part && i.dry {
		return o, nil
	}
	if r.Part { // which says nothing of its experiment
		whole, err := i.s.store.Run(ctx, tx, i.p, r.ID)
		if err != nil {
			return i.away(o, err)
		}
		r.Experiment = whole.Experiment
	}
	return o, i.s.logging.logMetrics(ctx, tx, r.Run, points)
}

func valuesOfRun(r Run, tags []Pair) Values {
	v := Values{}.With("name", r.Name).With("status", string(r.Status)).With("lifecycle_stage", string(r.Stage)).WithTags(tags)
	if r.End != 0 {
		v["end_time"] = strconv.FormatInt(int64(r.End), 10)
	}
	return v
}

// whole keeps a run with all but its points; done: it was refused, or nothing is to do.
func (i *importing) whole(ctx context.Context, tx *store.Tx, r ImportedRun, old Imported, before bool, o *ImportOutcome) (done bool, err error) {
	if err := i.within(ctx, tx, r.Experiment); err != nil {
		*o, err = i.away(*o, err)
		return true, err
	}
	ours, err := i.s.store.Run(ctx, tx, i.p, r.ID)
	exists := err == nil
	if err != nil && !fault.Is(err, fault.NotFound) {
		return true, err
	}
	if exists && !before { // what was made here is not what came
		*o, err = i.taken(*o, nil)
		return true, err
	}
	r.Owner, r.Origin = i.owner, Origin{}
	r.Created = time.UnixMilli(int64(r.Start))
	tags := i.tags(o, r.Tags)
	theirs := valuesOfRun(r.Run, tags)
	record := Imported{ID: o.ID, Digest: r.Digest, Base: Base(nil).Next(theirs, theirs)}
	var remove []string
	if exists {
		filled := []Run{ours}
		if err := i.s.store.FillRuns(ctx, tx, filled); err != nil {
			return true, err
		}
		here := valuesOfRun(ours, filled[0].Tags)
		var merged Merged
		if merged, record = i.merge(o, old, r.Digest, theirs, here); merged.Unchanged() && old.Digest == record.Digest {
			o.Result = ImportUnchanged
			return true, nil
		}
		after := here.Apply(merged)
		r.Name, r.Status, r.Stage, r.End, r.Deleted = after["name"], RunStatus(after["status"]), Stage(after["lifecycle_stage"]), 0, ours.Deleted
		if end, ended := after["end_time"]; ended {
			n, err := strconv.ParseInt(end, 10, 64)
			if err != nil {
				return true, err
			}
			r.End = Millis(n)
		}
		tags, remove = merged.Tags()
	}
	switch {
	case r.Stage == Active:
		r.Deleted = time.Time{}
	case r.Deleted.IsZero():
		r.Deleted = i.s.now()
	}
	if kept, err := i.s.store.ReplaceRun(ctx, tx, r.Run); err != nil || !kept {
		*o, err = i.taken(*o, err)
		return true, err
	}
	if err := i.put(ctx, tx, o, record, !r.More); err != nil {
		return true, err
	}
	if len(tags) > 0 {
		if err := i.s.store.PutTags(ctx, tx, r.Run, tags); err != nil {
			return true, err
		}
	}
	for _, key := range remove {
		if _, err := i.s.store.DeleteTag(ctx, tx, r.ID, key); err != nil {
			return true, err
		}
	}
	return false, i.data(ctx, tx, r, o)
}

// tags are the tags of a run that may be logged.
func (i *importing) tags(o *ImportOutcome, in []Pair) []Pair {
	lists := func(t Pair) bool { return t.Key == tagModels } // a list of models is longer than other tags
	tags := i.pairs(o, "tag", slices.DeleteFunc(slices.Clone(in), lists), "", MaxTagValue)
	return append(tags, i.pairs(o, "tag", slices.DeleteFunc(slices.Clone(in), func(t Pair) bool { return !lists(t) }), "", maxModels)...)
}

// data keeps what a run has beside its history and tags. What came of it before is given
// its value of now.
func (i *importing) data(ctx context.Context, tx *store.Tx, r ImportedRun, o *ImportOutcome) error {
	if params := i.pairs(o, "param", r.Params, "Param ", MaxParamValue); len(params) > 0 {
		if err := i.s.store.PutParams(ctx, tx, r.Run, params); err != nil {
			return err
		}
	}
	inputs := slices.DeleteFunc(slices.Clone(r.Inputs), func(d DatasetInput) bool {
		err := d.validate("dataset_inputs")
		if err != nil {
			o.lose(err)
		}
		return err != nil
	})
	if len(inputs) > 0 {
		if err := i.s.store.PutInputs(ctx, tx, r.Run, inputs); err != nil {
			return err
		}
	}
	var links []ModelLink
	for _, l := range r.Models {
		err := CheckModelID(l.Model)
		if err == nil {
			_, err = i.s.store.LoggedModel(ctx, tx, i.p, l.Model)
			if err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
			if err != nil && i.dry {
				continue
			}
		}
		if err != nil {
			o.lose(err)
			continue
		}
		links = append(links, l)
	}
	if len(links) == 0 {
		return nil
	}
	return i.s.store.PutModelLinks(ctx, tx, r.ID, links)
}

// pairs are those that may be logged; what is cut or left out of them is told of.
func (i *importing) pairs(o *ImportOutcome, what string, in []Pair, called string, limit int) []Pair {
	out := make([]Pair, 0, len(in))
	in, cut := cutPairs(latestPairs(in), limit)
	for _, key := range cut {
		o.lose(fmt.Errorf("%s %s: its value was truncated to %d characters", what, clip(key), limit))
	}
	for _, p := range in {
		if err := p.validate(what+" ", called, limit); err != nil {
			o.lose(fmt.Errorf("%s %s: %w", what, clip(p.Key), err))
			continue
		}
		out = append(out, p)
	}
	return out
}

// taken refuses an identifier that something else has; err may be a defect.
func (i *importing) taken(o ImportOutcome, err error) (ImportOutcome, error) {
	if err != nil {
		return o, err
	}
	o.refuse(fault.New(fault.Conflict, "the identifier is already used by an object that was not imported into this project"))
	return o, nil
}

// away refuses what belongs to an experiment that is not there.
func (i *importing) away(o ImportOutcome, err error) (ImportOutcome, error) {
	if !fault.Is(err, fault.NotFound) {
		return o, err
	}
	o.refuse(err)
	return o, nil
}

func checkInstant(t time.Time) error { return checkMillis("time", Millis(t.UnixMilli())) }
