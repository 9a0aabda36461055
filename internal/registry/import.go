package registry

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Imported is the record of a registered model or a version that came from another MLflow server.
type Imported struct {
	Name    string // of the model there
	Number  int    // of the version; 0 is the model
	Model   ModelID
	Created int64  // milliseconds, there
	Origin  string // which server, whatever its address
	Base    tracking.Base
	Aliases tracking.Base // of a model
}

// ImportedName is what another MLflow server calls a registered model.
type ImportedName struct {
	Name string
	From string // what it was called at the last import, if it was renamed there since
}

// ImportedModel is a registered model of another MLflow server, without its versions and aliases.
type ImportedModel struct {
	ImportedName
	Origin           string // which server, whatever its address
	Description      string
	Created, Updated time.Time
	Tags             []tracking.Pair
	DryRun           bool
}

// ImportSpec is a version of another MLflow server.
type ImportSpec struct {
	Model            ImportedName
	Origin           string
	Number           int
	Source           string // where its files are here, see ParseSource
	Run              tracking.RunID
	RunLink          string
	Description      string
	Stage            string
	Created, Updated time.Time
	Tags             []tracking.Pair
	DryRun           bool
}

// ImportedAliases are the aliases of a model of another MLflow server: all of them, or with Add
// some.
type ImportedAliases struct {
	Model   ImportedName
	Aliases []Alias
	Add     bool
	DryRun  bool
}

// ImportOutcome says what became of an object, and what of it was not imported.
type ImportOutcome struct {
	Result tracking.ImportResult
	Lost   []string // aliases and stages that were refused, and conflicts, in words
}

// Imports takes registered models and versions of other MLflow servers: the model, then its
// versions, then its aliases. A repeated import changes what the source changed since the last
// one; what was changed here stays, see tracking.Base. Aliases and stages are moved by the
// rules for them. No webhook is told. Its caller is the HTTP API.
type Imports struct {
	*core
	models   *Models
	versions *Versions
}

// errDry undoes a transaction that was only tried.
var errDry = errors.New("dry run")

// update runs a transaction, and undoes it for a dry run.
func (s *Imports) update(ctx context.Context, p project.Name, dry bool, do func(ctx context.Context, tx *store.Tx) error) error {
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) error {
		err := do(ctx, tx)
		if err == nil && dry {
			err = errDry
		}
		return err
	})
	if dry && errors.Is(err, errDry) {
		return nil
	}
	return err
}

// Imported gives records of what came and was not deleted here, by name and number after one.
func (s *Imports) Imported(ctx context.Context, p project.Name, after Imported, limit int) ([]Imported, error) {
	if err := s.allow(ctx, tracking.ActionImport, p, ""); err != nil {
		return nil, err
	}
	var out []Imported
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		var err error
		out, err = s.store.ImportedObjects(ctx, tx, p, after, limit)
		return err
	})
	return out, err
}

// here finds the model that an imported one is, with the record of its last import, which has
// no base where it was not imported. Errors: fault.NotFound; fault.Conflict where it was
// deleted here.
func (s *Imports) here(ctx context.Context, tx *store.Tx, p project.Name, name ImportedName) (m Model, old Imported, err error) {
	old, err = s.store.ImportedObject(ctx, tx, p, name.Name, 0)
	if fault.Is(err, fault.NotFound) && name.From != "" {
		old, err = s.store.ImportedObject(ctx, tx, p, name.From, 0)
	}
	known := err == nil
	if err != nil && !fault.Is(err, fault.NotFound) {
		return m, old, err
	}
	if known {
		now, err := s.store.ModelName(ctx, tx, p, old.Model)
		if err == nil {
			m, err = s.store.Model(ctx, tx, p, now)
		}
		if !fault.Is(err, fault.NotFound) {
			return m, old, err
		}
	}
	old = Imported{}
	m, err = s.store.Model(ctx, tx, p, name.Name)
	if known && fault.Is(err, fault.NotFound) {
		err = fault.New(fault.Conflict, "the model was deleted in Falaj").
			WithHint("To import it again, create a registered model with this name first.")
	}
	return m, old, err
}

