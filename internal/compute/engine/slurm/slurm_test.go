package slurm

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
)

const mark = "K7Q2"

func line(fields ...string) string {
	return mark + strings.Join(fields[:queueFields], "|") + mark + fields[queueFields] + mark + "\n"
}

// TestNames: Slurm's lists say what a job is and whose; what names are made of does no harm
// in a script.
func TestNames(t *testing.T) {
	l := newLauncher(t, Config{})
	for _, c := range []struct{ job, project, user, name, comment string }{
		{"train", "nyc", "alice", "train.att_1", " [nyc alice]"},
		{"", "", "", "att_1", ""},
		{"x'; $(id) \n%", "nyc", "al ice]|", "x____id____.att_1", " [nyc al_ice__]"},
	} {
		launch := remote.Launch{ID: "att_1", Workers: 1, Spec: engine.Spec{Project: c.project, Name: c.job, User: c.user}}
		name, comment := jobName(launch), l.comment(launch)
		if c.job != "x'; $(id) \n%" && name != c.name || launchOf(name) != "att_1" || comment != "falaj:"+l.installation+c.comment {
			t.Errorf("%+v: %q, %q", c, name, comment)
		}
		if strings.ContainsAny(name+comment, "'\"$%\n|") {
			t.Errorf("%q %q", name, comment)
		}
	}
}

func TestQueue(t *testing.T) {
	out := line("7", "RUNNING", "batch", "4", "1790000000", "N/A", "daemon", "None", "n[1-2]", "1789999990", "falaj:abc [nyc alice]", "train.att_1") +
		line("8", "FAILED", "batch", "4", "1790000000", "1790000100", "daemon", "NonZeroExitCode", "n1", "1789999990", "falaj:abc [nyc al] not started: no module command", "att_2") +
		line("9_[1-100]", "PENDING", "batch,high", "1", "N/A", "N/A", "eve", "Resources", "", "1789999990", "(null)", "a|b|att_1") +
		line("x", "RUNNING", "", "", "", "", "", "", "", "", "", "") + "squeue: a warning\n"
	jobs := parseQueue("a warning\n"+out, mark)
	if len(jobs) != 3 {
		t.Fatalf("%+v", jobs)
	}
	if j := jobs[0]; j.ID != 7 || j.Installation != "abc" || j.Launch != "att_1" || j.Said != "" || j.CPUs != 4 || !j.Start.Equal(time.Unix(1790000000, 0)) || !j.End.IsZero() {
		t.Errorf("%+v", j)
	}
	if o := jobs[1].observed(false); o.Reason != engine.NotStarted || o.Message != "Slurm job 8 could not start: no module command" {
		t.Errorf("%+v", o)
	}
	if j := jobs[2]; j.ID != 9 || j.Name != "a|b|att_1" || j.Installation != "" {
		t.Errorf("another's name is taken for ours: %+v", j)
	}
	c := count(jobs, "abc")
	if h := c.held["high"]; h.waiting != 1 || c.held["batch"].running != 0 {
		t.Errorf("%+v", c)
	}
}

// TestQueueForged: whoever names a job, or comments on it, says nothing of others.
func TestQueueForged(t *testing.T) {
	forged := "7|NODE_FAIL|batch|4|1|2|daemon|None|n9|1|falaj:abc"
	for _, evil := range []string{"x\n" + forged + "|att_1\n", "\n" + forged, "|" + forged + "|", "x\nK7Q" + forged} {
		jobs := parseQueue(line("7", "RUNNING", "batch", "4", "1", "N/A", "daemon", "None", "n1", "1", "falaj:abc", "att_1")+
			line("8", "RUNNING", "batch", "4", "1", "N/A", "eve", "None", "n1", "1", "falaj:abc "+evil, evil)+
			line("9", "RUNNING", "batch", "4", "1", "N/A", "daemon", "None", "n1", "1", "falaj:abc", "att_3"), mark)
		if len(jobs) != 3 || jobs[0].State != "RUNNING" || jobs[0].NodeList != "n1" || jobs[1].ID != 8 || jobs[1].Name != evil || jobs[2].Name != "att_3" {
			t.Errorf("%q: %+v", evil, jobs)
		}
		if strings.ContainsAny(jobs[1].Said, "\n\x1b") {
			t.Errorf("%q", jobs[1].Said)
		}
	}
}

