package tracking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	Lost       []string     // the first of what was left out, and why
	LostCount  int
	Points     int // metric points that were written
}

func (o *ImportOutcome) lose(err error) {
	if o.LostCount++; len(o.Lost) < maxLosses {
		o.Lost = append(o.Lost, err.Error())
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
// Repeating it changes nothing: a run that came before gets what its server says
// now, points that are there are not logged twice, and nothing that was logged here
// since is removed. What may not be logged is left out of a run; a run that cannot
// be one is refused; neither keeps the others from coming.
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

// Imported gives the digests with which things came, by id; empty where not all of
// it has.
func (s *Imports) Imported(ctx context.Context, p project.Name, kind ImportKind, ids []string) (map[string]string, error) {
	if err := s.allow(ctx, ActionImport, p, "run", ""); err != nil {
		return nil, err
	}
	if len(ids) > MaxImportItems {
		return nil, fault.New(fault.TooLarge, "a request may name at most %d identifiers", MaxImportItems)
	}
	var out map[string]string
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		out, err = s.store.Imported(ctx, tx, p, kind, ids)
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
	known       map[ImportKind]map[string]string // digests, by id
	experiments map[ExperimentID]error           // that were looked for
	pruned      []RunID                          // of which points are being removed
}

// begin asks what came before.
func (i *importing) begin(ctx context.Context, tx *store.Tx, in Import) error {
	ids := map[ImportKind][]string{}
	for _, e := range in.Experiments {
		ids[ImportExperiment] = append(ids[ImportExperiment], e.Name)
	}
	for _, m := range in.Models {
		ids[ImportModel] = append(ids[ImportModel], string(m.ID))
	}
	for _, r := range in.Runs {
		ids[ImportRun] = append(ids[ImportRun], string(r.ID))
	}
	i.known = map[ImportKind]map[string]string{ImportExperiment: {}, ImportModel: {}, ImportRun: {}}
	for kind, list := range ids {
		var err error
		if i.known[kind], err = i.s.store.Imported(ctx, tx, i.p, kind, list); err != nil {
			return err
		}
	}
	var err error
	i.pruned, err = i.s.store.Pruning(ctx, tx, ids[ImportRun])
	return err
}

// came reports whether an item came before with the same digest, and records that
// it comes now.
func (i *importing) came(ctx context.Context, tx *store.Tx, o *ImportOutcome, digest string, complete bool) (same bool, err error) {
	old, before := i.known[o.Kind][o.ID]
	if before && old != "" && old == digest {
		o.Result = ImportUnchanged
		return true, nil
	}
	o.Result = ImportCreated
	if before {
		o.Result = ImportUpdated
	}
	if !complete {
		digest = ""
	}
	i.known[o.Kind][o.ID] = digest
	return false, i.s.store.PutImported(ctx, tx, i.p, o.Kind, o.ID, digest, i.s.now())
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

// experiment keeps an experiment, which is found again by its name. Its number is
// kept where nothing else has it.
func (i *importing) experiment(ctx context.Context, tx *store.Tx, e ImportedExperiment) (ImportOutcome, error) {
	o := ImportOutcome{Kind: ImportExperiment, ID: e.Name}
	err := cmp.Or(checkImported(e.Digest, e.Stage), checkExperimentName(e.Name), checkInstant(e.Created), checkInstant(e.Updated))
	if err != nil {
		o.refuse(err)
		return o, nil
	}
	ours, err := i.s.store.ExperimentNamed(ctx, tx, i.p, e.Name)
	exists := err == nil
	// What was made here, and has the name by chance, is neither deleted nor restored.
	old, before := i.known[o.Kind][o.ID]
	native := exists && (!before || strings.HasPrefix(old, madeHere))
	if native {
		e.Digest = madeHere + e.Digest
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return o, err
	}
	if exists {
		o.Experiment = ours.ID
	}
	if same, err := i.came(ctx, tx, &o, e.Digest, true); err != nil || same && exists {
		return o, err
	}
	if exists {
		o.Result = ImportUpdated
		switch {
		case !native:
			ours.Stage = e.Stage
		case ours.Stage != e.Stage:
			o.lose(fmt.Errorf("it is %s in the source and stays %s here: an experiment with this name was created here", e.Stage, ours.Stage))
		}
	} else {
		o.Result = ImportCreated
		ours = Experiment{Project: i.p, ID: e.ID, Name: e.Name, Stage: e.Stage, Created: e.Created}
		if ours.ID, err = i.number(ctx, tx, e.ID); err != nil {
			return o, err
		}
		o.Experiment = ours.ID
	}
	if !native || e.Updated.After(ours.Updated) {
		ours.Updated = e.Updated
	}
	if err := i.s.store.PutExperiment(ctx, tx, ours); err != nil {
		return o, err
	}
	tags := i.pairs(&o, "tag", e.Tags, "", MaxExperimentTag)
	return o, i.s.store.PutExperimentTags(ctx, tx, i.p, ours.ID, tags)
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
	if _, before := i.known[o.Kind][o.ID]; !before {
		if _, err := i.s.store.LoggedModel(ctx, tx, i.p, m.ID); !fault.Is(err, fault.NotFound) {
			return i.taken(o, err)
		}
	}
	m.Project, m.Owner, m.Origin = i.p, i.owner, Origin{}
	if old, before := i.known[o.Kind][o.ID]; !before || old != m.Digest {
		ours, err := i.s.store.ReplaceLoggedModel(ctx, tx, m.LoggedModel)
		if err != nil || !ours {
			return i.taken(o, err)
		}
	}
	if same, err := i.came(ctx, tx, &o, m.Digest, true); err != nil || same {
		return o, err
	}
	params, tags := i.pairs(&o, "param", m.Params, "", MaxLoggedModelParam), i.pairs(&o, "tag", m.Tags, "", MaxTagValue)
	if err := i.s.models.putModelPairs(ctx, tx, m.ID, params, tags); err != nil {
		return o, err
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
	case !r.Part && (!before || old != r.Digest):
		if ok, err := i.head(ctx, tx, r, before, &o); err != nil || !ok {
			return o, err
		}
	}
	if same, err := i.came(ctx, tx, &o, r.Digest, !r.More); err != nil || same {
		return o, err
	}
	if !r.Part {
		if err := i.data(ctx, tx, r, &o); err != nil {
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

// head keeps a run without its data; false: it was refused.
func (i *importing) head(ctx context.Context, tx *store.Tx, r ImportedRun, before bool, o *ImportOutcome) (bool, error) {
	if err := i.within(ctx, tx, r.Experiment); err != nil {
		refused, err := i.away(*o, err)
		*o = refused
		return false, err
	}
	if !before { // what was made here is not what came
		if _, err := i.s.store.Run(ctx, tx, i.p, r.ID); !fault.Is(err, fault.NotFound) {
			refused, err := i.taken(*o, err)
			*o = refused
			return false, err
		}
	}
	r.Owner, r.Origin = i.owner, Origin{}
	r.Created = time.UnixMilli(int64(r.Start))
	if r.Stage == Deleted {
		r.Deleted = i.s.now()
	}
	ours, err := i.s.store.ReplaceRun(ctx, tx, r.Run)
	if err != nil || !ours {
		refused, err := i.taken(*o, err)
		*o = refused
		return false, err
	}
	return true, nil
}

// data keeps what a run has beside its history. What came of it before is given
// its value of now.
func (i *importing) data(ctx context.Context, tx *store.Tx, r ImportedRun, o *ImportOutcome) error {
	if params := i.pairs(o, "param", r.Params, "Param ", MaxParamValue); len(params) > 0 {
		if err := i.s.store.PutParams(ctx, tx, r.Run, params); err != nil {
			return err
		}
	}
	lists := func(t Pair) bool { return t.Key == tagModels } // a list of models is longer than other tags
	tags := i.pairs(o, "tag", slices.DeleteFunc(slices.Clone(r.Tags), lists), "", MaxTagValue)
	tags = append(tags, i.pairs(o, "tag", slices.DeleteFunc(slices.Clone(r.Tags), func(t Pair) bool { return !lists(t) }), "", maxModels)...)
	if len(tags) > 0 {
		if err := i.s.store.PutTags(ctx, tx, r.Run, tags); err != nil {
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
