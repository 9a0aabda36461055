// Package slurm starts launches on a Slurm cluster: a remote.Launcher over the
// commands that every site has (sbatch, squeue, scancel, scontrol).
//
// A launch is one batch job whose script runs one step: a task for each worker,
// and in each task falaj-worker's agent; a single worker without accelerators
// needs no step. Slurm never repeats a job of ours
// (--no-requeue): only training starts another attempt.
//
// Parts: slurm.go (Launcher), script.go (the batch script and its arguments),
// options.go (what a pool may ask of Slurm), queue.go (what squeue says, in our
// terms), nodes.go (the inventory), command.go (running Slurm's commands, as whom).
//
// Guarantees. What a user or a pool names reaches no shell: options go as
// arguments of sbatch, each checked; words in the script are quoted. The token is
// in the batch script, which root and the job's user can read, and in no command
// line, comment or file of ours. A launch is remembered in Dir before its job is
// looked for, so that neither a crash nor a slow controller makes a second job.
package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
)

// Config of a Launcher.
type Config struct {
	Bin  string // directory of Slurm's commands; empty is the PATH's usual ones
	Conf string // SLURM_CONF; empty is Slurm's own default
	// Users maps a project to the Unix user that runs its jobs; DefaultUser runs those of all
	// other projects. When Falaj is not root, its own user is the only one.
	Users       map[string]string
	DefaultUser string
	Worker      string // path of falaj-worker on the nodes; a pool's option "worker" overrides it
	Dir         string // of our records; made, for our user only
	Log         *slog.Logger
}

// Launcher is the engine's part of package remote. Safe for concurrent use.
type Launcher struct {
	c            Config
	installation string // tells our jobs from another Falaj's on the same cluster

	mu      sync.Mutex
	records map[string]*record
	// owner is the launch that a job's number was given to last. A controller that dies may
	// lose a job that it had accepted, and give its number to the next one.
	owner map[int]string
	// forgotten are launches by job that Slurm had not ended when they were
	// forgotten: an agent that has reported is quicker than its job's end.
	forgotten map[int]string
	others    census
	closed    bool
}

// record is what is kept of a launch, in DIR/ID.json. Its mutex is held while
// its job is submitted or stopped.
type record struct {
	mu    sync.Mutex
	timer *time.Timer

	User string `json:"user"`
	// Name is the job's; empty is the launch's id, as earlier releases have it.
	Name string `json:"name,omitempty"`
	// Alone is a launch without a step: its script is signalled.
	Alone bool             `json:"alone,omitempty"`
	Job   int              `json:"job,omitempty"`  // 0 until sbatch has answered
	Taken time.Time        `json:"taken,omitzero"` // when Job became known
	Kill  time.Time        `json:"kill,omitzero"`  // when a stopped job's grace is over
	Last  *remote.Observed `json:"last,omitempty"` // how it ended; Slurm forgets after MinJobAge
	// Forgotten records go when Slurm no longer runs the job.
	Forgotten bool `json:"forgotten,omitempty"`
}

const recordExt = ".json"

// IDs name jobs and files.
var idRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)

// New opens the directory and finds the launches in it again.
func New(c Config) (*Launcher, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(c.Worker) {
		return nil, fault.New(fault.Invalid, "slurm: the path of falaj-worker on the nodes is %q, which is not absolute", c.Worker)
	}
	for project, user := range c.Users {
		if _, err := credential(user); err != nil {
			return nil, fault.Wrap(err, "slurm: the user of project %s", project)
		}
	}
	if c.DefaultUser != "" {
		if _, err := credential(c.DefaultUser); err != nil {
			return nil, fault.Wrap(err, "slurm: the default user")
		}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fault.Wrap(err, "making the directory of Slurm's launches")
	}
	l := &Launcher{c: c, records: map[string]*record{}, owner: map[int]string{}, forgotten: map[int]string{}}
	var err error
	if l.installation, err = remote.Installation(c.Dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return nil, fault.Wrap(err, "listing Slurm's launches")
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), recordExt)
		if !ok || !idRE.MatchString(id) {
			continue
		}
		r, err := shim.Read[*record](c.Dir, e.Name())
		if err != nil {
			return nil, fault.Wrap(err, "reading the record of launch %s", id)
		}
		if r.Forgotten {
			l.forgotten[r.Job] = id
			continue
		}
		l.records[id] = r
		if before := l.records[l.owner[r.Job]]; r.Job != 0 && (before == nil || before.Taken.Before(r.Taken)) {
			l.owner[r.Job] = id
		}
		if !r.Kill.IsZero() && r.Last == nil {
			l.killAt(id, r)
		}
	}
	return l, nil
}