// TestStates: each state that squeue's manual names, in our terms.
func TestStates(t *testing.T) {
	ended := map[string]engine.Reason{
		"COMPLETED": engine.Exited, "FAILED": engine.Exited, "TIMEOUT": engine.TimedOut, "DEADLINE": engine.TimedOut, "NODE_FAIL": engine.NodeFailed,
		"BOOT_FAIL": engine.NodeFailed, "PREEMPTED": engine.Preempted, "OUT_OF_MEMORY": engine.OutOfMemory, "CANCELLED": engine.Stopped, "REVOKED": engine.Stopped,
	}
	states := map[string]engine.State{
		"PENDING": engine.Pending, "CONFIGURING": engine.Pending, "REQUEUED": engine.Pending, "REQUEUE_HOLD": engine.Pending, "SPECIAL_EXIT": engine.Pending, "RESV_DEL_HOLD": engine.Pending,
		"RUNNING": engine.Running, "COMPLETING": engine.Running, "SUSPENDED": engine.Running, "STOPPED": engine.Running, "RESIZING": engine.Running, "SIGNALING": engine.Running, "STAGE_OUT": engine.Running,
	}
	for state := range ended {
		states[state] = engine.Ended
	}
	for state, want := range states {
		j := job{ID: 5, State: state, Reason: "Resources", NodeList: "n1", Start: time.Unix(1, 0), End: time.Unix(2, 0)}
		o := j.observed(false)
		if o.State != want || o.Reason != ended[state] || (want == engine.Ended) != strings.Contains(o.Message, "Slurm job 5 ") && want != engine.Running {
			t.Errorf("%s: %+v", state, o)
		}
		if (want == engine.Pending) != (len(o.Words) > 0) {
			t.Errorf("%s: words %q", state, o.Words)
		}
	}
	killed := job{ID: 5, State: "FAILED", NodeList: "n1", Said: "killed: srun: error: n1: task 0: Killed"}
	if o := killed.observed(false); o.Reason != engine.Signalled || o.Message != "Slurm job 5 was killed: srun: error: n1: task 0: Killed" {
		t.Errorf("%+v", o)
	}
	j := job{ID: 5, State: "CANCELLED"}
	if mine, theirs := j.observed(true).Message, j.observed(false).Message; strings.Contains(mine, "not through") || !strings.Contains(theirs, "not through Falaj") {
		t.Errorf("%q, %q", mine, theirs)
	}
	for _, r := range reasons {
		if r.words == "" || strings.HasSuffix(r.words, ".") {
			t.Errorf("%+v", r)
		}
	}
	if got := waiting("SomethingNew"); !strings.Contains(got, "SomethingNew") {
		t.Errorf("%q", got)
	}
}

const node = `NodeName=n1 Arch=x86_64 CoresPerSocket=8  CPUAlloc=8 CPUEfctv=15 CPUTot=16 CPULoad=1.06 AvailableFeatures=a,b ActiveFeatures=a,b Gres=gpu:h100:8(S:0-1),fpga:2 NodeAddr=127.0.0.1 NodeHostName=vm OS=Linux 6.18.44 #1 SMP RealMemory=4000 Sockets=2 State=MIXED ThreadsPerCore=1 Partitions=batch,high  CfgTRES=cpu=16,mem=4000M` + "\n"

func TestNodes(t *testing.T) {
	for _, c := range []struct {
		partition, state string
		gres             map[string]string
		nodes            int
		down             string
		gpus, fpgas      string
	}{
		{"", "MIXED", nil, 1, "", "nvidia.com/gpu", "fpga"},
		{"high", "IDLE", map[string]string{"nvidia.com/h100": "gpu:h100", "xilinx.com/fpga": "fpga"}, 1, "", "nvidia.com/h100", "xilinx.com/fpga"},
		{"low", "IDLE", nil, 0, "", "", ""},
		{"", "IDLE+DRAIN Reason=bad fan [root@2026-11-21T20:02:32]", nil, 1, "bad fan", "nvidia.com/gpu", "fpga"},
		{"", "DOWN*", nil, 1, "down*", "nvidia.com/gpu", "fpga"},
		{"", "IDLE*", nil, 1, "not respond", "nvidia.com/gpu", "fpga"},
	} {
		nodes := parseNodes(strings.Replace(node, "State=MIXED", "State="+c.state, 1), c.partition, c.gres)
		if len(nodes) != c.nodes {
			t.Fatalf("%+v: %+v", c, nodes)
		}
		if len(nodes) == 0 {
			continue
		}
		n := nodes[0]
		if n.Name != "n1" || n.Amount.CPU != resource.Cores(15) || n.Amount.Memory != 4000*resource.MiB || n.Amount.Accelerators[c.gpus] != 8 || n.Amount.Accelerators[c.fpgas] != 2 ||
			n.Labels["feature/b"] != "true" || n.Labels["gpu"] != "h100" || (n.Down == "") != (c.down == "") || !strings.Contains(n.Down, c.down) {
			t.Errorf("%+v: %+v", c, n)
		}
	}
}

