package slurm

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
)

// What squeue prints of a job. Its owner chooses the comment and the name, with
// bars and ends of lines anywhere: a mark that cannot be known before
// squeue runs stands between the jobs and before the name.
const (
	queueFormat = "%%i|%%T|%%P|%%C|%%S|%%e|%%u|%%r|%%N|%%V|%%k%[1]s%%j%[1]s"
	queueFields = 11
)

// job is a line of squeue.
type job struct {
	ID        int
	State     string
	Partition string
	CPUs      int
	Start     time.Time // expected, while it waits; zero when unknown
	End       time.Time
	User      string
	Reason    string // Slurm's code
	NodeList  string // "n[1-3]"
	Submitted time.Time
	Name      string

	Launch       string // that it is, by its name
	Installation string // of the Falaj that made it; empty for others' jobs
	Said         string // what its script or step said when it failed
}

// queue asks for all jobs that Slurm remembers, or for some of them.
func (l *Launcher) queue(ctx context.Context, which ...string) ([]job, error) {
	mark := rand.Text()
	out, err := l.run(ctx, "", "", "squeue", append([]string{"--noheader", "--states=all", "--format=" + mark + fmt.Sprintf(queueFormat, mark)}, which...)...)
	if fault.Is(err, fault.NotFound) { // the only one asked for is no longer known
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "asking Slurm for its jobs")
	}
	return parseQueue(out, mark), nil
}

// parseQueue reads what squeue prints; what is no job of one of our kinds (an array, a
// heterogeneous job) is left out.
func parseQueue(out, mark string) []job {
	var jobs []job
	parts := strings.Split(out, mark) // what is before the first job; then its fields, its name and the end of the line …
	for i := 1; i+2 < len(parts); i += 3 {
		f := strings.SplitN(parts[i], "|", queueFields)
		if len(f) != queueFields {
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			// An array's tasks share a line: "12_[1-100]".
			number, _, _ := strings.Cut(f[0], "_")
			number, _, _ = strings.Cut(number, "+")
			if id, err = strconv.Atoi(number); err != nil {
				continue
			}
		}
		if id <= 0 {
			continue
		}
		cpus, _ := strconv.Atoi(f[3])
		j := job{
			ID: id, State: f[1], Partition: f[2], CPUs: max(cpus, 0), Start: epoch(f[4]), End: epoch(f[5]), User: f[6], Reason: f[7],
			NodeList: f[8], Submitted: epoch(f[9]), Name: parts[i+1], Launch: launchOf(parts[i+1]),
		}
		if rest, ok := strings.CutPrefix(f[10], "falaj:"); ok {
			j.Installation, j.Said, _ = strings.Cut(strings.Join(strings.FieldsFunc(rest, control), " "), " ")
			if whose, said, ok := strings.Cut(j.Said, "]"); ok && strings.HasPrefix(whose, "[") {
				j.Said = strings.TrimSpace(said)
			}
		}
		jobs = append(jobs, j)
	}
	return jobs
}

func control(r rune) bool { return r == ' ' || unicode.IsControl(r) }

func epoch(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > 1<<40 {
		return time.Time{}
	}
	return time.Unix(n, 0).UTC()
}

// ending says that nothing of the job will run any more.
func (j job) ending() bool {
	return j.observed(false).State == engine.Ended || strings.HasPrefix(j.State, "COMPLETING")
}

// observed is what Slurm's state means. stopped says that we have ended it.
func (j job) observed(stopped bool) remote.Observed {
	number := strconv.Itoa(j.ID)
	o := remote.Observed{Nodes: expand(j.NodeList), Started: j.Start, Ended: j.End}
	end := func(reason engine.Reason, format string, args ...any) remote.Observed {
		o.State, o.Reason, o.Message = engine.Ended, reason, fmt.Sprintf("Slurm job "+number+" "+format, args...)
		if j.Said != "" {
			o.Message += ": " + j.Said
		}
		if len(o.Nodes) == 0 {
			o.Started = time.Time{} // it was an expectation
		}
		return o
	}
	switch state, _, _ := strings.Cut(j.State, "+"); state {
	case "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT":
		o.State, o.Started, o.Ended = engine.Pending, time.Time{}, time.Time{}
		o.Words = []string{waiting(j.Reason)}
		if !j.Start.IsZero() {
			o.Words = append(o.Words, "Slurm expects to start it at "+j.Start.Format(time.RFC3339))
		}
		return o
	case "CONFIGURING":
		o.State, o.Ended = engine.Pending, time.Time{}
		o.Words = []string{"its nodes are being prepared"}
		return o
	case "COMPLETED":
		return end(engine.Exited, "ended")
	case "FAILED":
		if words, ok := strings.CutPrefix(j.Said, "not started:"); ok {
			j.Said = ""
			return end(engine.NotStarted, "could not start: %s", strings.TrimSpace(words))
		}
		if words, ok := strings.CutPrefix(j.Said, "killed:"); ok {
			j.Said = strings.TrimSpace(words)
			return end(engine.Signalled, "was killed")
		}
		if len(o.Nodes) == 0 {
			return end(engine.NotStarted, "could not start: %s", waiting(j.Reason))
		}
		return end(engine.Exited, "failed")
	case "TIMEOUT", "DEADLINE":
		return end(engine.TimedOut, "was ended by Slurm at its time limit")
	case "NODE_FAIL":
		return end(engine.NodeFailed, "lost a node")
	case "BOOT_FAIL":
		return end(engine.NodeFailed, "could not start: its nodes did not boot")
	case "PREEMPTED":
		return end(engine.Preempted, "was preempted for a job of higher priority")
	case "OUT_OF_MEMORY":
		return end(engine.OutOfMemory, "used more memory than it requested")
	case "CANCELLED", "REVOKED":
		if stopped {
			return end(engine.Stopped, "was cancelled")
		}
		return end(engine.Stopped, "was cancelled on Slurm, not through Falaj")
	case "SUSPENDED", "STOPPED":
		o.Message = "Slurm job " + number + " is suspended"
	}
	// RUNNING, COMPLETING, RESIZING, SIGNALING, STAGE_OUT: processes may be there.
	o.State, o.Ended = engine.Running, time.Time{}
	return o
}

