package tracking

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/store"
)

// ActionPrune removes for ever what was deleted.
const ActionPrune policy.Action = "run.prune"

// Bounds of a transaction of Prune, for which other writes wait, and of a call.
const (
	pruneStep   = 50 // runs, logged models, experiments
	pruneFiles  = 5_000
	prunePoints = 20_000
	pruneRead   = 2_000
	pruneTime   = 10 * time.Second
)

// Marked is a run or a logged model that is deleted, or whose experiment is.
type Marked struct {
	Place
	Name       string
	Experiment ExperimentID
	Origin
	Files int
	Bytes int64
}

// Pruned is what is gone for ever, or would be.
type Pruned struct {
	Experiments, Runs, Models int
	Files                     int
	Bytes                     int64
	Kept                      int  // runs and logged models whose label keeps the principal from it
	More                      bool // there is more to remove: call again
}

func (out *Pruned) add(m Marked) {
	if m.Run != "" {
		out.Runs++
	} else {
		out.Models++
	}
	out.Files += m.Files
	out.Bytes += m.Bytes
}

// Maintenance removes what was deleted, and what nothing refers to. Its callers are the housekeeping
// of the server and the HTTP API.
type Maintenance struct {
	*core
	uploads *Uploads
	cited   func(ctx context.Context, tx *store.Tx, p project.Name, run string) (bool, error)
}

// pruning is one call of Prune.
type pruning struct {
	*Maintenance
	p             project.Name
	before, until time.Time
	dry           bool
	out           Pruned
	kept          map[ExperimentID]bool // something of them stays
}

// Prune removes runs, logged models and experiments for ever that were deleted at least so
// long ago, with what they logged and their files; dry only says which. The names of the
// experiments are free then. Runs of jobs that have not ended stay. Versions of registered models
// have files of their own and stay, and so do the runs that they came from. It ends after some seconds, when there may be More.
func (s *Maintenance) Prune(ctx context.Context, p project.Name, older time.Duration, dry bool) (Pruned, error) {
	if older < 0 {
		return Pruned{}, fault.New(fault.Invalid, "the age %s is negative", older)
	}
	if err := s.allow(ctx, ActionPrune, p, "run", ""); err != nil {
		return Pruned{}, err
	}
	g := pruning{Maintenance: s, p: p, before: s.now().Add(-older), until: time.Now().Add(pruneTime), dry: dry, kept: map[ExperimentID]bool{}}
	if !dry { // of a call that was cut off
		if err := g.points(ctx); err != nil || g.out.More {
			return g.out, err
		}
	}
	for _, kind := range []string{"run", "logged_model"} {
		if err := g.marked(ctx, kind); err != nil || g.out.More {
			return g.out, err
		}
	}
	return g.out, g.experiments(ctx)
}

func (g *pruning) late() bool { return time.Now().After(g.until) }

// marked goes through the runs, or the logged models.
func (g *pruning) marked(ctx context.Context, kind string) error {
	list := g.store.MarkedRuns
	if kind != "run" {
		list = g.store.MarkedModels
	}
	for after := ""; ; {
		var all []Marked
		err := g.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			all, err = list(ctx, tx, g.p, g.before, after, pruneRead)
			return err
		})
		if err != nil || len(all) == 0 {
			return err
		}
		after = all[len(all)-1].ID()
		origins := make([]Origin, len(all))
		for i, m := range all {
			origins[i] = m.Origin
		}
		may, err := g.listed(ctx, ActionPrune, g.p, kind, origins)
		if err != nil {
			return err
		}
		if err := g.needed(ctx, kind, all, may); err != nil {
			return err
		}
		var step []Marked
		files := 0
		for i, m := range all {
			switch {
			case !may[i]:
				g.out.Kept++
				g.kept[m.Experiment] = true
			case g.dry:
				g.out.add(m)
			default:
				step, files = append(step, m), files+m.Files
			}
			if len(step) == 0 || len(step) < pruneStep && files < pruneFiles && i+1 < len(all) {
				continue
			}
			if err := g.remove(ctx, step); err != nil || g.out.More {
				return err
			}
			step, files = nil, 0
			if g.late() {
				g.out.More = true
				return nil
			}
		}
	}
}