func TestExpand(t *testing.T) {
	for in, want := range map[string][]string{
		"": nil, "n1": {"n1"}, "n[1-3],m": {"n1", "n2", "n3", "m"}, "n[08-10]": {"n08", "n09", "n10"}, "r[1-2]c[1,3]x": {"r1c1x", "r1c3x", "r2c1x", "r2c3x"},
		"n[1": nil, "n[3-1]": nil, "n[a]": nil, "n[1-99999999]": nil,
	} {
		if got := expand(in); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"n[1-3,07],login1", "[[", "a[0-9][0-9][0-9][0-9][0-9]", "n[1-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n := len(expand(s)); n > nodesMax+len(s) {
			t.Errorf("%d nodes", n)
		}
	})
}

func FuzzOutputs(f *testing.F) {
	f.Add(node)
	f.Add(line("8", "FAILED", "batch", "4", "1790000000", "1790000100", "daemon", "NonZeroExitCode", "n[1-4]", "1789999990", "falaj:abc x", "att_2"))
	f.Fuzz(func(t *testing.T, out string) {
		jobs := parseQueue(out, mark)
		for _, j := range jobs {
			if o := j.observed(false); o.State == "" || o.State == engine.Ended && o.Reason == "" || j.ID <= 0 || j.CPUs < 0 {
				t.Errorf("%+v: %+v", j, o)
			}
		}
		count(jobs, "abc")
		for _, n := range parseNodes(out, "", nil) {
			if err := n.Amount.Validate(); err != nil || n.Name == "" {
				t.Errorf("%+v: %v", n, err)
			}
		}
	})
}