// Close ends what waits in the background; jobs run on. It may be called twice.
func (l *Launcher) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true // timers look at it
	return nil
}

// Start submits the launch's job, unless it was.
//
// Errors besides those of engine.Driver: fault.Invalid for options that make no
// sense and for what the cluster will never have.
func (l *Launcher) Start(ctx context.Context, launch remote.Launch) error {
	if !idRE.MatchString(launch.ID) {
		return fault.New(fault.Invalid, "launch id %q cannot name a job", launch.ID)
	}
	user, err := l.user(launch.Spec.Project)
	if err != nil {
		return err
	}
	args, script, err := l.batch(launch)
	if err != nil {
		return err
	}
	r, first := l.record(launch.ID, user)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Job != 0 || r.Last != nil {
		return nil
	}
	r.Alone, r.Name = alone(launch), jobName(launch)
	// On disk first: afterwards a job of this name is looked for.
	if err := l.save(launch.ID, r); err != nil {
		return err
	}
	job := 0
	if !first {
		if job, err = l.search(ctx, launch.ID, r); err != nil {
			return err
		}
	}
	if job == 0 {
		out, err := l.run(ctx, r.User, script, "sbatch", args...)
		if err != nil {
			return fault.Wrap(err, "submitting %s to Slurm", launch.ID)
		}
		number, _, _ := strings.Cut(strings.TrimSpace(out), ";") // "12" or "12;cluster"
		if job, err = strconv.Atoi(number); err != nil {
			return fault.New(fault.Unavailable, "sbatch answered %.100q instead of a job's number", out)
		}
	}
	l.take(launch.ID, r, job)
	return l.save(launch.ID, r)
}

// Check refuses options of a pool that Slurm could not take.
func (l *Launcher) Check(options map[string]string) error { return CheckOptions(options) }

// user is the Unix user that runs the jobs of a project.
func (l *Launcher) user(project string) (string, error) {
	user := l.c.Users[project]
	if user == "" {
		user = l.c.DefaultUser
	}
	switch self := os.Geteuid(); {
	case user == "" && self == 0:
		return "", fault.New(fault.Invalid, "no Unix user is named for the Slurm jobs of project %s", project).
			WithHint("Set default_user of the engine, or name the project in its users; \"root\" must be named explicitly.")
	case user == "":
		return "", nil // our own
	case self != 0:
		cred, err := credential(user)
		if err == nil && int(cred.Uid) != self {
			err = fault.New(fault.Invalid, "the Slurm jobs of project %s must run as user %s, but Falaj does not run as root", project, user)
		}
		return "", err
	}
	return user, nil
}

func (l *Launcher) record(id, user string) (r *record, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r = l.records[id]
	if r == nil {
		r, first = &record{User: user}, true
		l.records[id] = r
	}
	return r, first
}

// take gives a job's number to a launch, and from any other that had it.
func (l *Launcher) take(id string, r *record, job int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Job, r.Taken = job, time.Now()
	l.owner[job] = id
	if before, ok := l.forgotten[job]; ok && before != id && l.remove(before) == nil {
		delete(l.forgotten, job)
	}
}