// remember stores a record, unless it is what it was.
func (s *Imports) remember(ctx context.Context, tx *store.Tx, p project.Name, was, is Imported) error {
	if reflect.DeepEqual(was, is) {
		return nil
	}
	return s.store.PutImported(ctx, tx, p, is)
}

// changing applies a merge to a model or a version; what the rules refuse is left out of it.
type changing struct {
	*Imports
	p      project.Name
	merged *tracking.Merged
	out    *ImportOutcome
}

// refused leaves a change out that may not be made; any other error is given back.
func (c changing) refused(key string, err error) error {
	if !fault.Is(err, fault.PermissionDenied) && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.NotFound) {
		return err
	}
	c.out.Lost = append(c.out.Lost, key+": "+err.Error())
	delete(c.merged.Set, key)
	c.merged.Remove = slices.DeleteFunc(c.merged.Remove, func(k string) bool { return k == key })
	return nil
}

// Model imports a model without its versions and aliases. Error: fault.Conflict for one that was
// deleted here.
func (s *Imports) Model(ctx context.Context, p project.Name, in ImportedModel) (ImportOutcome, error) {
	var out ImportOutcome
	if err := s.allow(ctx, tracking.ActionImport, p, in.Name); err != nil {
		return out, err
	}
	if err := cmp.Or(CheckName(in.Name), checkText("description", in.Description, MaxDescription), checkTags(in.Tags)); err != nil {
		return out, err
	}
	err := s.update(ctx, p, in.DryRun, func(ctx context.Context, tx *store.Tx) error {
		out = ImportOutcome{Result: tracking.ImportUnchanged}
		m, old, err := s.here(ctx, tx, p, in.ImportedName)
		made := fault.Is(err, fault.NotFound)
		if err != nil && !made {
			return err
		}
		if made {
			out.Result = tracking.ImportCreated
			m = Model{Project: p, ID: ModelID(id.New("mdl")), Name: in.Name, Owner: identity.From(ctx).Owner(), Created: in.Created, Updated: in.Updated}
			if err := s.store.PutModel(ctx, tx, m); err != nil {
				return err
			}
		}
		theirs := tracking.Values{}.With("name", in.Name).With("description", in.Description).WithTags(in.Tags)
		ours := tracking.Values{}.With("name", m.Name).With("description", m.Description).WithTags(m.Tags)
		merged := old.Base.Merge(theirs, ours)
		out.Lost = merged.Conflicts
		c := changing{s, p, &merged, &out}
		if err := c.model(ctx, tx, &m); err != nil {
			return err
		}
		if !merged.Unchanged() {
			if m.Updated = later(m.Updated, in.Updated); !made {
				out.Result = tracking.ImportUpdated
			}
			if err := s.store.PutModel(ctx, tx, m); err != nil {
				return err
			}
		}
		if old.Name != "" && old.Name != in.Name {
			if err := s.store.RenameImported(ctx, tx, p, old.Name, in.Name); err != nil {
				return err
			}
		}
		record := Imported{Name: in.Name, Model: m.ID, Created: in.Created.UnixMilli(), Origin: in.Origin, Base: old.Base.Next(theirs, ours.Apply(merged)), Aliases: old.Aliases}
		if err := s.remember(ctx, tx, p, old, record); err != nil {
			return err
		}
		if out.Result == tracking.ImportUnchanged {
			return nil
		}
		return s.audit(ctx, tx, tracking.ActionImport, p, "model "+m.Name, map[string]any{"act": "import", "id": string(m.ID), "result": string(out.Result)})
	})
	return out, err
}

