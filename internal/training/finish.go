package training

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/diagnosis"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

// maxLog is how much of an attempt's output becomes an artifact, in bytes.
const maxLog = 64 << 20

// maxRead is how much of it is read for why the attempt ended.
const maxRead = 4 << 30

// maxOutputFiles bounds the output directory of an attempt.
const maxOutputFiles = 100_000

// Changed takes a workload's new state into the attempt and the job, in the
// transaction of the change. It is compute's to call.
func (s *Execution) Changed(ctx context.Context, tx *store.Tx, w compute.Workload) error {
	if w.State == compute.Ended {
		tx.OnCommit(func() { s.cfg.Checkpoints.Halting(w.Label) })
		return nil // Finish has the rest, which needs more than a transaction
	}
	a, err := s.attemptStore.Attempt(ctx, tx, AttemptID(w.ID))
	if err != nil {
		return err
	}
	j, err := s.jobStore.Job(ctx, tx, a.Job)
	if err != nil {
		return err
	}
	switch w.State {
	case compute.Queued:
		a.State, a.Pool, j.Pool, a.Workers, a.Nodes, a.Machine, a.Zone = Placing, "", "", 0, nil, "", ""
	case compute.Placed:
		a.State, a.Pool, j.Pool, a.Workers, a.Nodes = Starting, w.Pool, w.Pool, max(w.Placed, 1), w.Nodes
		a.Machine, a.Zone = w.Machine, w.Zone
	case compute.Running:
		if a.State == Starting {
			a.State = Executing
		}
		a.Started = w.StartedAt
		if j.StartedAt.IsZero() {
			j.StartedAt = w.StartedAt
		}
		if s.looksAt(j) {
			tx.OnCommit(func() { s.watched.Add(1) })
		}
		if j.State.CanBecome(Running) {
			j.State = Running
			if err := publish(ctx, tx, JobStarted, j); err != nil {
				return err
			}
		}
	case compute.Ended:
	}
	if err := s.attemptStore.UpdateAttempt(ctx, tx, a); err != nil {
		return err
	}
	return s.save(ctx, tx, &j)
}