// reasons are Slurm's codes in plain words, by their beginning; the first that
// fits counts.
var reasons = []struct{ code, words string }{
	{"Resources", "not enough nodes are free on Slurm"},
	{"Priority", "jobs of higher priority are pending before it on Slurm"},
	{"None", "Slurm has not considered it yet"},
	{"BeginTime", "Slurm starts it later"},
	{"Dependency", "it waits for another job on Slurm"},
	{"JobHeldUser", "its user holds it on Slurm; scontrol release releases it"},
	{"JobHeldAdmin", "an administrator of Slurm holds it"},
	{"PartitionDown", "the partition accepts no jobs now"},
	{"PartitionInactive", "the partition starts no jobs now"},
	{"PartitionNodeLimit", "it requests more nodes than the partition allows"},
	{"PartitionConfig", "the partition has no nodes with the requested resources"},
	{"PartitionTimeLimit", "its time limit is longer than the partition allows"},
	{"ReqNodeNotAvail", "a requested node is down, drained or reserved"},
	{"Nodes required for job are DOWN", "the nodes that it needs are down, drained or held for jobs of higher priority"},
	{"NodeDown", "a requested node is down"},
	{"Licenses", "no licence is free"},
	{"Reservation", "its reservation has not begun or is full"},
	{"AssociationJobLimit", "the account is at its limit of jobs"},
	{"QOSJobLimit", "the quality of service is at its limit of jobs"},
	{"MaxCpuPerAccount", "the account is at its limit of cpus"},
	{"AssocGrp", "the account's group is at its limit"},
	{"AssocMax", "it is over a limit of the account"},
	{"Assoc", "it is at a limit of the account"},
	{"QOSGrp", "the quality of service is at its limit"},
	{"QOSMax", "it is over a limit of the quality of service"},
	{"QOS", "it is at a limit of the quality of service"},
	{"InvalidAccount", "Slurm no longer knows its account"},
	{"InvalidQOS", "Slurm no longer knows its quality of service"},
	{"BadConstraints", "no nodes have the requested resources"},
	{"Cleaning", "Slurm cleans up after its last run"},
	{"Prolog", "the prolog of the cluster runs"},
	{"FrontEndDown", "no front end of the cluster is up"},
}

func waiting(code string) string {
	for _, r := range reasons {
		if strings.HasPrefix(code, r.code) {
			return r.words + " (" + code + ")"
		}
	}
	return "Slurm holds it: " + code
}

// census is what others' jobs hold, by partition, as of a time: it explains, so
// it may be some seconds old, and the queue of a large cluster is long.
type census struct {
	taken time.Time
	held  map[string]holding
}

type holding struct {
	running, waiting, cpus int
	users                  map[string]int // cpus
}

const censusAge = 10 * time.Second

// elsewhere says what jobs that are not ours hold in partitions ("batch" or
// "batch,high").
func (l *Launcher) elsewhere(ctx context.Context, partitions string) []string {
	l.mu.Lock()
	c := l.others
	l.mu.Unlock()
	if time.Since(c.taken) > censusAge {
		jobs, err := l.queue(ctx, "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED,COMPLETING")
		if err != nil {
			l.c.Log.WarnContext(ctx, "jobs of other users on Slurm cannot be counted", slog.Any("err", err))
			return nil
		}
		c = count(jobs, l.installation)
		c.taken = time.Now()
		l.mu.Lock()
		l.others = c
		l.mu.Unlock()
	}
	var words []string
	for p := range strings.SplitSeq(partitions, ",") {
		if h := c.held[p]; h.running+h.waiting > 0 {
			words = append(words, h.words(p))
		}
	}
	return words
}

func count(jobs []job, installation string) census {
	c := census{held: map[string]holding{}}
	for _, j := range jobs {
		if j.Installation == installation {
			continue
		}
		o := j.observed(false)
		for p := range strings.SplitSeq(j.Partition, ",") {
			h := c.held[p]
			if h.users == nil {
				h.users = map[string]int{}
			}
			switch o.State {
			case engine.Running:
				h.running++
				h.cpus += j.CPUs
				h.users[j.User] += j.CPUs
			case engine.Pending:
				h.waiting++
			default:
				continue
			}
			c.held[p] = h
		}
	}
	return c
}

func (h holding) words(partition string) string {
	text := fmt.Sprintf("jobs of other users in partition %s: %d running on %d cpus, %d waiting", partition, h.running, h.cpus, h.waiting)
	users := slices.SortedFunc(maps.Keys(h.users), func(a, b string) int {
		return cmp.Or(cmp.Compare(h.users[b], h.users[a]), strings.Compare(a, b))
	})
	var most []string
	for _, u := range users[:min(len(users), 3)] {
		most = append(most, fmt.Sprintf("%s %d", u, h.users[u]))
	}
	if len(most) > 0 {
		text += " (cpus by user: " + strings.Join(most, ", ") + ")"
	}
	return text
}
