package training

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/training/source"
	"github.com/falaj-ml/falaj/internal/worker/archive"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/settled"
)

var _ compute.Owner = (*Execution)(nil)

// queued is how long an attempt may wait in the queue of another scheduler, beyond
// its own time.
const queued = 30 * 24 * time.Hour

// place names the directories of one attempt.
//
//	attempts/att_…/work        working directory: script or unpacked source
//	attempts/att_…/data/NAME   one directory per input, read-only inside; none without inputs
//	attempts/att_…/output      becomes artifacts
//	attempts/att_…/scratch     home and temporary files
//	attempts/att_…/prepared    that all of the above was complete, see preparation
//	checkpoints/job_…          stays until the job has ended
type dirs struct {
	root, work, data, output, scratch, logs, model, rows, prepared string
	checkpoints                                                    string
}

// preparation says that a place is complete.
type preparation struct {
	Boot   string           `json:"boot"`   // of the machine, in which it was made
	Before map[string]stamp `json:"before"` // the checkpoints that were there
	// Resumes is the newest complete checkpoint, below the directory of checkpoints.
	Resumes string `json:"resumes,omitempty"`
}

// preparation is none where the place is not complete.
func (d dirs) preparation() (p preparation, err error) {
	b, err := os.ReadFile(d.prepared)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fault.Wrap(err, "reading the preparation of the attempt")
	}
	if json.Unmarshal(b, &p) != nil { // the machine went down before it was on disk
		p = preparation{}
	}
	return p, nil
}

func (s *core) dirs(j JobID, a AttemptID) dirs {
	root := filepath.Join(s.cfg.Dir, "attempts", string(a))
	return dirs{
		root: root, work: filepath.Join(root, "work"), data: filepath.Join(root, "data"), output: filepath.Join(root, "output"),
		scratch: filepath.Join(root, "scratch"), logs: filepath.Join(root, "logs"), model: filepath.Join(root, "model"), rows: filepath.Join(root, "rows"),
		prepared:    filepath.Join(root, "prepared"),
		checkpoints: filepath.Join(s.cfg.Dir, "checkpoints", string(j)),
	}
}

// asLoop is the context in which the loop acts for an attempt.
func asLoop(ctx context.Context, j Job, a AttemptID) context.Context {
	return identity.With(ctx, identity.Principal{
		Kind: identity.System, ID: "training", Project: j.Project, Name: fmt.Sprintf("attempt %s of %s for %s", a, j.ID, j.By.ID),
	})
}

// both reads an attempt and its job.
func (s *core) both(ctx context.Context, id compute.WorkloadID) (j Job, a Attempt, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if a, err = s.attemptStore.Attempt(ctx, tx, AttemptID(id)); err != nil {
			return err
		}
		j, err = s.jobStore.Job(ctx, tx, a.Job)
		return err
	})
	return j, a, err
}