// Finish takes what an ended attempt left, decides whether the job runs again,
// and clears the attempt's place. It is compute's to call.
func (s *Execution) Finish(ctx context.Context, w compute.Workload) error {
	j, a, err := s.both(ctx, w.ID)
	if err != nil {
		return err
	}
	ctx = asLoop(ctx, j, a.ID)
	d := s.dirs(j.ID, a.ID)
	if a.State == AttemptEnded { // recorded before a crash
		return s.clear(ctx, j, d)
	}

	// 1. What it was given is gone before it counts as ended, and before its output is
	// stored: the disk may be full of it. The output stays until the end is recorded,
	// since all of this may be repeated.
	if err := errors.Join(archive.Remove(d.data), archive.Remove(d.scratch), archive.Remove(d.work)); err != nil {
		return fault.Wrap(err, "removing the attempt's data")
	}

	// 2. How did it end, and what follows?
	progress, err := saved(d)
	if err != nil {
		return err
	}
	members, err := s.cfg.Compute.Members(ctx, w.ID)
	if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Gone) {
		return fault.Wrap(err, "reading the workers' exit states")
	}
	var log diagnosis.Log
	if a.Run != "" {
		if log, err = s.keepLog(ctx, a, d); err != nil {
			return err
		}
	}
	e := classifyEnd(j, a, w, members, progress, log)
	if _, err := os.Lstat(d.prepared); e.class == Done && errors.Is(err, fs.ErrNotExist) {
		e = end{class: NodeLost, reason: "the attempt's output is missing: the server was restored from a backup, and backups exclude attempt directories"}
	}
	again, delay := j.again(&e)

	// 3. Take what it left.
	var made left
	if a.Run != "" {
		made, err = s.collect(ctx, j, a, d, e, again)
		switch {
		case final(err) || fault.Full(err): // neither a full disk nor a project at its quota keeps the attempt from ending
			if e.class == Done {
				e, again = end{class: Unstored, reason: err.Error(), hint: fault.HintOf(err)}, false
			} else { // why it failed matters more than what it left
				e.reason += "; its output was not stored: " + err.Error()
			}
		case err != nil:
			return err
		}
		if err := s.cfg.Runs.Finish(ctx, j.Project, a.Run, status(e), w.EndedAt); err != nil {
			return fault.Wrap(err, "ending run %s", a.Run)
		}
	}

	// A full disk does not keep the attempt from ending: the directory stays until what is
	// in it is kept.
	if err := s.cfg.Checkpoints.Halted(ctx, string(j.ID), halt(w, members), again); err != nil {
		s.log.WarnContext(ctx, "storing the checkpoints of an ended attempt failed and is retried", slog.String("job", string(j.ID)), slog.Any("error", err))
	}

	e.at = w.EndedAt
	diverged := ""
	if e.class == Done && a.Run != "" {
		if p, err := s.cfg.Runs.Progress(ctx, j.Project, a.Run, a.since()); err == nil {
			diverged = divergence(p.NoNumbers)
		}
	}
	m, ran := s.measured(ctx, j, a, w, members, e.class)

	// 4. Record it; a job that runs again gets its next attempt in the same
	// transaction.
	err = s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, a.ID)
		if err != nil {
			return err
		}
		if j, err = s.jobStore.Job(ctx, tx, j.ID); err != nil {
			return err
		}
		a.State, a.Class, a.Reason, a.Ended = AttemptEnded, e.class, e.reason, w.EndedAt
		if w.Machine != "" { // where the engine picked the nodes it is known now
			a.Machine, a.Zone = w.Machine, w.Zone
		}
		a.Evidence, a.Lines, a.Hint, a.Blamed, a.Members = e.evidence, e.lines, e.hint, e.blamed, members
		if diverged != "" && !slices.Contains(a.Notes, diverged) {
			a.Notes = append(a.Notes, diverged)
		}
		if err := s.blame(ctx, tx, a); err != nil {
			return err
		}
		if ran {
			if err := s.keepEnd(ctx, tx, j, m); err != nil {
				return err
			}
		}
		if err := s.attemptStore.UpdateAttempt(ctx, tx, a); err != nil {
			return err
		}
		if err := s.cfg.Tokens.RevokeIn(ctx, tx, j.Project, a.ID); err != nil {
			return err
		}
		if !diagnosis.After[e.class].Free && e.class != Done {
			j.Failures++
		}
		if made != (left{}) {
			j.Model, j.Dataset = made.model, made.dataset
		}
		switch {
		case e.class == Done:
			return s.endJob(ctx, tx, &j, Succeeded, e)
		case j.Stop != "":
			return s.endJob(ctx, tx, &j, Cancelled, end{class: Unwanted, reason: j.Stop, at: e.at})
		case !again:
			return s.endJob(ctx, tx, &j, Failed, e)
		}
		j.State, j.Class, j.Reason, j.Hint, j.Pool = Queued, e.class, e.reason, e.hint, ""
		err = audit.Append(ctx, tx, audit.Entry{
			Project: string(j.Project), Action: "job.repeat", Object: "job " + string(j.ID),
			Detail: map[string]any{"attempt": a.ID, "class": e.class},
		})
		if err != nil {
			return err
		}
		if err := publish(ctx, tx, JobQueued, j); err != nil {
			return err
		}
		return s.attempt(ctx, tx, &j, delay)
	})
	if err != nil {
		return fault.Wrap(err, "recording the end of attempt %s", a.ID)
	}

	if ran {
		s.compareNode(ctx, m)
	}

	// 5. Clear its place.
	return s.clear(ctx, j, d)
}

// halt is how an attempt's programs ended, for its checkpoints: in order when all left with 0
// or with 75, of their own will.
func halt(w compute.Workload, members []engine.Member) settled.End {
	orderly := func(code int, signal string) bool { return signal == "" && (code == 0 || code == diagnosis.TempFail) }
	end := settled.End{At: w.EndedAt, InOrder: w.Status.State == engine.Ended && !w.Status.Started.IsZero() && orderly(w.Status.ExitCode, w.Status.Signal)}
	if !w.Status.Ended.IsZero() {
		end.At = w.Status.Ended
	}
	for _, m := range members {
		end.InOrder = end.InOrder && orderly(m.ExitCode, m.Signal)
	}
	return end
}