// needed takes out of may the runs that something cites.
func (g *pruning) needed(ctx context.Context, kind string, all []Marked, may []bool) error {
	if g.cited == nil || kind != "run" {
		return nil
	}
	return g.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		for i, m := range all {
			if !may[i] {
				continue
			}
			cited, err := g.cited(ctx, tx, g.p, m.ID())
			if err != nil {
				return err
			}
			may[i] = !cited
		}
		return nil
	})
}

// remove removes some, their objects and their points.
func (g *pruning) remove(ctx context.Context, step []Marked) error {
	var gone Pruned
	var files []Stored
	err := g.db.Update(ctx, string(g.p), func(ctx context.Context, tx *store.Tx) error {
		gone, files = Pruned{}, nil // it may run again
		for _, m := range step {
			removed, err := g.store.RemoveMarked(ctx, tx, g.p, m, g.before)
			if err != nil {
				return err
			}
			if !removed { // by another, or it is restored
				continue
			}
			of, err := g.store.Artifacts(ctx, tx, m.ID(), "", g.maxFiles)
			if err == nil && len(of) > 0 {
				err = g.store.DeleteArtifacts(ctx, tx, m.ID(), "")
			}
			if err != nil {
				return err
			}
			files = append(files, of...)
			gone.add(m)
			if err := g.record(ctx, tx, m.String(), map[string]any{"name": m.Name, "experiment": int64(m.Experiment), "files": len(of)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	g.out.Runs, g.out.Models, g.out.Files, g.out.Bytes = g.out.Runs+gone.Runs, g.out.Models+gone.Models, g.out.Files+gone.Files, g.out.Bytes+gone.Bytes
	for _, f := range files {
		if ctx.Err() != nil || g.late() {
			break // Sweep deletes them
		}
		g.drop(ctx, blob.Ref{Project: string(g.p), Owner: artifactKeys, Key: blob.Key(f.Object)})
	}
	return g.points(ctx)
}

// points removes those of runs that are gone, some at a time.
func (g *pruning) points(ctx context.Context) error {
	var runs []RunID
	err := g.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		runs, err = g.store.PrunedRuns(ctx, tx, g.p)
		return err
	})
	for _, run := range runs {
		for done := false; err == nil && !done; {
			if g.late() {
				g.out.More = true
				return nil
			}
			err = g.db.Update(ctx, string(g.p), func(ctx context.Context, tx *store.Tx) (err error) {
				done, err = g.store.RemovePoints(ctx, tx, run, prunePoints)
				return err
			})
		}
	}
	return err
}

// experiments removes those of which nothing is left. The first one stays: clients take
// it for granted.
func (g *pruning) experiments(ctx context.Context) error {
	if g.dry {
		var all []ExperimentID
		err := g.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			all, err = g.store.MarkedExperiments(ctx, tx, g.p, g.before)
			return err
		})
		for _, id := range all {
			if !g.kept[id] {
				g.out.Experiments++
			}
		}
		return err
	}
	for {
		n := 0
		err := g.db.Update(ctx, string(g.p), func(ctx context.Context, tx *store.Tx) error {
			empty, err := g.store.EmptyExperiments(ctx, tx, g.p, g.before, pruneStep)
			n = len(empty)
			for _, e := range empty {
				if err := g.store.RemoveExperiment(ctx, tx, e); err != nil {
					return err
				}
				if err := g.record(ctx, tx, "experiment "+e.Name, map[string]any{"id": int64(e.ID)}); err != nil {
					return err
				}
			}
			return err
		})
		if err != nil || n == 0 {
			return err
		}
		if g.out.Experiments += n; g.late() {
			g.out.More = true
			return nil
		}
	}
}

func (g *pruning) record(ctx context.Context, tx *store.Tx, object string, detail map[string]any) error {
	detail["act"] = "prune"
	return audit.Append(ctx, tx, audit.Entry{Project: string(g.p), Action: string(ActionPrune), Object: object, Detail: detail})
}
