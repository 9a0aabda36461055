// Package launch says what each worker of a gang runs: how frameworks learn who
// else is there. It is pure and standard library only, since the agent on a node
// and the supervisor inside a local sandbox use it alike.
//
// Map: launch.go has the types and the rules that hold for all; roles.go those of
// gangs whose workers differ; frameworks.go one function for each framework; the *.py files are what a worker runs around
// the program where the framework has no launcher that fits: they pass signals
// on to the program and its exit code back, which 75 ("saved") depends on.
//
// Every process finds FALAJ_WORKERS, FALAJ_WORKER_INDEX and FALAJ_PROCESSES, those
// of a gang with roles also FALAJ_ROLE and its siblings. The
// rendezvous is the first peer's address and port in all frameworks.
package launch

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Framework says how processes of a job find each other.
type Framework string

// The frameworks.
const (
	Plain      Framework = "plain"      // RANK, WORLD_SIZE, MASTER_ADDR and friends, for whoever reads them
	Torchrun   Framework = "torchrun"   // torch.distributed.run on each worker
	TensorFlow Framework = "tensorflow" // TF_CONFIG
	Horovod    Framework = "horovod"    // HOROVOD_* over Gloo, with a rendezvous of our own on the first worker
	MPI        Framework = "mpi"        // mpirun on one worker
	XGBoost    Framework = "xgboost"    // a tracker on the first worker, and FALAJ_COLLECTIVE
	LightGBM   Framework = "lightgbm"   // FALAJ_COLLECTIVE, or FALAJ_MACHINES
	DeepSpeed  Framework = "deepspeed"  // as torchrun
	Accelerate Framework = "accelerate" // as torchrun
)

// Frameworks lists all of them.
var Frameworks = []Framework{Plain, Torchrun, TensorFlow, Horovod, MPI, XGBoost, LightGBM, DeepSpeed, Accelerate}

// Known reports whether the framework is one of the list; empty is plain.
func (f Framework) Known() bool { return f == "" || slices.Contains(Frameworks, f) }

// Spawns reports whether a worker may have several processes.
func (f Framework) Spawns() bool {
	return f == Torchrun || f == DeepSpeed || f == Accelerate || f == Horovod || f == MPI
}

// Python reports whether the framework's launcher is a Python module, so that
// the job needs an environment.
func (f Framework) Python() bool {
	return f == Torchrun || f == DeepSpeed || f == Accelerate || f == Horovod || f == XGBoost
}

// OneWorker reports whether the framework cannot span workers here, and why.
func (f Framework) OneWorker() (why string, only bool) {
	if f == MPI {
		return "mpirun starts processes on other nodes by ssh, which workers do not have", true
	}
	return "", false
}

// Spec is what a gang runs.
type Spec struct {
	Framework Framework `json:"framework,omitempty"` // empty is plain
	// Processes on each worker; 0 is one.
	Processes int `json:"processes,omitempty"`
	// Command is the user's program and arguments, with an absolute program.
	Command []string `json:"command,omitempty"`
	// Python is the interpreter of the environment, for launchers that are
	// modules; empty when there is none.
	Python string `json:"python,omitempty"`
	// Run names the attempt: one rendezvous each.
	Run string `json:"run,omitempty"`
	// Roles say in which the workers differ; they follow each other, and have all
	// workers. None is a gang whose workers are all alike.
	Roles []Role `json:"roles,omitempty"`
	// Grace in seconds between SIGTERM and SIGKILL, which launchers must not
	// shorten; 0 is 30.
	Grace int `json:"grace,omitempty"`
}

// Peer is one worker as the others see it.
type Peer struct {
	Index   int    `json:"index"`
	Node    string `json:"node"`
	Address string `json:"address"` // that the others can reach
	Port    int    `json:"port"`    // free there when it was asked
	Slots   int    `json:"slots,omitempty"`
	// Interface that has the address, for frameworks that want its name; empty
	// leaves the choice to them, except on loopback.
	Interface string `json:"interface,omitempty"`
}

// Process is what one worker runs.
type Process struct {
	Argv []string `json:"argv"`
	// Env is added to the worker's own and comes before it, except for variables
	// that end in SOCKET_IFNAME: there the worker's own stays.
	Env map[string]string `json:"env"`
}

// Limits of a gang.
const (
	MaxWorkers   = 1024
	MaxProcesses = 128
)

