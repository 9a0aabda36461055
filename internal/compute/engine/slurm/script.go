package slurm

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

// What bounds a launch.
const (
	maxWorkers = 10_000
	scriptMax  = 3 << 20 // Slurm's own limit on a script is 4 MiB
	// limitMargin is how much later than the agent Slurm ends what ran too long.
	limitMargin = 2 * time.Minute
)

var variableRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)

// batch makes the arguments of sbatch and the script on its standard input.
func (l *Launcher) batch(launch remote.Launch) (args []string, script string, err error) {
	o := launch.Spec.Options
	if err := CheckOptions(o); err != nil {
		return nil, "", err
	}
	if launch.Workers < 1 || launch.Workers > maxWorkers {
		return nil, "", fault.New(fault.Invalid, "a Slurm job with %d workers is not allowed: 1 to %d are", launch.Workers, maxWorkers)
	}
	size, step, err := sizes(launch)
	if err != nil {
		return nil, "", err
	}
	// sbatch has an environment of a few variables (command.go). Without them, Slurm
	// would log the user in for each job to find some, which takes a second.
	args = append([]string{
		"--parsable", "--no-requeue", "--export=ALL", "--job-name=" + jobName(launch), "--comment=" + l.comment(launch),
		"--chdir=/", "--input=/dev/null", "--output=/dev/null", "--error=/dev/null",
	}, size...)
	args = append(args, limits(launch)...)
	for _, name := range passed {
		switch value, given := o[name]; {
		case !given:
		case name == "exclusive" && (value == "yes" || value == "true"):
			args = append(args, "--exclusive")
		default:
			args = append(args, "--"+name+"="+value)
		}
	}
	if nodes := uniq(launch.Spec.Nodes); len(nodes) > 0 {
		for _, n := range nodes {
			if !nodeRE.MatchString(n) {
				return nil, "", fault.New(fault.Invalid, "%.100q is not the name of a node", n)
			}
		}
		args = append(args, "--nodelist="+strings.Join(nodes, ","), "--nodes="+strconv.Itoa(len(nodes)))
	}
	args = append(args, strings.Fields(o["extra"])...)
	script, err = l.script(launch, step)
	return args, script, err
}

// jobName is what Slurm's lists show: what people call the launch, and its id, by which it
// is found again.
func jobName(launch remote.Launch) string {
	if name := word(launch.Spec.Name); name != "" {
		return name + "." + launch.ID
	}
	return launch.ID
}

// launchOf is the id in a job's name.
func launchOf(jobName string) string { return jobName[strings.LastIndexByte(jobName, '.')+1:] }

// comment names the owner of a job: "falaj:INSTALLATION [project user]". The script appends its message
// when it fails.
func (l *Launcher) comment(launch remote.Launch) string {
	whose := strings.TrimSpace(word(launch.Spec.Project) + " " + word(launch.Spec.User))
	if whose == "" {
		return "falaj:" + l.installation
	}
	return "falaj:" + l.installation + " [" + whose + "]"
}

// word makes a name safe for Slurm's job names and comments, and for the script.
func word(name string) string {
	const most = 63
	clean := strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune("._@-", r)) {
			return r
		}
		return '_'
	}, name)
	return clean[:min(len(clean), most)]
}

// sizes are the arguments that say what each worker has, of the job and of its
// step: a task for each worker. They differ in that a step asks for GPUs without
// their type, for Slurm 22.05 binds none to a task that names one.
func sizes(launch remote.Launch) (job, step []string, err error) {
	r := launch.Spec.Resources
	if err := r.Validate(); err != nil {
		return nil, nil, err
	}
	cpus := int64(max((r.CPU+999)/1000, 1))
	both := []string{"--ntasks=" + strconv.Itoa(launch.Workers), "--cpus-per-task=" + strconv.FormatInt(cpus, 10)}
	if r.Memory > 0 {
		perCPU := (int64(r.Memory) + cpus*int64(resource.MiB) - 1) / (cpus * int64(resource.MiB))
		both = append(both, "--mem-per-cpu="+strconv.FormatInt(perCPU, 10)+"M")
	}
	names, err := parseGres(launch.Spec.Options["gres"])
	if err != nil {
		return nil, nil, err
	}
	var gpus, gres []string
	total := int64(0) // GPUs of any type
	for _, accelerator := range slices.Sorted(maps.Keys(r.Accelerators)) {
		n := r.Accelerators[accelerator]
		if n == 0 {
			continue
		}
		name, err := gresOf(accelerator, names)
		if err != nil {
			return nil, nil, err
		}
		count := strconv.FormatInt(n, 10)
		switch kind, typed := strings.CutPrefix(name, "gpu:"); {
		case typed:
			gpus = append(gpus, kind+":"+count)
			total += n
		case name == "gpu":
			gpus = append(gpus, count)
			total += n
		default:
			gres = append(gres, name+":"+count)
		}
	}
	if len(gres) > 0 { // counted by node: a worker has a node to itself
		both = append(both, "--ntasks-per-node=1", "--gres="+strings.Join(gres, ","))
	}
	job, step = slices.Clone(both), slices.Clone(both)
	if total > 0 {
		job = append(job, "--gpus-per-task="+strings.Join(gpus, ","))
		step = append(step, "--gpus-per-task="+strconv.FormatInt(total, 10))
	}
	return job, step, nil
}

// limits bound the job's time. The agent ends the worker when the workload's time
// is over; Slurm is there in case it cannot, and needs to know for its plans.
func limits(launch remote.Launch) []string {
	s := launch.Spec
	limit := launch.Spec.Options["time"]
	if s.Timeout > 0 {
		limit = strconv.FormatInt(int64((s.Timeout+s.Grace+limitMargin+time.Minute-1)/time.Minute), 10)
	}
	if limit == "" {
		return nil
	}
	args := []string{"--time=" + limit}
	if s.Timeout == 0 && s.Grace > 0 {
		to := ""
		if alone(launch) {
			to = "B:"
		}
		args = append(args, "--signal="+to+"TERM@"+strconv.FormatInt(int64(min(max(s.Grace/time.Second, 1), 65535)), 10))
	}
	return args
}

