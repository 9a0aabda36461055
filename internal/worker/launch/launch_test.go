package launch_test

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/worker/launch"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func gangOf(n int, address string) []launch.Peer {
	roster := make([]launch.Peer, n)
	for i := range roster {
		roster[i] = launch.Peer{Index: i, Node: "n" + string(rune('0'+i)), Address: address, Port: 29500 + i}
	}
	return roster
}

// TestPlan holds what each worker of a gang runs against testdata, a file for
// each framework. The launchers' source is left out of it.
func TestPlan(t *testing.T) {
	two := gangOf(2, "127.0.0.1")
	far := []launch.Peer{{Index: 0, Node: "a", Address: "10.0.0.1", Port: 7001, Interface: "ib0"}, {Index: 1, Node: "b", Address: "fd00::2", Port: 7002}}
	for _, f := range launch.Frameworks {
		t.Run(string(f), func(t *testing.T) {
			spec := launch.Spec{Framework: f, Command: []string{"/env/bin/python", "train.py", "--fast"}, Python: "/env/bin/python", Run: "att_1"}
			var out strings.Builder
			show := func(title string, s launch.Spec, roster []launch.Peer) {
				for i := range roster {
					out.WriteString("# " + title + ", worker " + string(rune('0'+i)) + "\n")
					p, err := launch.Plan(s, roster, i)
					if err != nil {
						out.WriteString("error: " + err.Error() + "\n\n")
						continue
					}
					for j, a := range p.Argv {
						if strings.Contains(a, "\n") {
							p.Argv[j] = "(source)"
						}
					}
					out.WriteString(strings.Join(p.Argv, " ") + "\n")
					for _, k := range slices.Sorted(maps.Keys(p.Env)) {
						out.WriteString(k + "=" + p.Env[k] + "\n")
					}
					out.WriteString("\n")
				}
			}
			show("alone", spec, []launch.Peer{{}})
			show("two in a sandbox", spec, two)
			show("two nodes", spec, far)
			spec.Processes = 2
			show("two processes each", spec, two)
			spec.Processes = 1
			spec.Roles = []launch.Role{{Name: "chief", Workers: 1}, {Name: "ps", Workers: 2, Command: []string{"/env/bin/python", "ps.py"}, Env: map[string]string{"OMP_NUM_THREADS": "8"}}}
			show("roles", spec, gangOf(3, "127.0.0.1"))
			spec.Roles, spec.Grace = nil, 60
			show("with a longer grace", spec, two)

			file := filepath.Join("testdata", string(f)+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || out.String() != string(want) {
				t.Fatalf("%s (go test -rewrite writes it): %v\n%s", file, err, out.String())
			}
		})
	}
}

func TestRefused(t *testing.T) {
	good := launch.Spec{Framework: launch.Torchrun, Command: []string{"/bin/x"}, Python: "/env/bin/python"}
	with := func(edit func(*launch.Spec)) launch.Spec {
		s := good
		edit(&s)
		return s
	}
	two := gangOf(2, "10.0.0.1")
	edited := func(edit func(*launch.Peer)) []launch.Peer {
		r := slices.Clone(two)
		edit(&r[1])
		return r
	}
	for name, c := range map[string]struct {
		spec   launch.Spec
		roster []launch.Peer
		index  int
		words  string
	}{
		"framework":        {with(func(s *launch.Spec) { s.Framework = "magic" }), two, 0, "does not exist"},
		"no command":       {with(func(s *launch.Spec) { s.Command = nil }), two, 0, "no command"},
		"nobody":           {good, nil, 0, "0 workers"},
		"too many":         {good, make([]launch.Peer, launch.MaxWorkers+1), 0, "not between"},
		"not among them":   {good, two, 2, "is not one of"},
		"too many here":    {with(func(s *launch.Spec) { s.Processes = 1000 }), two, 0, "not between"},
		"plain spawns not": {with(func(s *launch.Spec) { s.Framework, s.Processes = "", 2 }), two, 0, "framework plain has one process"},
		"no python":        {with(func(s *launch.Spec) { s.Python = "" }), two, 0, "needs a Python"},
		"mpi on two":       {with(func(s *launch.Spec) { s.Framework = launch.MPI }), two, 0, "by ssh"},
		"order":            {good, edited(func(p *launch.Peer) { p.Index = 5 }), 0, "position 1"},
		"address":          {good, edited(func(p *launch.Peer) { p.Address = "" }), 0, "no address"},
		"two addresses":    {good, edited(func(p *launch.Peer) { p.Address = "a,b" }), 0, "no address"},
		"no such roles":    {with(func(s *launch.Spec) { s.Framework, s.Roles = launch.Horovod, []launch.Role{{Name: "a", Workers: 2}} }), two, 0, "has no roles"},
		"roles of others":  {with(func(s *launch.Spec) { s.Roles = []launch.Role{{Name: "a", Workers: 1}} }), two, 0, "the gang 2"},
		"a role's name":    {with(func(s *launch.Spec) { s.Roles = []launch.Role{{Name: "A B", Workers: 2}} }), two, 0, "lower-case letters"},
		"a role twice":     {with(func(s *launch.Spec) { s.Roles = []launch.Role{{Name: "a", Workers: 1}, {Name: "a", Workers: 1}} }), two, 0, "duplicate role"},
		"serves": {with(func(s *launch.Spec) {
			s.Roles = []launch.Role{{Name: "a", Workers: 1}, {Name: "b", Workers: 1, Serves: true}}
		}), two, 0, "end together"},
		"all serve": {with(func(s *launch.Spec) { s.Framework, s.Roles = "", []launch.Role{{Name: "a", Workers: 2, Serves: true}} }), two, 0, "none would end"},
		"no such type": {with(func(s *launch.Spec) {
			s.Framework, s.Roles = launch.TensorFlow, []launch.Role{{Name: "actor", Workers: 2}}
		}), two, 0, "TF_CONFIG has no role actor"},
		"two chiefs": {with(func(s *launch.Spec) {
			s.Framework, s.Roles = launch.TensorFlow, []launch.Role{{Name: "chief", Workers: 2}}
		}), two, 0, "at most one chief"},
		"port": {good, edited(func(p *launch.Peer) { p.Port = 0 }), 0, "port 0"},
	} {
		if p, err := launch.Plan(c.spec, c.roster, c.index); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

// TestEveryWorkerAgrees: all workers of any gang name the same rendezvous and the
// same size, and each has a place of its own.
func TestEveryWorkerAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 40).Draw(t, "workers")
		f := rapid.SampledFrom([]launch.Framework{launch.Plain, launch.Torchrun, launch.TensorFlow, launch.Horovod, launch.XGBoost, launch.LightGBM}).Draw(t, "framework")
		spec := launch.Spec{Framework: f, Command: []string{"/bin/train"}, Python: "/bin/python", Run: "att_1"}
		if f.Spawns() {
			spec.Processes = rapid.IntRange(1, 8).Draw(t, "processes")
		}
		roster := gangOf(n, "10.0.0.1")
		places, shared := map[string]bool{}, ""
		for i := range n {
			p, err := launch.Plan(spec, roster, i)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(p.Argv[len(p.Argv)-1:], spec.Command) {
				t.Fatalf("worker %d runs %q", i, p.Argv)
			}
			place, same := p.Env["FALAJ_WORKER_INDEX"], p.Env["MASTER_ADDR"]+p.Env["MASTER_PORT"]+p.Env["HOROVOD_SIZE"]+p.Env["FALAJ_MACHINES"]+p.Env["DMLC_TRACKER_PORT"]
			if c := p.Env["TF_CONFIG"]; c != "" {
				var config struct {
					Cluster map[string][]string `json:"cluster"`
					Task    struct{ Index int } `json:"task"`
				}
				if err := json.Unmarshal([]byte(c), &config); err != nil || config.Task.Index != i {
					t.Fatalf("%s: %v", c, err)
				}
				same += strings.Join(config.Cluster["worker"], " ")
			}
			var shares []string
			for _, a := range p.Argv {
				if v, ok := strings.CutPrefix(a, "--node_rank="); ok && v != place {
					t.Fatalf("worker %s has node rank %s", place, v)
				}
				if strings.HasPrefix(a, "--master_") || strings.HasPrefix(a, "--nnodes") {
					shares = append(shares, a)
				}
			}
			same += strings.Join(shares, " ")
			if places[place] || shared != "" && shared != same {
				t.Fatalf("worker %d is in place %s and sees %q, not %q", i, place, same, shared)
			}
			places[place], shared = true, same
		}
	})
}

// TestTFConfig: the cluster has the roles of TensorFlow but the evaluator, and each
// task is one of them.
func TestTFConfig(t *testing.T) {
	spec := launch.Spec{Framework: launch.TensorFlow, Command: []string{"/bin/train"}, Roles: []launch.Role{
		{Name: "chief", Workers: 1}, {Name: "worker", Workers: 2}, {Name: "ps", Workers: 1, Serves: true}, {Name: "evaluator", Workers: 1},
	}}
	const cluster = `{"cluster":{"chief":["10.0.0.1:29500"],"ps":["10.0.0.1:29503"],"worker":["10.0.0.1:29501","10.0.0.1:29502"]},"task":`
	for i, task := range []string{
		`{"type":"chief","index":0}`, `{"type":"worker","index":0}`, `{"type":"worker","index":1}`, `{"type":"ps","index":0}`, `{"type":"evaluator","index":0}`,
	} {
		p, err := launch.Plan(spec, gangOf(5, "10.0.0.1"), i)
		if want := cluster + task + `,"rpc_layer":"grpc"}`; err != nil || p.Env["TF_CONFIG"] != want {
			t.Errorf("worker %d: %v\n%s\n%s", i, err, p.Env["TF_CONFIG"], want)
		}
	}
}
