package remote

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/fsync"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/launch"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// The files of a workload's directory.
const (
	workFile  = "work.json"  // what to run; written once
	stateFile = "state.json" // how far it is
	logFile   = "log"        // the output, of gangs with "[i] " before each line
	indexFile = "log.index"  // which bytes of whom are in it
	treesDir  = "trees"      // what came back: a record each, and outputs
	memberFmt = "member-"    // + index + ".json"
)

// maxTurns is how many manifests of a workload are read at once.
const maxTurns = 4

// work is one workload. Its mutex is held while its files are written, never
// while the engine is asked.
type work struct {
	c    *Config
	id   string
	dir  string
	spec engine.Spec

	mu       sync.Mutex
	state    state
	members  []*member
	trees    map[string]*tree
	log      *joined
	observed Observed
	gone     time.Time               // since when the engine says that it is over
	finish   bool                    // its output is being taken
	failed   time.Time               // since when that does not succeed
	changed  chan struct{}           // closed and replaced at each change
	done     chan struct{}           // closed when state.Final is on disk
	turns    chan struct{}           // taken while a manifest is read
	packs    chan struct{}           // taken while a mount is sent
	named    bool                    // the engine reports the nodes of its launches
	looks    map[int]*profileRequest // asked of members
	wanted   map[int][]*wanted
}

// state is what survives a restart, beside the members'.
type state struct {
	Launched time.Time      `json:"launched,omitzero"`
	Begun    time.Time      `json:"begun,omitzero"` // all members have joined
	Stop     *stop          `json:"stop,omitempty"`
	Forced   time.Time      `json:"forced,omitzero"` // the engine was asked to end it
	Final    *engine.Status `json:"final,omitempty"`
}

// stop is the order to stop that members get.
type stop struct {
	At    time.Time     `json:"at"`
	Grace time.Duration `json:"grace"`
	Why   string        `json:"why"`
	// Asked is true when Driver.Stop was called; else it follows from a member.
	Asked bool `json:"asked,omitempty"`
	// Done is true when all members have succeeded except those that serve. The ends of the serving
	// ones then do not count.
	Done bool `json:"done,omitempty"`
	// Cause is the status that the workload gets when the members' ends do not
	// say more.
	Cause *engine.Status `json:"cause,omitempty"`
}

// member is one worker.
type member struct {
	Join   protocol.Join `json:"join"` // the zero Join has not come
	Joined time.Time     `json:"joined,omitzero"`
	End    *protocol.End `json:"end,omitempty"`
	Ended  time.Time     `json:"ended,omitzero"` // by our clock
	Lost   string        `json:"lost,omitempty"` // why it counts as lost

	heard time.Time // the last sign of life
	beat  protocol.Beat
	asked []string // checkpoints that it was asked for
	none  map[string]bool
	// placed is true once the engine has said that the launch is on the node
	// that the agent has named, or that it names none.
	placed bool
}

func (m *member) joined() bool { return m.Join.Start != "" }
func (m *member) over() bool   { return m.End != nil || m.Lost != "" }

func newWork(c *Config, spec engine.Spec) *work {
	w := &work{
		c: c, id: spec.ID, dir: filepath.Join(c.Dir, spec.ID), spec: spec, trees: map[string]*tree{}, looks: map[int]*profileRequest{}, wanted: map[int][]*wanted{},
		changed: make(chan struct{}), done: make(chan struct{}), turns: make(chan struct{}, maxTurns),
	}
	w.packs = make(chan struct{}, 2*max(spec.Workers, 1)) // one that broke off may not have been noticed yet
	for range max(spec.Workers, 1) {
		w.members = append(w.members, &member{none: map[string]bool{}})
	}
	return w
}

// hidden begins the names of directories that are not, or no longer, of a
// workload.
const hidden = ".new-"