// model changes what a model says of itself, but for its row.
func (c changing) model(ctx context.Context, tx *store.Tx, m *Model) error {
	if !c.merged.Unchanged() {
		if err := c.allow(ctx, ActionWrite, c.p, m.Name); err != nil {
			return err
		}
	}
	if name, renamed := c.merged.Set["name"]; renamed {
		err := c.models.nameFree(ctx, tx, c.p, name)
		if err == nil {
			err = c.unused(ctx, tx, c.p, m.Name, 0)
		}
		if err == nil {
			err = c.models.renamePolicy(ctx, tx, c.p, m.Name, name)
		}
		if err == nil {
			m.Name = name
		} else if err := c.refused("name", err); err != nil {
			return err
		}
	}
	if text, ok := c.merged.Set["description"]; ok {
		m.Description = text
	}
	if slices.Contains(c.merged.Remove, "description") {
		m.Description = ""
	}
	set, remove := c.merged.Tags()
	if err := c.store.PutModelTags(ctx, tx, m.ID, set); err != nil {
		return err
	}
	for _, key := range remove {
		if err := c.store.DeleteModelTag(ctx, tx, m.ID, key); err != nil {
			return err
		}
	}
	return nil
}

const aliasPrefix = "alias "

// Aliases imports the aliases of a model whose versions have come.
func (s *Imports) Aliases(ctx context.Context, p project.Name, in ImportedAliases) (ImportOutcome, error) {
	var out ImportOutcome
	if err := s.allow(ctx, tracking.ActionImport, p, in.Model.Name); err != nil {
		return out, err
	}
	err := s.update(ctx, p, in.DryRun, func(ctx context.Context, tx *store.Tx) error {
		out = ImportOutcome{Result: tracking.ImportUnchanged}
		m, old, err := s.here(ctx, tx, p, in.Model)
		if fault.Is(err, fault.NotFound) && in.DryRun {
			return nil // it would have been created
		}
		if err != nil {
			return err
		}
		theirs, ours := aliasValues(in.Aliases), aliasValues(m.Aliases)
		if in.Add {
			maps.Copy(theirs, ours)
		}
		merged := old.Aliases.Merge(theirs, ours)
		out.Lost = merged.Conflicts
		c := changing{s, p, &merged, &out}
		if err := c.aliases(ctx, tx, &m, in.DryRun); err != nil {
			return err
		}
		if !merged.Unchanged() {
			out.Result = tracking.ImportUpdated
		}
		record, err := s.store.ImportedObject(ctx, tx, p, cmp.Or(old.Name, in.Model.Name), 0)
		if err != nil {
			return err
		}
		before := record
		record.Aliases = old.Aliases.Next(theirs, ours.Apply(merged))
		return s.remember(ctx, tx, p, before, record)
	})
	return out, err
}

func aliasValues(aliases []Alias) tracking.Values {
	v := tracking.Values{}
	for _, a := range aliases {
		v[aliasPrefix+a.Name] = itoa(a.Version)
	}
	return v
}

// aliases moves aliases of a model, by the rules for them.
func (c changing) aliases(ctx context.Context, tx *store.Tx, m *Model, dry bool) error {
	for _, key := range slices.Sorted(maps.Keys(c.merged.Set)) {
		version := c.merged.Set[key]
		alias := strings.TrimPrefix(key, aliasPrefix)
		number, err := strconv.Atoi(version)
		if err != nil {
			return err
		}
		err = c.promote(ctx, tx, *m, number, alias, "", dry)
		if err == nil && !dry {
			err = c.point(ctx, tx, c.p, m, alias, number, false)
		}
		if err != nil {
			if err := c.refused(key, err); err != nil {
				return err
			}
			continue
		}
		if err := c.audit(ctx, tx, ActionPromote, c.p, "model "+m.Name, map[string]any{"act": "alias", "alias": alias, "version": number}); err != nil {
			return err
		}
	}
	for _, key := range slices.Clone(c.merged.Remove) {
		alias := strings.TrimPrefix(key, aliasPrefix)
		from := m.aliased(alias)
		err := c.promote(ctx, tx, *m, from, "", "", true)
		if err == nil && alias == champion {
			err = c.keepsChampion(ctx, tx, *m)
		}
		if err != nil {
			if err := c.refused(key, err); err != nil {
				return err
			}
			continue
		}
		if err := c.store.DeleteAlias(ctx, tx, m.ID, alias); err != nil {
			return err
		}
		if err := publish(ctx, tx, c.p, EventAliasMoved, AliasEvent{ModelID: m.ID, Model: m.Name, Alias: alias, From: from}); err != nil {
			return err
		}
		if err := c.audit(ctx, tx, ActionPromote, c.p, "model "+m.Name, map[string]any{"act": "unalias", "alias": alias}); err != nil {
			return err
		}
	}
	return nil
}