// status is what a run says when its attempt has ended.
func status(e end) string {
	switch e.class {
	case Done:
		return "FINISHED"
	case Unwanted, Saved, Resized, Moved, Preempted, Reclaimed, Killed, NodeLost:
		return "KILLED"
	default:
		return "FAILED"
	}
}

// left is what became of an attempt's output.
type left struct{ model, dataset string }

// collect stores the output of an attempt whose job does not run again: files
// as artifacts, model/ of a success as a model, rows/ as a version of a dataset where
// one is named. The log is stored always.
func (s *Execution) collect(ctx context.Context, j Job, a Attempt, d dirs, e end, again bool) (made left, err error) {
	full, err := hasEntries(d.logs)
	if err == nil && full {
		err = s.cfg.Runs.Upload(ctx, j.Project, a.Run, d.logs, "logs")
	}
	if fault.Full(err) { // its end is known without
		s.log.WarnContext(ctx, "the log of an attempt is not stored: the store is full", slog.String("attempt", string(a.ID)))
	} else if err != nil {
		return made, fault.Wrap(err, "storing the log")
	}
	if again {
		return made, nil
	}
	files, size, err := checkOutput(d.output, cmp.Or(int64(j.Spec.Disk.Output), s.cfg.MaxOutput))
	if err != nil {
		return made, err
	}
	// Before anything is written: half of it would fill the disk for all.
	if err := s.cfg.Room(size, files); err != nil {
		return made, fault.Wrap(err, "storing the output")
	}
	// The model is moved aside, so that it is not an artifact twice. What is no directory
	// stays, and becomes one.
	noModel, err := aside(d.output, "model", d.model)
	if err != nil {
		return made, err
	}
	var noRows error
	if j.Spec.Into != "" && e.class == Done { // of others rows are artifacts
		if noRows, err = aside(d.output, "rows", d.rows); err != nil {
			return made, err
		}
	}
	if full, err = hasEntries(d.output); err != nil {
		return made, err
	} else if full {
		if err := s.cfg.Runs.Upload(ctx, j.Project, a.Run, d.output, ""); err != nil {
			return made, fault.Wrap(err, "storing the output")
		}
	}
	if e.class != Done {
		return made, nil
	}
	// What cannot be kept as what it should be stays an artifact.
	instead := func(err error, dir, under string) error {
		if full, no := hasEntries(dir); !final(err) || no != nil || !full {
			return err
		}
		return cmp.Or(fault.Wrap(s.cfg.Runs.Upload(ctx, j.Project, a.Run, dir, under), "storing the output"), err)
	}
	if err = noRows; err == nil {
		made.dataset, err = s.keepRows(ctx, j, d)
	}
	if err == nil {
		if err = noModel; err == nil {
			made.model, err = s.keepModel(ctx, j, a, d)
		}
		return made, instead(err, d.model, "model")
	}
	return made, cmp.Or(instead(err, d.rows, "rows"), instead(err, d.model, "model"))
}

// final reports an error that trying again does not mend.
func final(err error) bool {
	if err == nil {
		return false
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooLarge, fault.PermissionDenied, fault.Conflict, fault.Gone, fault.NotFound, fault.Unsupported:
		return true
	default:
		return false
	}
}

// aside moves a directory out of the output, if it is there; no says why it is none.
func aside(output, name, to string) (no, err error) {
	from := filepath.Join(output, name)
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "reading %s", name)
	}
	if !info.IsDir() {
		return fault.New(fault.Invalid, "the job's output %s is a file instead of a directory", name).
			WithHint("Write files into %s/ below FALAJ_OUTPUT_DIR. The file was stored as an artifact of the run.", name), nil
	}
	return nil, fault.Wrap(os.Rename(from, to), "taking %s", name)
}

