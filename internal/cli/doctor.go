package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// probed is what a worker of the doctor's job found.
type probed struct {
	Worker int               `json:"worker"`
	Node   string            `json:"node"`
	Facts  map[string]string `json:"facts"`
	// Threads is 0 of a program that is too old to tell it, Memory and GPUs.
	Threads float64 `json:"threads"`
	Memory  float64 `json:"memory"`
	GPUs    int64   `json:"gpus"`
	Disk    *struct {
		Write float64 `json:"write"`
		Free  uint64  `json:"free"`
	} `json:"disk"`
	API *struct {
		RoundTrip time.Duration `json:"round_trip_ns"`
		Skew      time.Duration `json:"skew_ns"`
	} `json:"api"`
	Peers []struct {
		Worker    int           `json:"worker"`
		RoundTrip time.Duration `json:"round_trip_ns"`
		Send      float64       `json:"send"`
		Receive   float64       `json:"receive"`
		Skew      time.Duration `json:"skew_ns"`
	} `json:"peers"`
	Sum   bool     `json:"sum"`
	Wrong []string `json:"wrong"`
}

// findings are what is wrong and what to do about it, in words.
type findings []string

func (f *findings) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

func (a *app) poolDoctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor POOL", Short: "Check a pool by running a two-worker diagnostic job", Args: cobra.ExactArgs(1),
		Long: "Runs a small job of the project on the pool. Its workers discover each other like those of any job, run a sum\n" +
			"across workers, measure the network between them, the scratch disk and the connection to Falaj, and report the\n" +
			"properties of their nodes. The nodes need no additional software. On a pool of one machine the job measures that\n" +
			"machine. Exit code 1 if a check fails.",
		Example: "  falaj pool doctor home -p nyc\n  falaj pool doctor hpc -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			out := a.Stdout
			if a.output != "table" {
				a.Stdout = a.Stderr // words are for people, the answer is one object
			}
			var pool client.Object // before a job waits for one that does not exist
			if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/pools/"+url.PathEscape(args[0]), nil, &pool); err != nil {
				return err
			}
			var j client.Object
			if err := a.call(cmd, http.MethodPost, map[string]any{"pool": args[0]}, &j, "doctor"); err != nil {
				return err
			}
			id := j.Text("id")
			a.say("%s tests pool %s", id, args[0])
			path, err := a.inProjectPath("jobs", id)
			if err != nil {
				return err
			}
			said := ""
			for j.Text("state") == "queued" || j.Text("state") == "running" {
				j = client.Object{}
				if err := a.await(cmd.Context(), c, path+"?wait=15s", &j); err != nil {
					return err
				}
				if why := a.whyQueued(cmd, id, j.Text("state")); why != said {
					if said = why; why != "" {
						a.say("  waits: %s", why)
					}
				}
			}
			var log bytes.Buffer
			p, err := a.inProject()
			if err != nil {
				return err
			}
			if err := a.patiently(cmd.Context(), func(ctx context.Context) error {
				log.Reset()
				return c.Logs(ctx, p, id, 0, false, &log)
			}); err != nil {
				return err
			}
			wrong := findings{}
			if j.Text("state") != "succeeded" {
				wrong.add("the job %s: see `falaj job describe %s`", j.Text("state"), id)
			}
			all := probesOf(log.String())
			a.sayProbed(all, &wrong)
			if err := a.nodesInTrouble(cmd, args[0], id, all, &wrong); err != nil {
				return err
			}
			if a.output != "table" {
				a.Stdout = out
				if err := a.printOne(map[string]any{"pool": args[0], "job": id, "state": j.Text("state"), "workers": all, "wrong": wrong}); err != nil {
					return err
				}
			} else {
				for _, w := range wrong {
					a.say("wrong: %s", w)
				}
			}
			if len(wrong) == 0 {
				if a.output == "table" {
					a.say("no problems found on %s", args[0])
				}
				return nil
			}
			return fault.New(fault.Internal, "pool %s: %d problems found", args[0], len(wrong)).WithHint("Fix them and run `falaj pool doctor %s` again.", args[0])
		},
	}
}

