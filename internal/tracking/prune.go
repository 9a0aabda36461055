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

// Bounds of a step of Prune: other writes wait for one transaction of it.
const (
	pruneStep   = 50
	prunePoints = 20_000
	pruneTime   = 10 * time.Second
)

// Pruned is what is gone for ever, or would be.
type Pruned struct {
	Experiments, Runs, Models int
	Files                     int
	Bytes                     int64
	Kept                      int  // that the principal may not remove, for their label
	More                      bool // there is more to remove: call again
}

// Prunable says what Prune would remove.
func (s *Service) Prunable(ctx context.Context, p project.Name, older time.Duration) (out Pruned, err error) {
	before, err := s.prunes(ctx, p, older)
	if err != nil {
		return out, err
	}
	err = s.db.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		out, err = s.store.CountDeleted(ctx, tx, p, before)
		return err
	})
	return out, err
}

// prunes says until when what is to be removed was deleted.
func (s *Service) prunes(ctx context.Context, p project.Name, older time.Duration) (time.Time, error) {
	if older < 0 {
		return time.Time{}, fault.New(fault.Invalid, "an age of %s is less than nothing", older)
	}
	return s.now().Add(-older), s.allow(ctx, ActionPrune, p, "run", "")
}

// Prune removes runs, logged models and experiments for ever that were deleted at least so
// long ago, with what they logged and their files. The names of the experiments are free
// then; their numbers and the ids of runs are not used again. Versions of registered models
// have files of their own and stay. It ends after some seconds, when there may be More.
func (s *Service) Prune(ctx context.Context, p project.Name, older time.Duration) (out Pruned, err error) {
	before, err := s.prunes(ctx, p, older)
	if err != nil {
		return out, err
	}
	until := time.Now().Add(pruneTime)
	for _, step := range []func(context.Context, project.Name, time.Time, time.Time, *Pruned) error{s.pruneRuns, s.pruneModels, s.pruneExperiments} {
		if err := step(ctx, p, before, until, &out); err != nil || out.More {
			return out, err
		}
	}
	return out, nil
}

func (s *Service) pruneRuns(ctx context.Context, p project.Name, before, until time.Time, out *Pruned) error {
	for after := RunID(""); ; {
		if err := s.forgetPoints(ctx, p); err != nil { // of these, and of those before a crash
			return err
		}
		if time.Now().After(until) {
			out.More = true
			return nil
		}
		var runs []Run
		err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			runs, err = s.store.DeletedRuns(ctx, tx, p, before, after, pruneStep)
			return err
		})
		if err != nil || len(runs) == 0 {
			return err
		}
		after = runs[len(runs)-1].ID
		var may []Run
		for _, r := range runs {
			if s.allowLabelled(ctx, ActionPrune, p, "run", string(r.ID), r.Owner, r.Origin) != nil {
				out.Kept++
				continue
			}
			may = append(may, r)
		}
		err = s.pruned(ctx, p, out, func(ctx context.Context, tx *store.Tx, gone *Pruned) (files []Stored, err error) {
			for _, r := range may {
				if r, err = s.store.Run(ctx, tx, p, r.ID); fault.Is(err, fault.NotFound) || err == nil && r.Stage != Deleted {
					continue // by another, or restored
				}
				if err != nil {
					return nil, err
				}
				if err := s.store.RemoveRun(ctx, tx, r); err != nil {
					return nil, err
				}
				of, err := s.removeFiles(ctx, tx, string(r.ID))
				if err != nil {
					return nil, err
				}
				files = append(files, of...)
				gone.Runs++
				if err := pruneAudit(ctx, tx, p, "run "+string(r.ID), map[string]any{"name": r.Name, "experiment": int64(r.Experiment), "files": len(of)}); err != nil {
					return nil, err
				}
			}
			return files, nil
		})
		if err != nil {
			return err
		}
	}
}

// forgetPoints removes the points of runs that are gone, some at a time.
func (s *Service) forgetPoints(ctx context.Context, p project.Name) error {
	var runs []RunID
	err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		runs, err = s.store.PrunedRuns(ctx, tx, p)
		return err
	})
	for _, run := range runs {
		for done := false; err == nil && !done; {
			err = s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) (err error) {
				done, err = s.store.RemovePoints(ctx, tx, run, prunePoints)
				return err
			})
		}
	}
	return err
}