// record makes the directory of a new workload: it is there whole or not at all.
func (w *work) record() error {
	tmp, err := os.MkdirTemp(w.c.Dir, hidden+"*")
	if err != nil {
		return err
	}
	err = os.Mkdir(filepath.Join(tmp, treesDir), 0o700)
	if err == nil {
		err = shim.Write(tmp, workFile, w.spec)
	}
	if err == nil {
		err = os.Rename(tmp, w.dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := fsync.Dir(w.c.Dir); err != nil {
		return err
	}
	w.log, err = openLog(w.dir, len(w.members), w.c.LogLimit)
	return err
}

// load reads a workload's directory.
func load(c *Config, id string) (*work, error) {
	dir := filepath.Join(c.Dir, id)
	spec, err := shim.Read[engine.Spec](dir, workFile)
	if err != nil {
		return nil, err
	}
	w := newWork(c, spec)
	if w.state, err = optional[state](dir, stateFile); err != nil {
		return nil, err
	}
	for i, m := range w.members {
		read, err := optional[member](dir, memberFile(i))
		if err != nil {
			return nil, err
		}
		*m = read
		m.none, m.heard = map[string]bool{}, c.Now() // it may have sent a heartbeat while the server was down
	}
	if w.state.Final != nil {
		close(w.done)
		return w, nil
	}
	if err := w.loadTrees(); err != nil {
		return nil, err
	}
	w.log, err = openLog(w.dir, len(w.members), c.LogLimit)
	return w, err
}

func optional[T any](dir, name string) (T, error) {
	v, err := shim.Read[T](dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return v, err
}

func memberFile(i int) string { return memberFmt + strconv.Itoa(i) + ".json" }

// save writes the state. The caller holds mu.
func (w *work) save() error {
	return fault.Wrap(shim.Write(w.dir, stateFile, w.state), "recording the state of %s", w.id)
}

func (w *work) saveMember(i int) error {
	return fault.Wrap(shim.Write(w.dir, memberFile(i), w.members[i]), "recording worker %d of %s", i, w.id)
}

// notify wakes the callers that wait for a change. The caller holds mu.
func (w *work) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *work) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (w *work) gang() bool { return len(w.members) > 1 }

func (w *work) shared() bool { return w.spec.Options[Shared] == "true" }

// missing is how many members have not joined.
func (w *work) missing() int {
	n := 0
	for _, m := range w.members {
		if !m.joined() {
			n++
		}
	}
	return n
}

// order is what a member runs. The caller holds mu.
func (w *work) order(index, version int) protocol.Order {
	o := protocol.Order{
		Version: version, ID: w.id, Index: index, Launch: w.spec.Launch, Command: w.spec.Command, Env: w.spec.Env, Inherit: w.inherit(),
		Dir: w.spec.Dir, API: w.spec.Network.API, Secrets: w.spec.Secrets, Timeout: w.spec.Timeout, Grace: w.spec.Grace, Lease: w.c.Lease,
		LogLimit: w.c.LogLimit, Memory: int64(w.spec.Of(index).Memory), Options: w.spec.Options,
	}
	for i, m := range w.members {
		o.Roster = append(o.Roster, launch.Peer{
			Index: i, Node: m.Join.Node, Address: m.Join.Address, Port: m.Join.Port, Interface: m.Join.Interface, Slots: max(w.spec.Launch.Processes, 1),
		})
	}
	for _, m := range w.spec.Mounts {
		o.Mounts = append(o.Mounts, protocol.Mount{
			Path: m.Path, Role: string(m.Role), Writable: m.Writable, Digest: m.Digest, InPlace: w.shared() && m.Role != engine.Scratch,
			Settle: m.Settle, Ready: m.Ready,
		})
	}
	return o
}

// inherit lists what the engine tells a worker by its environment and only it
// knows: which accelerators are the worker's, and which workers are in the step. A worker without
// accelerators in a gang that has some is told that it has none.
func (w *work) inherit() []string {
	var names []string
	if len(w.spec.Total().Accelerators) > 0 {
		names = append(names, "CUDA_VISIBLE_DEVICES", "NVIDIA_", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TPU_", "HABANA_")
	}
	if w.spec.Launch.Framework == launch.MPI {
		names = append(names, "SLURM_", "PMI", "PMIX_")
	}
	return names
}

// mirrored is the n-th mount, if the nodes have a copy of it.
func (w *work) mirrored(n int) (engine.Mount, error) {
	if n < 0 || n >= len(w.spec.Mounts) {
		return engine.Mount{}, fault.New(fault.NotFound, "workload %s has no mount %d", w.id, n)
	}
	m := w.spec.Mounts[n]
	if w.shared() || m.Role == engine.Scratch {
		return m, fault.New(fault.Invalid, "mount %d of %s is not mirrored", n, w.id)
	}
	return m, nil
}

// known are members' lines for people and programs.
func (w *work) known() []engine.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]engine.Member, len(w.members))
	for i, m := range w.members {
		e := engine.Member{
			Index: i, Node: w.node(m), State: engine.Pending, Heard: m.heard.UTC(), Started: w.state.Begun,
			CPU: m.beat.CPU, PeakRSS: amount(m.beat.PeakRSS), Usage: usage(m.beat.Usage),
		}
		if !m.joined() {
			e.Heard, e.Started = time.Time{}, time.Time{}
			if i < len(w.observed.Nodes) {
				e.Node = w.observed.Nodes[i]
			}
		}
		switch {
		case m.End != nil:
			e.State, e.Reason, e.ExitCode, e.Signal, e.Message = engine.Ended, engine.Reason(m.End.Reason), m.End.ExitCode, m.End.Signal, m.End.Message
			e.Ended, e.CPU, e.PeakRSS, e.Usage = m.Ended, m.End.CPU, amount(m.End.PeakRSS), engine.Usage{}
		case m.Lost != "":
			e.State, e.Reason, e.ExitCode, e.Message = engine.Lost, engine.NodeFailed, -1, m.Lost
		case w.state.Final != nil:
			e.State, e.ExitCode, e.Message = engine.Lost, -1, "its end was never reported"
		case !w.state.Begun.IsZero():
			e.State, e.Notes = engine.Running, m.beat.Notes
		}
		out[i] = e
	}
	return out
}