// keepRows makes a version of the rows that a job left, once.
func (s *Execution) keepRows(ctx context.Context, j Job, d dirs) (string, error) {
	if j.Spec.Into == "" || j.Dataset != "" {
		return j.Dataset, nil
	}
	full, err := hasEntries(d.rows)
	if err == nil && !full {
		err = fault.New(fault.Invalid, "the job succeeded but wrote no rows for dataset %s", j.Spec.Into).
			WithHint("Write Parquet files into rows/ below FALAJ_OUTPUT_DIR.")
	}
	if err != nil {
		return "", err
	}
	earlier, err := s.earlier(ctx, j)
	if err != nil {
		return "", err
	}
	ref, err := s.cfg.Rows.Save(ctx, RowsSpec{Job: j, Earlier: earlier, Dir: d.rows, Made: func(ctx context.Context, tx *store.Tx, ref string) error {
		j, err := s.jobStore.Job(ctx, tx, j.ID)
		if err != nil {
			return err
		}
		j.Dataset = ref
		return s.save(ctx, tx, &j)
	}})
	return ref, fault.Wrap(err, "storing the rows")
}

// noModel is the file by which a job says why it leaves no model.
const noModel = "no-model.txt"

// keepModel makes a model of the files that a job left.
func (s *Execution) keepModel(ctx context.Context, j Job, a Attempt, d dirs) (string, error) {
	full, err := hasEntries(d.model)
	switch {
	case err != nil:
		return "", err
	case !full && j.Spec.Register != "":
		if _, err := os.Lstat(filepath.Join(d.output, noModel)); err == nil {
			return "", nil
		}
		return "", fault.New(fault.Invalid, "the job succeeded but wrote no model to register as %s", j.Spec.Register).
			WithHint("Write the model's files into model/ below FALAJ_OUTPUT_DIR; to register none, write the reason into %s.", noModel)
	case !full:
		return "", nil
	}
	model, err := s.cfg.Models.Save(ctx, ModelSpec{
		Project: j.Project, Register: j.Spec.Register, Run: a.Run, Job: j.ID, Attempt: a.ID, By: j.By, Dir: d.model,
		Inputs: j.Inputs, Environment: j.EnvDigest, Residency: j.Residency, Classification: j.Classification,
	})
	return model, fault.Wrap(err, "storing the model")
}

// keepLog copies the attempt's output to a file, at most maxLog of it, and reads
// what it says. No output is no file.
func (s *Execution) keepLog(ctx context.Context, a Attempt, d dirs) (log diagnosis.Log, err error) {
	r, err := s.cfg.Compute.Logs(ctx, compute.WorkloadID(a.ID), 0, false)
	if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) {
		return log, nil // the engine lost it
	}
	if err != nil {
		return log, fault.Wrap(err, "reading the log")
	}
	defer r.Close()
	in := bufio.NewReader(r)
	if _, err := in.Peek(1); errors.Is(err, io.EOF) {
		return log, nil
	}
	file := filepath.Join(d.logs, "attempt-"+strconv.Itoa(a.Number)+".log")
	copied, full, err := newCopy(file)
	if err != nil {
		return log, err
	}
	all := io.MultiReader(io.TeeReader(io.LimitReader(in, maxLog), copied), io.LimitReader(in, maxRead-maxLog)) // why it ended is at the end
	log, err = diagnosis.Read(all, a.Workers > 1)
	if err = errors.Join(err, copied.Close()); err == nil && full() {
		s.log.WarnContext(ctx, "the log of an attempt is not stored: the disk is full", slog.String("attempt", string(a.ID)))
		_ = os.Remove(file)
	}
	return log, fault.Wrap(err, "copying the log")
}

// newCopy is a file that takes what is written, until the disk is full: why an attempt ended
// is read from its log all the same.
func newCopy(file string) (w io.WriteCloser, full func() bool, err error) {
	c := &lossy{}
	if err = os.MkdirAll(filepath.Dir(file), 0o700); err == nil {
		c.f, err = os.Create(file)
	}
	if err != nil && !fault.NoSpace(err) {
		return nil, nil, err
	}
	c.full = err != nil
	return c, func() bool { return c.full }, nil
}

// lossy is a file of which a full disk makes nothing.
type lossy struct {
	f    *os.File
	full bool
}