func (s *Service) pruneModels(ctx context.Context, p project.Name, before, until time.Time, out *Pruned) error {
	for after := LoggedModelID(""); ; {
		if time.Now().After(until) {
			out.More = true
			return nil
		}
		var models []LoggedModel
		err := s.db.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			models, err = s.store.DeletedModels(ctx, tx, p, before, after, pruneStep)
			return err
		})
		if err != nil || len(models) == 0 {
			return err
		}
		after = models[len(models)-1].ID
		var may []LoggedModel
		for _, m := range models {
			if s.allowLabelled(ctx, ActionPrune, p, "logged_model", string(m.ID), m.Owner, m.Origin) != nil {
				out.Kept++
				continue
			}
			may = append(may, m)
		}
		err = s.pruned(ctx, p, out, func(ctx context.Context, tx *store.Tx, gone *Pruned) (files []Stored, err error) {
			for _, m := range may {
				removed, err := s.store.RemoveModel(ctx, tx, m, before)
				if err != nil {
					return nil, err
				}
				if !removed { // by another, or its experiment is restored
					continue
				}
				of, err := s.removeFiles(ctx, tx, string(m.ID))
				if err != nil {
					return nil, err
				}
				files = append(files, of...)
				gone.Models++
				if err := pruneAudit(ctx, tx, p, "logged model "+string(m.ID), map[string]any{"name": m.Name, "experiment": int64(m.Experiment), "files": len(of)}); err != nil {
					return nil, err
				}
			}
			return files, nil
		})
		if err != nil {
			return err
		}
	}
}

// removeFiles takes an owner's artifacts off the record and gives them.
func (s *Service) removeFiles(ctx context.Context, tx *store.Tx, owner string) ([]Stored, error) {
	files, err := s.store.Artifacts(ctx, tx, owner, "", s.maxFiles)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	return files, s.store.DeleteArtifacts(ctx, tx, owner, "")
}

// pruneExperiments removes those of which nothing is left. The first one stays: clients take
// it for granted.
func (s *Service) pruneExperiments(ctx context.Context, p project.Name, before, until time.Time, out *Pruned) error {
	return s.pruned(ctx, p, out, func(ctx context.Context, tx *store.Tx, gone *Pruned) ([]Stored, error) {
		empty, err := s.store.DeletedExperiments(ctx, tx, p, before)
		for _, e := range empty {
			if err := s.store.RemoveExperiment(ctx, tx, e); err != nil {
				return nil, err
			}
			gone.Experiments++
			if err := pruneAudit(ctx, tx, p, "experiment "+e.Name, map[string]any{"id": int64(e.ID)}); err != nil {
				return nil, err
			}
			if time.Now().After(until) {
				gone.More = true
				break
			}
		}
		return nil, err
	})
}

// pruned removes in a transaction, and then the objects of the files.
func (s *Service) pruned(ctx context.Context, p project.Name, out *Pruned, remove func(context.Context, *store.Tx, *Pruned) ([]Stored, error)) error {
	var gone Pruned
	var files []Stored
	err := s.db.Update(ctx, string(p), func(ctx context.Context, tx *store.Tx) (err error) {
		gone = Pruned{} // it may run again
		files, err = remove(ctx, tx, &gone)
		return err
	})
	if err != nil {
		return err
	}
	for _, f := range files {
		gone.Bytes += f.Size
		s.drop(ctx, blob.Ref{Project: string(p), Owner: artifactKeys, Key: blob.Key(f.Object)})
	}
	out.Experiments, out.Runs, out.Models = out.Experiments+gone.Experiments, out.Runs+gone.Runs, out.Models+gone.Models
	out.Files, out.Bytes, out.More = out.Files+len(files), out.Bytes+gone.Bytes, out.More || gone.More
	return nil
}

func pruneAudit(ctx context.Context, tx *store.Tx, p project.Name, object string, detail map[string]any) error {
	detail["act"] = "prune"
	return audit.Append(ctx, tx, audit.Entry{Project: string(p), Action: string(ActionPrune), Object: object, Detail: detail})
}