func newLauncher(t *testing.T, c Config) *Launcher {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Worker == "" {
		c.Worker = "/opt/falaj/falaj-worker"
	}
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestArguments(t *testing.T) {
	l := newLauncher(t, Config{})
	base := []string{
		"--parsable", "--no-requeue", "--export=ALL", "--job-name=att_1", "--comment=falaj:" + l.installation, "--chdir=/",
		"--input=/dev/null", "--output=/dev/null", "--error=/dev/null",
	}
	for _, c := range []struct {
		name    string
		workers int
		spec    engine.Spec
		want    []string
	}{
		{"smallest", 1, engine.Spec{}, []string{"--ntasks=1", "--cpus-per-task=1"}},
		{"rounded up", 4, engine.Spec{Resources: resource.Amount{CPU: 2500, Memory: resource.GiB}}, []string{"--ntasks=4", "--cpus-per-task=3", "--mem-per-cpu=342M"}},
		{
			"accelerators", 2,
			engine.Spec{Resources: resource.Amount{Accelerators: map[string]int64{"nvidia.com/h100": 2, "xilinx.com/fpga": 1, "amd.com/gpu": 0}}, Options: map[string]string{"gres": "xilinx.com/fpga=fpga:u55c"}},
			[]string{"--ntasks=2", "--cpus-per-task=1", "--ntasks-per-node=1", "--gres=fpga:u55c:1", "--gpus-per-task=h100:2"},
		},
		{
			"limits", 1,
			engine.Spec{Timeout: 90 * time.Second, Grace: 30 * time.Second, Options: map[string]string{"time": "1-00:00:00"}},
			[]string{"--ntasks=1", "--cpus-per-task=1", "--time=4"},
		},
		{
			"the pool's limit", 1,
			engine.Spec{Grace: 30 * time.Second, Options: map[string]string{"time": "1-00:00:00"}},
			[]string{"--ntasks=1", "--cpus-per-task=1", "--time=1-00:00:00", "--signal=B:TERM@30"},
		},
		{
			"options", 1,
			engine.Spec{Nodes: []string{"n2", "n1", "n2"}, Options: map[string]string{"partition": "gpu", "qos": "high", "exclude": "n[7-8]", "extra": "--mail-x=a --tmp=4G", "exclusive": "yes", "shared": "true"}},
			[]string{"--ntasks=1", "--cpus-per-task=1", "--partition=gpu", "--qos=high", "--exclude=n[7-8]", "--exclusive", "--nodelist=n1,n2", "--nodes=2", "--mail-x=a", "--tmp=4G"},
		},
	} {
		args, _, err := l.batch(remote.Launch{ID: "att_1", Workers: c.workers, Spec: c.spec})
		if want := slices.Concat(base, c.want); err != nil || !slices.Equal(args, want) {
			t.Errorf("%s: %v\n got %q\nwant %q", c.name, err, args, want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for name, values := range map[string][]string{
		"partition": {"", "a b", "a\nb", "a;id", "$(id)", "`id`", "a'b", strings.Repeat("x", 500)},
		"modules":   {"gcc;id", "$(id)", "-x", "a\n'b"},
		"extra":     {"--wrap=id", "--wr=id", "--output=/etc/x", "-o x", "--requeue", "--export=ALL", "x", "--uid=0", "--array=1-9", "--x=$(id)", "--job-name=other"},
		"worker":    {"w", "/a/../b", "/a b", "/a;b"},
		"gres":      {"gpu", "a=b;c", "=gpu"},
		"shared":    {"yes", ""},
		"partitoin": {"x"},
	} {
		for _, v := range values {
			if err := CheckOptions(map[string]string{name: v}); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s=%q: %v", name, v, err)
			}
		}
	}
	for name := range Options {
		if name == "worker" || name == "node_dir" || name == "node_cache" || name == "gres" || name == "shared" || name == "extra" {
			continue
		}
		if err := CheckOptions(map[string]string{name: "a1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range passed {
		if Options[name] == "" {
			t.Errorf("option %s is not described", name)
		}
	}
}

// TestQuote: a shell reads every word as it was.
func TestQuote(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := strings.ReplaceAll(rapid.String().Draw(t, "word"), "\x00", "")
		out, err := exec.Command("/bin/sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q became %q: %v", word, out, err)
		}
	})
}

// TestScript runs the batch script with an srun and a scontrol that only write
// down how they were called.
func TestScript(t *testing.T) {
	bin := t.TempDir()
	program := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/bash\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("srun", `printf '%s\n' "$@" >"$OUT/srun"; env -0 >"$OUT/env"; echo "srun: error: n1: task 0: Killed | by 'me'"; exit $CODE`)
	program("scontrol", `printf '%s\n' "$@" >"$OUT/scontrol"`)
	program("falaj-worker", "")
	l := newLauncher(t, Config{Bin: bin, Worker: filepath.Join(bin, "falaj-worker"), Conf: "/etc/slurm/x.conf"})
	launch := remote.Launch{ID: "att_1", Workers: 2, Agent: map[string]string{"FALAJ_AGENT_TOKEN": "a'b\"$(touch $OUT/hit)`id`\nc"}, Spec: engine.Spec{
		Resources: resource.Amount{Accelerators: map[string]int64{"nvidia.com/h100": 2, "nvidia.com/a100": 1}}, Options: map[string]string{"node_dir": "/local/x"},
	}}
	_, script, err := l.batch(launch)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code, comment string
	}{{"0", ""}, {"137", "falaj:" + l.installation + ` killed: srun: error: n1: task 0: Killed   by 'me'`}} {
		out := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "/bin/bash", "-s")
		cmd.Stdin, cmd.Env = strings.NewReader(script), []string{"OUT=" + out, "CODE=" + c.code, "SLURM_JOB_ID=12", "SLURMD_NODENAME=n1"}
		text, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); (err == nil) != (c.code == "0") || len(text) > 0 || code != 0 && code != 137 {
			t.Fatalf("%v: %s\n%s", err, text, script)
		}
		if _, err := os.Stat(filepath.Join(out, "hit")); err == nil {
			t.Error("a variable's value was run")
		}
		args, _ := os.ReadFile(filepath.Join(out, "srun"))
		if !strings.HasPrefix(string(args), "--ntasks=2\n--cpus-per-task=1\n--gpus-per-task=3\n--kill-on-bad-exit=1\n") {
			t.Errorf("srun %s", args)
		}
		env, _ := os.ReadFile(filepath.Join(out, "env"))
		for _, want := range []string{"FALAJ_AGENT_TOKEN=" + launch.Agent["FALAJ_AGENT_TOKEN"], "SLURM_CONF=/etc/slurm/x.conf", "SLURM_EXPORT_ENV=ALL"} {
			if !slices.Contains(strings.Split(string(env), "\x00"), want) {
				t.Errorf("%q is not in %q", want, env)
			}
		}
		told, _ := os.ReadFile(filepath.Join(out, "scontrol"))
		if c.comment == "" != (len(told) == 0) || !strings.Contains(string(told), c.comment) {
			t.Errorf("scontrol %q, want %q", told, c.comment)
		}
	}
}