// script is what the first node of the job runs. Where it fails before an agent
// can say why, it says so in the job's comment, which needs no shared disk.
func (l *Launcher) script(launch remote.Launch, step []string) (string, error) {
	o := launch.Spec.Options
	worker := o["worker"]
	if worker == "" {
		worker = l.c.Worker
	}
	env := launch.Agent
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/bash\n# %s: one agent of Falaj for each of %d workers.\n", launch.ID, launch.Workers)
	first := ""
	if l.c.Bin != "" {
		first = quote(l.c.Bin + ":")
	}
	fmt.Fprintf(&b, "PATH=%s${PATH:+$PATH:}%s\n", first, quote(strings.Join(l.path(), ":")))
	if l.c.Conf != "" {
		fmt.Fprintf(&b, "export SLURM_CONF=%s\n", quote(l.c.Conf))
	}
	fmt.Fprintf(&b, opening, l.comment(launch))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !variableRE.MatchString(name) || strings.ContainsRune(env[name], 0) {
			return "", fault.New(fault.Invalid, "variable %.100q of the agent cannot be in a script", name)
		}
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(env[name]))
	}
	if modules := strings.Fields(o["modules"]); len(modules) > 0 {
		fmt.Fprintf(&b, loading, strings.Join(modules, " "))
	}
	fmt.Fprintf(&b, checking, quote(worker))
	if alone(launch) {
		b.WriteString(runningAlone)
	} else {
		fmt.Fprintf(&b, running, strings.Join(quoteAll(step), " "))
	}
	if b.Len() > scriptMax {
		return "", fault.New(fault.TooLarge, "the batch script of %s is over %d MiB", launch.ID, scriptMax>>20)
	}
	return b.String(), nil
}

const opening = `umask 077
cd /
unset HOME; HOME=~; export HOME # as the node has it
fail() { # CODE WORDS: what squeue then shows
	scontrol update "JobId=$SLURM_JOB_ID" "Comment=%[1]s $(printf '%%s' "$2" | tr '\n|' '  ' | tr -cd '[:print:]' | tail -c 400)" >/dev/null 2>&1
	exit "$1"
}
export SLURM_EXPORT_ENV=ALL
`

const loading = `if ! type module >/dev/null 2>&1; then
	for f in "${LMOD_PKG:-/nonexistent}/init/bash" "${MODULESHOME:-/nonexistent}/init/bash" /etc/profile.d/lmod.sh /etc/profile.d/modules.sh /usr/share/modules/init/bash; do
		if [ -r "$f" ]; then . "$f" >/dev/null 2>&1; break; fi
	done
fi
type module >/dev/null 2>&1 || fail 70 'not started: the pool asks for site modules, and this node has no module command'
before=$(export -p)
for m in %[1]s; do
	said=$(module load "$m" 2>&1) && module load "$m" >/dev/null 2>&1 || fail 70 "not started: module load $m: $said"
	case $said in *ERROR*|*rror:*) fail 70 "not started: module load $m: $said" ;; esac
done
FALAJ_AGENT_KEEP=$(comm -13 <(sort <<<"$before") <(export -p | sort) | sed -n 's/^declare -x \([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' | paste -sd,)
export FALAJ_AGENT_KEEP
`

// alone reports that a launch needs no step: its one worker is what the batch
// script runs, half a second sooner. Steps bind accelerators.
func alone(launch remote.Launch) bool {
	for _, n := range launch.Spec.Resources.Accelerators {
		if n > 0 {
			return false
		}
	}
	return launch.Workers == 1
}

const checking = `worker=%[1]s
[ -x "$worker" ] || fail 70 "not started: $worker cannot be run on node ${SLURMD_NODENAME:-$(hostname)}; put falaj-worker on a disk that all nodes see, or set its path in the pool's option worker"
`

// runningAlone passes on what the script is signalled, and keeps the last that was
// said.
const runningAlone = `coproc LAST { trap '' TERM; tail -c 4000; }
exec {from}<&"${LAST[0]}" {to}>&"${LAST[1]}" {LAST[1]}>&-
FALAJ_WORKER_INDEX=0 FALAJ_WORKER_NODE=$SLURMD_NODENAME "$worker" agent </dev/null >&"$to" 2>&1 {from}<&- {to}>&- &
agent=$! code=127
trap 'told=1; kill -TERM "$agent" 2>/dev/null' TERM
exec {to}>&-
while told= ; wait "$agent"; c=$?; [ "$c" = 127 ] || code=$c; [ -n "$told" ]; do :; done # a signal interrupts it
said=$(timeout 5 cat <&"$from")
[ "$code" -le 128 ] || fail "$code" "killed: $said"
[ "$code" = 0 ] || fail "$code" "$said"
`

const running = `trap : TERM # the step ends first
set -o pipefail
said=$(srun %[1]s --kill-on-bad-exit=1 --wait=0 --mpi=none --input=none --export=ALL \
	/bin/sh -c 'FALAJ_WORKER_INDEX=$SLURM_PROCID FALAJ_WORKER_NODE=$SLURMD_NODENAME exec "$0" agent' "$worker" 2>&1 | tail -c 4000)
code=$?
[ "$code" -le 128 ] || fail "$code" "killed: $said"
[ "$code" = 0 ] || fail "$code" "$said"
`

// quote makes one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return out
}

func uniq(names []string) []string {
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}