// promote refuses what the rules for aliases and stages forbid. absent says that the version
// need not be there, as in a dry run, in which it has not come.
func (c changing) promote(ctx context.Context, tx *store.Tx, m Model, number int, alias string, stage Stage, absent bool) error {
	if alias != "" {
		if err := checkAlias(alias); err != nil {
			return err
		}
	}
	if err := c.allow(ctx, ActionPromote, c.p, m.Name); err != nil {
		return err
	}
	v, err := c.liveVersion(ctx, tx, c.p, m.Name, number)
	if fault.Is(err, fault.NotFound) && absent {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.authz.Allow(ctx, ActionPromote, v.object()); err != nil {
		return err
	}
	if alias == "" && stage == "" {
		return nil
	}
	return c.versions.approvals.Cleared(ctx, tx, c.p, m.Name, number, alias, stage, false)
}

// Version imports a version under its number and with its times. It is copied and signed as any
// other. Errors, beside those of CreateVersion: fault.Conflict when another version has the
// number.
func (s *Imports) Version(ctx context.Context, p project.Name, spec ImportSpec) (ImportOutcome, error) {
	var out ImportOutcome
	if err := s.allow(ctx, tracking.ActionImport, p, spec.Model.Name); err != nil {
		return out, err
	}
	if spec.Stage == string(StageNone) {
		spec.Stage = ""
	}
	if spec.Stage != "" {
		stage, err := ParseStage(spec.Stage)
		if err != nil {
			return out, err
		}
		spec.Stage = string(stage)
	}
	if err := cmp.Or(checkText("description", spec.Description, MaxDescription), checkTags(spec.Tags)); err != nil {
		return out, err
	}
	s.anew.Lock() // until what failed on the way has no files any more
	defer s.anew.Unlock()
	var m Model
	var v Version
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if m, _, err = s.here(ctx, tx, p, spec.Model); err == nil {
			v, err = s.store.Version(ctx, tx, p, m.Name, spec.Number)
		}
		return err
	})
	made := false
	switch {
	case err == nil && v.State != Failed && v.Created.UnixMilli() != spec.Created.UnixMilli():
		return out, fault.New(fault.Conflict, "model %s already has a different version %d", m.Name, spec.Number).
			WithHint("Import into a project that has no model of this name.")
	case err == nil && v.State == Ready:
	case err == nil && v.State == Deleted:
		return ImportOutcome{Result: tracking.ImportUnchanged, Lost: []string{"version " + itoa(spec.Number) + " was deleted here"}}, nil
	case err == nil && v.State == Pending:
		return out, v.stillPending()
	case err != nil && !fault.Is(err, fault.NotFound):
		return out, err
	case spec.DryRun:
		return ImportOutcome{Result: tracking.ImportCreated}, nil
	case m.ID == "":
		return out, err
	default: // of what failed, the number is used again
		made = true
		v, err = s.versions.CreateVersion(ctx, p, m.Name, VersionSpec{
			Source: spec.Source, Run: spec.Run, RunLink: spec.RunLink, Description: spec.Description, Tags: spec.Tags, imported: &spec,
		})
		if err != nil {
			return out, err
		}
	}
	err = s.update(ctx, p, spec.DryRun, func(ctx context.Context, tx *store.Tx) error {
		out = ImportOutcome{Result: tracking.ImportUnchanged}
		if made {
			out.Result = tracking.ImportCreated
		}
		return s.settle(ctx, tx, spec, m, v.Number, &out)
	})
	return out, err
}