// owns reports that the record's job is its own: no later launch was given its number.
func (l *Launcher) owns(id string, r *record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.Job != 0 && l.owner[r.Job] == id
}

func (l *Launcher) find(id string) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.records[id]
}

func (l *Launcher) save(id string, r *record) error {
	return fault.Wrap(shim.Write(l.c.Dir, id+recordExt, r), "recording launch %s", id)
}

// search looks for a job that was submitted by a server that died before it had
// the answer. Only a job of the right user counts: others can choose its name.
func (l *Launcher) search(ctx context.Context, id string, r *record) (int, error) {
	jobs, err := l.queue(ctx, "--name="+cmp.Or(r.Name, id))
	if err != nil {
		return 0, err
	}
	for _, j := range jobs {
		if j.Launch == id && j.Installation == l.installation && j.User == userName(r.User) {
			return j.ID, nil
		}
	}
	return 0, nil
}

// Observe asks Slurm for all launches at once, with one command, or two when one
// of them waits.
func (l *Launcher) Observe(ctx context.Context, ids []string) (map[string]remote.Observed, error) {
	seen := make(map[string]remote.Observed, len(ids))
	byJob := map[int]string{}
	for _, id := range ids {
		seen[id] = remote.Observed{State: engine.Lost, Message: "Slurm has no job of this name"}
		r := l.find(id)
		if r == nil {
			continue
		}
		r.mu.Lock()
		if r.Last == nil && r.Job == 0 {
			// Submitting did not end well; only the queue knows whether it began.
			if job, err := l.search(ctx, id, r); err != nil {
				r.mu.Unlock()
				return nil, err
			} else if job != 0 {
				l.take(id, r, job)
			}
		}
		switch {
		case r.Last != nil:
			seen[id] = *r.Last
		case r.Job != 0:
			seen[id] = remote.Observed{State: engine.Lost, Message: "Slurm no longer knows job " + strconv.Itoa(r.Job)}
			if l.owns(id, r) {
				byJob[r.Job] = id
			} else {
				seen[id] = reused(r.Job)
			}
		}
		r.mu.Unlock()
	}
	if len(byJob) == 0 {
		return seen, nil
	}
	numbers := make([]string, 0, len(byJob))
	for job := range byJob {
		numbers = append(numbers, strconv.Itoa(job))
	}
	slices.Sort(numbers)
	jobs, err := l.queue(ctx, "--jobs="+strings.Join(numbers, ","))
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		id, ok := byJob[j.ID]
		if !ok {
			continue
		}
		o, err := l.observe(ctx, id, j)
		if err != nil {
			return nil, err
		}
		seen[id] = o
	}
	return seen, nil
}

// reused is the state of a launch when Slurm has given its job's number to another job.
func reused(job int) remote.Observed {
	return remote.Observed{State: engine.Lost, Message: fmt.Sprintf("Slurm lost job %d and gave its number to another job", job)}
}