// Prepare makes the private place of an attempt, its run and its token, and
// says what to run. It is compute's to call.
func (s *Execution) Prepare(ctx context.Context, w compute.Workload, p compute.Pool) (engine.Spec, error) {
	j, a, err := s.both(ctx, w.ID)
	if err != nil {
		return engine.Spec{}, err
	}
	ctx = asLoop(ctx, j, a.ID)
	d := s.dirs(j.ID, a.ID)
	defer s.prepares(a.ID, "")

	// 1. The environment, still there and fit for this pool.
	var env environment.Usable
	if j.Spec.Environment != "" {
		if env, err = s.cfg.Environments.Use(ctx, j.Project, j.EnvironmentRef()); err != nil {
			return engine.Spec{}, err
		}
		if err := s.cfg.Environments.Check(env, p); err != nil {
			return engine.Spec{}, err
		}
		what := "bringing environment " + j.Spec.Environment + " to it"
		if env.Image != "" {
			what = "pulling image " + env.Image
		}
		s.prepares(a.ID, what)
		if err := s.cfg.Environments.Fetch(ctx, env, p); err != nil {
			return engine.Spec{}, err
		}
	}

	// 2. The directories and the data, unless an earlier process made them.
	if err := s.inputsPermitted(ctx, j); err != nil {
		return engine.Spec{}, err
	}
	s.prepares(a.ID, "writing its inputs")
	notes, err := s.furnish(ctx, j, d, p)
	if err != nil {
		return engine.Spec{}, err
	}
	prepared, err := d.preparation()
	if err != nil {
		return engine.Spec{}, err
	}
	tables, err := s.tables(ctx, j, a.ID, p)
	if err != nil {
		return engine.Spec{}, err
	}
	spec := j.Spec.filled()
	command, err := command(spec, env, d, p.Remote || env.Image != "")
	if err != nil {
		return engine.Spec{}, err
	}
	roles, err := spec.launched(env, d, p)
	if err != nil {
		return engine.Spec{}, err
	}
	if len(command) == 0 {
		command = roles[0].Command
	}
	workers := max(w.Placed, 1)

	// 3. The run and the token.
	run, experimentID, err := s.cfg.Runs.Create(ctx, RunSpec{
		Project: j.Project, Experiment: experiment(j), Name: runName(j, a), Job: j.ID, Attempt: a.ID, Number: a.Number, Continues: j.Run, By: j.By,
		Inputs: j.Inputs, TrainedOn: j.TrainedOn(), Environment: j.EnvDigest, Residency: j.Residency, Classification: j.Classification, Params: j.Spec.declared(workers),
	})
	if err != nil {
		return engine.Spec{}, fault.Wrap(err, "creating the run")
	}
	var token string
	err = s.cfg.DB.Update(ctx, string(j.Project), func(ctx context.Context, tx *store.Tx) error {
		a, err := s.attemptStore.Attempt(ctx, tx, a.ID)
		if err != nil {
			return err
		}
		j, err := s.jobStore.Job(ctx, tx, j.ID)
		if err != nil {
			return err
		}
		a.Run, j.Run = run, run
		a.Notes = append(a.Notes, notes...)
		if err := s.attemptStore.UpdateAttempt(ctx, tx, a); err != nil {
			return err
		}
		if err := s.save(ctx, tx, &j); err != nil {
			return err
		}
		ttl := time.Duration(j.Spec.Timeout) + time.Duration(j.Spec.Grace) + time.Hour
		if p.Remote {
			ttl += queued // the end of the attempt revokes it, whenever that is
		}
		token, err = s.cfg.Tokens.IssueIn(ctx, tx, j, a.ID, !p.Remote && j.Spec.Token != TokenAnywhere, ttl)
		return err
	})
	if err != nil {
		return engine.Spec{}, fault.Wrap(err, "recording the run")
	}

	// 4. What to run.
	settle := j.Spec.Checkpoints.Settled(settled.Default)
	mounts := []engine.Mount{
		{Path: d.work, Writable: true},
		{Path: d.output, Writable: true, Role: engine.Output},
		{Path: d.scratch, Writable: true, Role: engine.Scratch},
		{Path: d.checkpoints, Writable: true, Role: engine.Checkpoints, Settle: settle.Settle, Ready: settle.Ready},
	}
	if len(j.Inputs) > 0 {
		mounts = append(mounts, engine.Mount{Path: d.data})
	}
	return engine.Spec{
		Name: j.Name, Command: command, Env: variables(j, a, d, env, p, workers, run, experimentID, token, prepared.Resumes), Dir: d.work,
		Mounts:  slices.Concat(mounts, tables, env.Mounts),
		Disk:    j.Spec.Disk,
		Network: engine.Network{API: true, Allow: j.Spec.Network}, Secrets: len(j.Spec.Secrets) > 0,
		Image: env.Image, Options: options(env),
		Launch: launch.Spec{
			Framework: j.Spec.Framework, Processes: j.Spec.Processes, Command: command, Python: env.Python, Run: string(a.ID),
			Grace: int(time.Duration(j.Spec.Grace).Seconds()), Roles: roles,
		},
	}, nil
}