func (c *lossy) Write(b []byte) (int, error) {
	if c.full {
		return len(b), nil
	}
	n, err := c.f.Write(b)
	if fault.NoSpace(err) {
		c.full = true
		return len(b), nil
	}
	return n, err
}

func (c *lossy) Close() error {
	if c.f == nil {
		return nil
	}
	err := c.f.Close()
	if fault.NoSpace(err) {
		c.full, err = true, nil
	}
	return err
}

// blame has compute keep work away from the nodes that an attempt's end blames.
func (s *Execution) blame(ctx context.Context, tx *store.Tx, a Attempt) error {
	if len(a.Blamed) == 0 || a.Pool == "" {
		return nil
	}
	tries, err := s.attemptStore.Attempts(ctx, tx, a.Job)
	if err != nil {
		return err
	}
	for _, node := range a.Blamed {
		earlier := 0
		for _, t := range tries {
			if t.ID != a.ID && t.Pool == a.Pool && slices.Contains(t.Blamed, node) {
				earlier++
			}
		}
		d := quarantine(a.Class, earlier)
		if d == 0 {
			continue
		}
		reason := fmt.Sprintf("%s of attempt %d of job %s", a.Class, a.Number, a.Job)
		if err := s.cfg.Compute.Blame(ctx, tx, a.Pool, node, reason, s.now().Add(d)); err != nil {
			return fault.Wrap(err, "recording the slow node %s", node)
		}
	}
	return nil
}

// checkOutput refuses an output directory that cannot become artifacts.
func checkOutput(dir string, most int64) (files, size int64, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == dir {
			return nil
		}
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if !utf8.ValidString(rel) {
			return fault.New(fault.Invalid, "the name of output %.200q is not UTF-8", rel).WithHint("Use UTF-8 names for files and directories.")
		}
		if !e.IsDir() && !e.Type().IsRegular() || path == dir && !e.IsDir() {
			return fault.New(fault.Invalid, "output %.200q is neither a plain file nor a directory", rel).WithHint("Write plain files and directories only; links are not followed.")
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if err := ours(path, info); err != nil {
			return fault.New(fault.Invalid, "output %.200q cannot be read: %w", rel, err).WithHint("Make files and directories readable by their owner.")
		}
		if e.IsDir() {
			return nil
		}
		files++
		size += info.Size()
		if files > maxOutputFiles {
			return fault.New(fault.TooLarge, "the output has more than %d files", maxOutputFiles).WithHint("Keep temporary files in FALAJ_SCRATCH_DIR.")
		}
		if size > most {
			return fault.New(fault.TooLarge, "the output is larger than its limit of %s", resource.Bytes(most).Words()).
				WithHint("Request more in disk.output, or keep temporary files in FALAJ_SCRATCH_DIR.")
		}
		return nil
	})
	return files, size, fault.Wrap(err, "inspecting the output")
}

// ours gives the owner, which a job runs as, the rights that it took away.
func ours(path string, info fs.FileInfo) error {
	need := fs.FileMode(0o400)
	if info.IsDir() {
		need = 0o700
	}
	if has := info.Mode().Perm(); has&need != need {
		return os.Chmod(path, has|need)
	}
	return nil
}

func hasEntries(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(entries) > 0, err
}

// clear removes an attempt's place, and gives the job's checkpoints away when it
// has ended.
func (s *Execution) clear(ctx context.Context, j Job, d dirs) error {
	err := archive.Remove(d.root)
	if j.State.Ended() {
		err = errors.Join(err, s.cfg.Checkpoints.Release(ctx, string(j.ID)))
	}
	return fault.Wrap(err, "clearing the attempt's directory")
}

// divergence says of a job that succeeded that metrics ended as no numbers; empty when none
// did.
func divergence(metrics []string) string {
	const shown = 3
	switch n := len(metrics); {
	case n == 0:
		return ""
	case n > shown:
		metrics = append(slices.Clone(metrics[:shown]), fmt.Sprintf("%d more", n-shown))
	}
	return "the job succeeded, but the last value of " + strings.Join(metrics, ", ") + " is NaN or infinite: the training may have diverged; inspect the inputs, the learning rate and the precision"
}