// whyQueued is the first reason why the job waits.
func (a *app) whyQueued(cmd *cobra.Command, id, state string) string {
	var o struct {
		Reasons []string `json:"reasons"`
	}
	if state != "queued" || a.call(cmd, http.MethodGet, nil, &o, "jobs", id, "why") != nil || len(o.Reasons) == 0 {
		return ""
	}
	return o.Reasons[0]
}

// probesOf finds the reports in the job's log.
func probesOf(log string) []probed {
	var all []probed
	for line := range strings.Lines(log) {
		_, text, ok := strings.Cut(line, "probe: ")
		var p probed
		if ok && json.Unmarshal([]byte(text), &p) == nil {
			all = append(all, p)
		}
	}
	return all
}

func (a *app) sayProbed(all []probed, wrong *findings) {
	if len(all) < 2 {
		wrong.add("%d of 2 workers reported results; see the job's log", len(all))
	}
	for _, p := range all {
		p.Node = plain(p.Node)
		a.say("worker %d on %s", p.Worker, p.Node)
		for _, name := range keys(p.Facts) {
			a.say("  %-18s %s", plain(name), plain(p.Facts[name]))
		}
		if p.API != nil {
			a.say("  %-18s %s away, clock %s", "falaj", p.API.RoundTrip.Round(10*time.Microsecond), skewed(p.API.Skew))
			if p.API.Skew.Abs() > 5*time.Second {
				wrong.add("the clock of %s is %s against the server's: run chrony or systemd-timesyncd there, or tokens and times will be wrong", p.Node, skewed(p.API.Skew))
			}
		}
		if p.Disk != nil {
			a.say("  %-18s writes %s, %s free", "scratch", rate(p.Disk.Write), speed(float64(p.Disk.Free)))
			if p.Disk.Write < 20e6 {
				wrong.add("the scratch directory of %s writes %s: checkpoints will be slow; use a faster disk for the pool", p.Node, rate(p.Disk.Write))
			}
			if p.Disk.Free < 2e9 {
				wrong.add("the scratch directory of %s has %s left: free some", p.Node, speed(float64(p.Disk.Free)))
			}
		}
		for _, o := range p.Peers {
			a.say("  to worker %-8d %s round trip, sends %s, receives %s", o.Worker, o.RoundTrip.Round(time.Microsecond), rate(o.Send), rate(o.Receive))
			if o.RoundTrip > 5*time.Millisecond {
				wrong.add("the round-trip time between workers is %s: connect the pool's nodes to one network", o.RoundTrip.Round(10*time.Microsecond))
			}
			if min(o.Send, o.Receive) < 10e6 {
				wrong.add("the bandwidth between workers is %s: check the links, or set the fast interface in the pool's env (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)", rate(min(o.Send, o.Receive)))
			}
		}
		for _, w := range p.Wrong {
			wrong.add("%s: %s", p.Node, plain(w))
		}
		if !p.Sum {
			wrong.add("%s: the workers did not sum numbers together: a firewall between the nodes, or no way to the first worker's port", p.Node)
		}
	}
}