// prepares notes for Why what the preparation of an attempt is at; empty forgets it.
func (s *Execution) prepares(a AttemptID, step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if step == "" {
		delete(s.steps, a)
		return
	}
	s.steps[a] = step
}

func (s *core) stepOf(a AttemptID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps[a]
}

// tables are the directories of the tables that a job reads and writes.
func (s *Execution) tables(ctx context.Context, j Job, attempt AttemptID, p compute.Pool) (mounts []engine.Mount, err error) {
	if len(j.Spec.Tables) > 0 && p.Remote {
		return nil, fault.New(fault.Invalid, "spec.tables: tables are only available on pools of the server's machine, and pool %s is remote", p.Name).
			WithHint("Name pools of the engine local in spec.pools.")
	}
	for _, name := range j.Spec.Tables {
		m, err := s.cfg.Tables.Place(ctx, j, attempt, name)
		if err != nil {
			return nil, fault.Wrap(err, "table %s", name)
		}
		mounts = append(mounts, m...)
	}
	return mounts, nil
}

// options are what the environment wants of the engine.
func options(env environment.Usable) map[string]string {
	if len(env.Modules) == 0 {
		return nil
	}
	return map[string]string{"modules": strings.Join(env.Modules, " ")}
}

func experiment(j Job) string {
	if j.Spec.Experiment != "" {
		return j.Spec.Experiment
	}
	return j.Name
}

func runName(j Job, a Attempt) string {
	if a.Number == 1 {
		return j.Name
	}
	return j.Name + "-" + strconv.Itoa(a.Number)
}

// furnish makes the directories of an attempt. What a process of this boot has
// completed is left alone: the attempt may be running in it. The notes say what
// became of the job's checkpoints.
func (s *Execution) furnish(ctx context.Context, j Job, d dirs, p compute.Pool) (notes []string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fault.Wrap(err, "reading the boot identifier")
	}
	done, err := d.preparation()
	if err != nil || done.Boot == string(boot) {
		return nil, err
	}
	if err := archive.Remove(d.root); err != nil {
		return nil, fault.Wrap(err, "clearing the attempt's directory")
	}
	made := []string{d.work, d.output, d.scratch, d.checkpoints}
	if len(j.Inputs) > 0 {
		made = append(made, d.data)
	}
	for _, dir := range made {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, "creating the attempt's directories")
		}
	}
	if err := dropUnfinished(d.checkpoints); err != nil {
		return nil, err
	}
	restored, err := s.cfg.Checkpoints.Restore(ctx, string(j.ID))
	if err != nil {
		return nil, fault.Wrap(err, "restoring checkpoints")
	}
	notes = restored.Notes
	now := preparation{Boot: string(boot), Resumes: restored.Resumes}
	if now.Before, err = checkpoints(d.checkpoints); err != nil {
		return nil, err
	}
	if err := s.code(ctx, j, d); err != nil {
		return nil, err
	}
	for _, in := range j.Inputs {
		dir := filepath.Join(d.data, in.Name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		if err := s.cfg.Data.Export(ctx, j.Project, in, p, dir); err != nil {
			return nil, fault.Wrap(err, "exporting %s", in.Ref)
		}
	}
	b, err := json.Marshal(now)
	if err != nil {
		return nil, err
	}
	// By renaming: half of it would say nothing, and nobody would prepare again.
	if err := os.WriteFile(d.prepared+".tmp", b, 0o600); err != nil {
		return nil, err
	}
	return notes, os.Rename(d.prepared+".tmp", d.prepared)
}

// scriptName is the inline script in the working directory.
const scriptName = "main.py"