func TestRefusal(t *testing.T) {
	for said, want := range map[string]fault.Kind{
		"slurm_load_jobs error: Unable to contact slurm controller (connect failure)":                        fault.Unavailable,
		"slurm_load_jobs error: Connection reset by peer":                                                    fault.Unavailable,
		"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation":                fault.Unavailable,
		"sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid": fault.Invalid,
		"sbatch: error: Batch job submission failed: Requested node configuration is not available":          fault.Invalid,
		"sbatch: error: QOSMaxSubmitJobPerUserLimit":                                                         fault.Exhausted,
		"scancel: error: Kill job error on job id 2: Invalid job id specified":                               fault.NotFound,
		"": fault.Invalid,
	} {
		err := exec.CommandContext(t.Context(), "/bin/false").Run()
		if got := refusal("sbatch", said, err); !fault.Is(got, want) {
			t.Errorf("%q: %v is %v", said, got, fault.KindOf(got))
		}
	}
}

// TestUsers: root needs to be said; a project's own user wins.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has others' jobs to make")
	}
	for _, c := range []struct {
		users                    map[string]string
		byDefault, project, want string
	}{
		{nil, "", "p", ""},
		{nil, "root", "p", "root"},
		{map[string]string{"p": "nobody"}, "daemon", "p", "nobody"},
		{map[string]string{"p": "nobody"}, "daemon", "q", "daemon"},
	} {
		l := newLauncher(t, Config{Users: c.users, DefaultUser: c.byDefault})
		got, err := l.user(c.project)
		if got != c.want || (err != nil) != (c.want == "") || err != nil && fault.HintOf(err) == "" {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
	for _, c := range []Config{
		{DefaultUser: "no-such-user", Worker: "/w", Dir: t.TempDir()},
		{Users: map[string]string{"p": "no-such-user"}, Worker: "/w", Dir: t.TempDir()},
		{Worker: "w", Dir: t.TempDir()},
	} {
		if _, err := New(c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestNoSlurm: without Slurm's commands, everything says so.
func TestNoSlurm(t *testing.T) {
	l := newLauncher(t, Config{DefaultUser: "root"})
	name := "no-such-command"
	if _, err := l.run(context.Background(), "", "", name); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Error(err)
	}
	if err := l.Stop(t.Context(), "att_9", 0); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if err := l.Forget(t.Context(), "att_9"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"", "../x", "a b", strings.Repeat("x", 200)} {
		if err := l.Start(t.Context(), remote.Launch{ID: id, Workers: 1}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestRecord: what is on disk has no secret and reads back.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	l := newLauncher(t, Config{Dir: dir})
	r, _ := l.record("att_1", "daemon")
	r.Job, r.Last = 12, &remote.Observed{State: engine.Ended, Reason: engine.Preempted, Message: "m"}
	if err := l.save("att_1", r); err != nil {
		t.Fatal(err)
	}
	again := newLauncher(t, Config{Dir: dir})
	if again.installation != l.installation || !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(l.installation) {
		t.Errorf("%q %q", again.installation, l.installation)
	}
	got, _ := json.Marshal(again.records["att_1"])
	want, _ := json.Marshal(r)
	if string(got) != string(want) {
		t.Errorf("%s, want %s", got, want)
	}
	seen, err := again.Observe(t.Context(), []string{"att_1", "att_2"})
	if err != nil || seen["att_1"].Reason != engine.Preempted || seen["att_2"].State != engine.Lost {
		t.Errorf("%+v %v", seen, err)
	}
}