// nodesInTrouble adds what the pool itself knows.
func (a *app) nodesInTrouble(cmd *cobra.Command, pool, job string, all []probed, wrong *findings) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var p struct {
		Kind      string     `json:"kind"`
		Trouble   string     `json:"trouble"`
		Closed    string     `json:"closed"`
		Misplaced string     `json:"misplaced"`
		Support   string     `json:"support"`
		Nodes     []declared `json:"nodes"`
	}
	if err := a.await(cmd.Context(), c, kinds["pools"].path+"/"+url.PathEscape(pool), &p); err != nil {
		return err
	}
	if p.Trouble != "" {
		wrong.add("cannot list the engine's nodes: %s", p.Trouble)
	}
	if p.Support != "" {
		a.say("its hardware: %s", plain(p.Support))
	}
	if p.Misplaced != "" {
		wrong.add("unschedulable: %s", p.Misplaced)
	}
	if p.Closed != "" {
		wrong.add("the pool is closed: %s", p.Closed)
	}
	for _, n := range p.Nodes {
		if n.Down != "" {
			wrong.add("node %s is unschedulable: %s", n.Name, n.Down)
		}
	}
	of, err := a.collection("jobs", false)
	if err != nil {
		return err
	}
	var j shownJob // its attempt knows which nodes of the pool the workers had
	if err := a.await(cmd.Context(), c, of.full(job), &j); err != nil {
		return err
	}
	var on []string
	if len(j.Tries) > 0 {
		on = j.Tries[len(j.Tries)-1].Nodes
	}
	compared := map[string]bool{}
	for _, w := range all {
		for _, n := range p.Nodes {
			if placed := w.Worker >= 0 && w.Worker < len(on) && on[w.Worker] == n.Name; (placed || len(p.Nodes) == 1) && !compared[n.Name] {
				compared[n.Name] = true
				// Elsewhere the cluster tells accelerators, and a pod need not see the driver.
				n.compare(w, p.Kind == "local" || p.Kind == "slurm", wrong)
			}
		}
	}
	return nil
}

// declared is what a pool says of a node.
type declared struct {
	shownAmount
	Name   string            `json:"name"`
	Down   string            `json:"down"`
	Labels map[string]string `json:"labels"`
}

// hardware are the labels that say what a node is, the same to every program on
// it; a job's C library is its image's.
var hardware = []string{"arch", "cpu.model", "cpu.vector", "cpu.sockets", "cpu.cores", "cpu.numa"}

// compare adds what the pool says of the node and the node is not: jobs would be
// refused, or placed where they cannot run.
func (n declared) compare(is probed, accelerators bool, wrong *findings) {
	name := plain(n.Name)
	differs := func(said, found string) {
		wrong.add("the pool's manifest declares %[2]s for node %[1]s, but the node has %[3]s: correct or remove the field in the manifest and apply it", name, plain(said), plain(found))
	}
	for _, label := range hardware {
		if said, found := n.Labels[label], is.Facts[label]; said != "" && found != "" && said != found && aliases[said] != found {
			differs(label+" "+said, found)
		}
	}
	if is.Threads == 0 {
		return
	}
	if cpu := quantity(n.CPU); cpu > is.Threads {
		differs(n.CPU+" cpu", fmt.Sprint(is.Threads))
	}
	// What the kernel keeps for itself is no mistake.
	if memory := quantity(n.Memory); is.Memory > 0 && memory > 1.05*is.Memory {
		differs(n.Memory+" memory", speed(is.Memory))
	}
	if !accelerators {
		return
	}
	for _, resource := range keys(n.Accelerators) {
		count := n.Accelerators[resource]
		switch {
		case !strings.HasPrefix(resource, "nvidia.com/"):
		case count > 0 && is.GPUs == 0:
			differs(fmt.Sprintf("%d %s", count, resource), "no GPU with an NVIDIA driver found (install the driver if the machine has one)")
		case resource == "nvidia.com/gpu" && count > is.GPUs:
			differs(fmt.Sprintf("%d %s", count, resource), strconv.FormatInt(is.GPUs, 10))
		}
	}
}

// aliases are other names of architectures, as Kubernetes has them.
var aliases = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// quantity is an amount as the API writes it: "4", "500m", "8GiB"; 0 when it is
// none.
func quantity(text string) float64 {
	for suffix, size := range map[string]float64{"m": 1e-3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			n, _ := strconv.ParseFloat(number, 64)
			return n * size
		}
	}
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

func skewed(d time.Duration) string {
	switch {
	case d > 0:
		return d.String() + " ahead"
	case d < 0:
		return (-d).String() + " behind"
	}
	return "right to the second"
}

func rate(bytesPerSecond float64) string { return speed(bytesPerSecond) + "/s" }