// placing is how long the engine may take to tell where a launch runs.
const placing = 30 * time.Second

// node is where a member runs. What an agent says has the worth of its
// attempt's word, and nodes are blamed by it: where the engine tells the nodes
// of a launch, another name is none.
func (w *work) node(m *member) string {
	until := m.Ended
	if !m.over() {
		until = w.c.Now()
	}
	if w.named && !m.placed && until.Sub(m.Joined) > placing {
		return ""
	}
	return m.Join.Node
}

// place compares where the members say that they are with what the engine says,
// and gives those that were found just now. The caller holds mu.
func (w *work) place(o Observed) (found []*member) {
	known := slices.ContainsFunc(o.Nodes, func(n string) bool { return n != "" })
	w.named = w.named || known
	for _, m := range w.members {
		if m.placed || !m.joined() {
			continue
		}
		if known && slices.Contains(o.Nodes, m.Join.Node) || !w.named && o.State == engine.Running {
			m.placed = true
			found = append(found, m)
		}
	}
	return found
}

func usage(u protocol.Usage) engine.Usage {
	e := engine.Usage{CPU: u.CPU, Memory: amount(u.Memory), NetworkIn: u.NetworkIn, NetworkOut: u.NetworkOut}
	for _, a := range u.Accelerators {
		e.Accelerators = append(e.Accelerators, engine.Accelerator{
			Name: a.Name, Index: a.Index, Utilisation: a.Utilisation, Memory: amount(a.Memory), Watts: a.Watts, Celsius: a.Celsius,
		})
	}
	return e
}

// facts of a member's node, for describe.
func (w *work) facts(i int) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.members[i].Join.Facts
}