// code puts the script or the unpacked source into the working directory.
func (s *Execution) code(ctx context.Context, j Job, d dirs) error {
	if j.Spec.Source != "" {
		_, r, err := s.archives.Open(ctx, j.Project, j.Spec.Source)
		if err != nil {
			return err
		}
		defer r.Close()
		root, err := os.OpenRoot(d.work)
		if err != nil {
			return err
		}
		defer root.Close()
		if _, _, err := source.Unpack(r, root); err != nil {
			return err
		}
	}
	if j.Spec.Script == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(d.work, scriptName), []byte(j.Spec.Script), 0o600)
}

// systemPath is where programs are looked for after the environment's own.
const systemPath = "/usr/local/bin:/usr/bin:/bin"

// command is the argv with the program's absolute path, none of a job whose roles
// have theirs. What the machine has is not looked for where the job runs on another
// one.
func command(spec Spec, env environment.Usable, d dirs, elsewhere bool) ([]string, error) {
	if spec.Script != "" {
		return append([]string{env.Python, filepath.Join(d.work, scriptName)}, spec.Command...), nil
	}
	if len(spec.Command) == 0 {
		return nil, nil
	}
	name := spec.Command[0]
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) {
			return spec.Command, nil
		}
		if err := there(d.work, name); err != nil {
			return nil, err
		}
		return append([]string{filepath.Join(d.work, name)}, spec.Command[1:]...), nil
	}
	if isPython(name) && len(spec.Command) > 1 && strings.HasSuffix(spec.Command[1], ".py") && !filepath.IsAbs(spec.Command[1]) {
		if err := there(d.work, spec.Command[1]); err != nil {
			return nil, err
		}
	}
	if env.Image != "" && (name == "python" || name == "python3") {
		return append([]string{env.Python}, spec.Command[1:]...), nil
	}
	for dir := range strings.SplitSeq(searchPath(env), ":") {
		if dir != env.Bin && elsewhere {
			break
		}
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return append([]string{full}, spec.Command[1:]...), nil
		}
	}
	if elsewhere {
		return append([]string{"/usr/bin/env", name}, spec.Command[1:]...), nil
	}
	f := fault.New(fault.Invalid, "program %.80q is neither in the environment nor on the machine", name)
	if strings.HasSuffix(name, ".py") { // torchrun itself takes a script without its interpreter
		return nil, f.WithHint("Name the interpreter before the script: command: [python, %.80s].", name)
	}
	return nil, f.WithHint("Add the package that has it to the environment, or give its path.")
}

func isPython(name string) bool { return strings.HasPrefix(name, "python") }

// there refuses a file that the job's source does not have, and says what it has. Whether the
// machine has a file outside the working directory decides nothing: a path that
// leads out, by its name or by a link, is refused as one that is not there.
func there(work, name string) error {
	root, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.Stat(filepath.Clean(name)); err == nil {
		return nil
	}
	entries, err := os.ReadDir(work)
	if err != nil {
		return err
	}
	has := "the job has no source"
	if len(entries) > 0 {
		names := make([]string, 0, 10)
		for _, e := range entries[:min(len(entries), 10)] {
			names = append(names, e.Name())
		}
		if len(entries) > 10 {
			names = append(names, "…")
		}
		has = "the source has " + strings.Join(names, ", ")
	}
	return fault.New(fault.Invalid, "file %.200q is not in the job's source", name).
		WithHint("Submit the job with this file, or give its path relative to the source: %s.", has)
}

func searchPath(env environment.Usable) string {
	if env.Bin == "" {
		return systemPath
	}
	return env.Bin + ":" + systemPath
}