// settle brings what can change in a version, and its stage. Where an import is cut off before
// it, the next one finds the same to do.
func (s *Imports) settle(ctx context.Context, tx *store.Tx, spec ImportSpec, m Model, number int, out *ImportOutcome) error {
	p := m.Project
	v, err := s.liveVersion(ctx, tx, p, m.Name, number)
	if err != nil {
		return err
	}
	old, err := s.store.ImportedObject(ctx, tx, p, spec.Model.Name, number)
	if fault.Is(err, fault.NotFound) && spec.Model.From != "" {
		old, err = s.store.ImportedObject(ctx, tx, p, spec.Model.From, number)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if old.Model != v.ModelID { // that one was deleted here
		old.Base = nil
	}
	erased := func(t tracking.Pair) bool { return t.Key == ErasedTag } // which only an erasure sets
	values := func(description string, stage Stage, tags []tracking.Pair) tracking.Values {
		if stage == StageNone {
			stage = ""
		}
		return tracking.Values{}.With("description", description).With("stage", string(stage)).WithTags(slices.DeleteFunc(slices.Clone(tags), erased))
	}
	theirs, ours := values(spec.Description, Stage(spec.Stage), spec.Tags), values(v.Description, v.Stage, v.Tags)
	merged := old.Base.Merge(theirs, ours)
	out.Lost = append(out.Lost, merged.Conflicts...)
	c := changing{s, p, &merged, out}
	if err := c.version(ctx, tx, m, &v); err != nil {
		return err
	}
	if !merged.Unchanged() {
		if out.Result == tracking.ImportUnchanged {
			out.Result = tracking.ImportUpdated
		}
		v.Updated = later(v.Updated, spec.Updated)
		if err := s.store.PutVersion(ctx, tx, v); err != nil {
			return err
		}
	}
	record := Imported{Name: spec.Model.Name, Number: number, Model: v.ModelID, Created: spec.Created.UnixMilli(), Origin: spec.Origin, Base: old.Base.Next(theirs, ours.Apply(merged))}
	if err := s.remember(ctx, tx, p, old, record); err != nil {
		return err
	}
	if out.Result == tracking.ImportUnchanged {
		return nil
	}
	return s.audit(ctx, tx, tracking.ActionImport, p, "model "+v.String(), map[string]any{"act": "import", "source": spec.Source, "result": string(out.Result)})
}

// version changes a version, but for its row.
func (c changing) version(ctx context.Context, tx *store.Tx, m Model, v *Version) error {
	if !c.merged.Unchanged() {
		if err := c.authz.Allow(ctx, ActionWrite, v.object()); err != nil {
			return err
		}
	}
	stage, moved := c.merged.Set["stage"]
	if slices.Contains(c.merged.Remove, "stage") {
		stage, moved = string(StageNone), true
	}
	if moved {
		if err := c.promote(ctx, tx, m, v.Number, "", Stage(stage), false); err == nil {
			v.Stage = Stage(stage)
			if err := c.audit(ctx, tx, ActionPromote, c.p, "model "+v.String(), map[string]any{"act": "stage", "stage": stage}); err != nil {
				return err
			}
		} else if err := c.refused("stage", err); err != nil {
			return err
		}
	}
	if text, ok := c.merged.Set["description"]; ok {
		v.Description = text
	}
	if slices.Contains(c.merged.Remove, "description") {
		v.Description = ""
	}
	set, remove := c.merged.Tags()
	if err := c.store.PutVersionTags(ctx, tx, v.ModelID, v.Number, set); err != nil {
		return err
	}
	for _, key := range remove {
		if err := c.store.DeleteVersionTag(ctx, tx, v.ModelID, v.Number, key); err != nil {
			return err
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// number is that of a version to be made: the next one, or that of its server, unless
// something has it by now. One that failed is made anew.
func (s *Versions) number(ctx context.Context, tx *store.Tx, m Model, imported *ImportSpec) (int, error) {
	if imported == nil {
		return s.store.NextVersion(ctx, tx, m.ID)
	}
	state, err := s.store.State(ctx, tx, m.Project, m.ID, imported.Number)
	if fault.Is(err, fault.NotFound) || err == nil && state == Failed {
		return imported.Number, nil
	}
	return 0, cmp.Or[error](err, fault.New(fault.Conflict, "the model already has a version %d", imported.Number))
}

// times are when a version was made and last changed.
func (spec VersionSpec) times(now time.Time) (created, updated time.Time) {
	if spec.imported == nil {
		return now, now
	}
	return spec.imported.Created, spec.imported.Updated
}