// Plan says what worker index of the roster runs. The roster is complete and in
// order. The error says what is wrong with the input.
func Plan(s Spec, roster []Peer, index int) (Process, error) {
	if err := check(s, roster, index); err != nil {
		return Process{}, err
	}
	g := gang{Spec: s, roster: roster, index: index, processes: max(s.Processes, 1)}
	if g.Grace <= 0 {
		g.Grace = 30
	}
	if r, _, ok := s.Role(index); ok && len(r.Command) > 0 {
		g.Command = r.Command
	}
	p := g.plan()
	maps.Copy(p.Env, g.common())
	for name, v := range g.inRole() { // what finds the others is not a role's to say
		if _, ours := p.Env[name]; !ours || strings.HasSuffix(name, "SOCKET_IFNAME") {
			p.Env[name] = v
		}
	}
	return p, nil
}

func check(s Spec, roster []Peer, index int) error {
	switch {
	case !s.Framework.Known():
		return fmt.Errorf("framework %.40q does not exist", string(s.Framework))
	case len(s.Command) == 0 || s.Command[0] == "":
		return errors.New("there is no command")
	case len(roster) == 0 || len(roster) > MaxWorkers:
		return fmt.Errorf("a gang of %d workers is not between 1 and %d", len(roster), MaxWorkers)
	case index < 0 || index >= len(roster):
		return fmt.Errorf("worker %d is not one of %d", index, len(roster))
	case s.Processes < 0 || s.Processes > MaxProcesses:
		return fmt.Errorf("%d processes on a worker are not between 1 and %d", s.Processes, MaxProcesses)
	case s.Processes > 1 && !s.Framework.Spawns():
		return fmt.Errorf("framework %s has one process on a worker, not %d", s.Framework.orPlain(), s.Processes)
	case s.Framework.Python() && s.Python == "":
		return fmt.Errorf("framework %s needs a Python environment", s.Framework)
	}
	if why, only := s.Framework.OneWorker(); only && len(roster) > 1 {
		return fmt.Errorf("framework %s runs on one worker: %s", s.Framework, why)
	}
	if err := s.checkRoles(len(roster)); err != nil {
		return err
	}
	if len(roster) == 1 {
		return nil // whoever is alone needs no address
	}
	for i, p := range roster {
		switch {
		case p.Index != i:
			return fmt.Errorf("the roster has worker %d at position %d", p.Index, i)
		case p.Address == "" || strings.ContainsAny(p.Address, " ,/\x00"):
			return fmt.Errorf("worker %d has no address that other workers can reach: %.80q", i, p.Address)
		case p.Port <= 0 || p.Port > 65535:
			return fmt.Errorf("worker %d has port %d", i, p.Port)
		}
	}
	return nil
}

func (f Framework) orPlain() Framework {
	if f == "" {
		return Plain
	}
	return f
}

// gang is a checked Spec seen from one worker.
type gang struct {
	Spec
	roster    []Peer
	index     int
	processes int
}

func (g gang) me() Peer    { return g.roster[g.index] }
func (g gang) first() Peer { return g.roster[0] }

// host is a peer's address as MASTER_ADDR wants it.
func (p Peer) host() string {
	if p.Address == "" {
		return "127.0.0.1"
	}
	return p.Address
}

// endpoint is a peer's address with its port, in brackets where it is IPv6.
func (p Peer) endpoint() string { return net.JoinHostPort(p.host(), p.port()) }

// port of a peer; whoever is alone and was given none has torch's own default.
func (p Peer) port() string {
	if p.Port == 0 {
		return "29500"
	}
	return strconv.Itoa(p.Port)
}

// common is what every framework's processes find.
func (g gang) common() map[string]string {
	env := map[string]string{
		"FALAJ_WORKERS": strconv.Itoa(len(g.roster)), "FALAJ_WORKER_INDEX": strconv.Itoa(g.index), "FALAJ_PROCESSES": strconv.Itoa(g.processes),
	}
	if len(g.roster) == 1 && g.processes == 1 {
		return env
	}
	iface := g.me().Interface
	if a, err := netip.ParseAddr(g.me().host()); err == nil && a.IsLoopback() {
		iface = "lo"
	}
	if iface != "" {
		for _, of := range []string{"GLOO", "NCCL", "TP"} {
			env[of+"_SOCKET_IFNAME"] = iface
		}
	}
	return env
}