// observe says what a job's line means, and keeps how it ended.
func (l *Launcher) observe(ctx context.Context, id string, j job) (remote.Observed, error) {
	r := l.find(id)
	if r == nil { // forgotten meanwhile
		return remote.Observed{State: engine.Lost}, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j.Launch != id && (j.User != userName(r.User) || j.Installation != l.installation) { // a site may rename jobs
		return reused(j.ID), nil
	}
	o := j.observed(!r.Kill.IsZero())
	switch {
	case o.State == engine.Pending:
		o.Words = append(o.Words, l.elsewhere(ctx, j.Partition)...)
	case o.Reason == engine.NodeFailed:
		o.Message += l.failed(ctx, j.NodeList)
	}
	if o.State != engine.Ended || r.Last != nil {
		return o, nil
	}
	r.Last = &o
	return o, l.save(id, r)
}

// Stop has Slurm send SIGTERM to the agents, and ends the job after grace. The
// grace outlives a restart of Falaj.
func (l *Launcher) Stop(ctx context.Context, id string, grace time.Duration) error {
	r := l.find(id)
	if r == nil {
		return fault.New(fault.NotFound, "launch %s was not submitted to Slurm", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Last != nil {
		return nil
	}
	if r.Job == 0 {
		job, err := l.search(ctx, id, r)
		if err != nil || job == 0 {
			return err
		}
		l.take(id, r, job)
	}
	if !l.owns(id, r) {
		return nil
	}
	deadline := time.Now().Add(max(grace, 0))
	if r.Kill.IsZero() || deadline.Before(r.Kill) {
		r.Kill = deadline
	}
	if err := l.save(id, r); err != nil {
		return err
	}
	if grace <= 0 {
		return l.cancel(ctx, r, "--signal=KILL")
	}
	// A job without a step yet ends here. The others get a signal, and run until
	// they have saved.
	err := l.cancel(ctx, r, "--state=PENDING")
	if err == nil {
		args := []string{"--state=RUNNING", "--signal=TERM"}
		if r.Alone {
			args = append(args, "--batch")
		}
		err = l.cancel(ctx, r, args...)
	}
	if err == nil {
		l.killAt(id, r)
	}
	return err
}

// cancel runs scancel on a record's job; one that has ended is no error.
func (l *Launcher) cancel(ctx context.Context, r *record, args ...string) error {
	_, err := l.run(ctx, r.User, "", "scancel", append(args, strconv.Itoa(r.Job))...)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// killAt ends a stopped job when its grace is over, and tries again while Slurm
// does not answer. The record's mutex is held, or no other goroutine has the record.
func (l *Launcher) killAt(id string, r *record) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(max(time.Until(r.Kill), 0), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.Last != nil || l.isClosed() || !l.owns(id, r) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), commandTime)
		defer cancel()
		if err := l.cancel(ctx, r, "--signal=KILL"); err != nil {
			l.c.Log.Warn("a Slurm job whose grace is over cannot be ended yet", slog.String("id", id), slog.Any("err", err))
			r.timer = time.AfterFunc(retryTime, func() { l.retry(id, r) })
		}
	})
}

func (l *Launcher) retry(id string, r *record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Last == nil && !l.isClosed() {
		l.killAt(id, r)
	}
}

func (l *Launcher) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// List gives the launches that were not forgotten, and those of ours that Slurm
// still runs although no record of them is left.
func (l *Launcher) List(ctx context.Context) ([]string, error) {
	jobs, err := l.queue(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ids, runs := maps.Clone(l.records), map[int]bool{}
	for _, j := range jobs {
		runs[j.ID] = !j.ending()
		_, forgotten := l.forgotten[j.ID]
		if forgotten || j.Installation != l.installation || !runs[j.ID] || !idRE.MatchString(j.Launch) || ids[j.Launch] != nil {
			continue
		}
		r := &record{User: j.User, Name: j.Name, Job: j.ID, Taken: time.Now()}
		ids[j.Launch], l.records[j.Launch], l.owner[j.ID] = r, r, j.Launch
	}
	for job, id := range l.forgotten {
		if !runs[job] && l.remove(id) == nil {
			delete(l.forgotten, job)
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// Forget removes the record of a launch that is over.
func (l *Launcher) Forget(_ context.Context, id string) error {
	r := l.find(id)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	ended := r.Last != nil || !l.owns(id, r)
	var err error
	if ended {
		err = l.remove(id)
	} else {
		r.Forgotten = true
		err = l.save(id, r)
	}
	if err != nil {
		return fault.Wrap(err, "removing launch %s", id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.records, id)
	if l.owner[r.Job] == id {
		delete(l.owner, r.Job)
	}
	if !ended {
		l.forgotten[r.Job] = id
	}
	return nil
}

func (l *Launcher) remove(id string) error {
	err := os.Remove(filepath.Join(l.c.Dir, id+recordExt))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

var (
	_ remote.Launcher  = (*Launcher)(nil)
	_ engine.Inventory = (*Launcher)(nil)
)