// variables is the whole environment of the process. The engine adds where the
// API is: FALAJ_URL and MLFLOW_TRACKING_URI.
func variables(j Job, a Attempt, d dirs, env environment.Usable, p compute.Pool, workers int, run, experimentID, token, resumes string) map[string]string {
	v := map[string]string{
		"PATH": searchPath(env), "HOME": d.scratch, "TMPDIR": d.scratch, "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1",
		// Its links would lead to where the job reaches the server, which nobody else does.
		"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
	}
	if len(j.Spec.Roles) == 0 {
		maps.Copy(v, j.Spec.threads(j.Spec.Resources))
	}
	if env.Image != "" {
		delete(v, "PATH") // the image has its own
	}
	maps.Copy(v, env.Env)
	maps.Copy(v, p.Env)
	maps.Copy(v, j.Spec.Env)
	if v["MLFLOW_EXPERIMENT_ID"] == "" && v["MLFLOW_EXPERIMENT_NAME"] == "" {
		// MLflow goes on with MLFLOW_RUN_ID once; the next run of the program, such as that of an evaluation
		// after the training, is one of the same experiment. mlflow.set_experiment replaces the number.
		v["MLFLOW_EXPERIMENT_ID"] = experimentID
	}
	maps.Copy(v, map[string]string{
		"FALAJ_TOKEN": token, "FALAJ_PROJECT": string(j.Project), "FALAJ_JOB": string(j.ID), "FALAJ_ATTEMPT": string(a.ID),
		"FALAJ_OUTPUT_DIR": d.output, "FALAJ_CHECKPOINT_DIR": d.checkpoints, "FALAJ_SCRATCH_DIR": d.scratch,
		"MLFLOW_TRACKING_TOKEN": token, "MLFLOW_RUN_ID": run,
	})
	if resumes != "" {
		v["FALAJ_RESUME"] = filepath.Join(d.checkpoints, resumes)
	}
	if len(j.Spec.Params) > 0 {
		b, err := json.Marshal(j.Spec.Params)
		if err != nil {
			panic(err) // it was JSON
		}
		v["FALAJ_PARAMS"] = string(b)
	}
	maps.Copy(v, j.Spec.declarations(workers))
	for _, in := range j.Inputs {
		v[dataVariable(in.Name)] = filepath.Join(d.data, in.Name)
		if model := in.Model(); model != "" {
			v[modelVariable(in.Name)] = model
			continue
		}
		v[datasetVariable(in.Name)] = in.Dataset()
	}
	return v
}

// threads are how many each process of a worker may start.
func (s Spec) threads(of resource.Amount) map[string]string {
	cores := int64(of.CPU+999) / 1000
	n := strconv.FormatInt(max(cores/int64(max(s.Processes, 1)), 1), 10)
	return map[string]string{"OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n, "MKL_NUM_THREADS": n, "NUMEXPR_NUM_THREADS": n}
}

// stamp tells one state of a checkpoint from another.
type stamp struct {
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"` // nanoseconds
}

// checkpoints lists what counts as a checkpoint by its name: directories, and files beside
// them. A stamp is of all that lies below.
func checkpoints(dir string) (map[string]stamp, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]stamp{}, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "searching for checkpoints")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fault.Wrap(err, "searching for checkpoints")
	}
	defer root.Close()
	found := map[string]stamp{}
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() || settled.Unfinished(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, fault.Wrap(err, "searching for checkpoints")
		}
		st := stamp{Modified: info.ModTime().UnixNano()}
		if below, err := settled.Look(root, e.Name()); err == nil && !below.Modified.IsZero() {
			st.Modified = below.Modified.UnixNano()
		}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			st.Inode = sys.Ino
		}
		found[e.Name()] = st
	}
	return found, nil
}

// dropUnfinished removes what an earlier attempt was writing when it ended.
func dropUnfinished(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fault.Wrap(err, "searching for unfinished checkpoints")
	}
	for _, e := range entries {
		if settled.Unfinished(e.Name()) {
			if err := archive.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fault.Wrap(err, "removing an unfinished checkpoint")
			}
		}
	}
	return nil
}

// saved reports whether the attempt left a checkpoint that was not there before.
func saved(d dirs) (bool, error) {
	done, err := d.preparation()
	if err != nil || done.Boot == "" { // it was never prepared
		return false, err
	}
	now, err := checkpoints(d.checkpoints)
	if err != nil {
		return false, err
	}
	return newer(now, done.Before), nil
}

// newer reports a checkpoint that was not there before.
func newer(now, before map[string]stamp) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(now)), func(name string) bool { return now[name] != before[name] })
}
