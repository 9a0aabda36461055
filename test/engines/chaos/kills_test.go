package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
)

var rayNodes = []raytest.Node{{Name: "r1", CPUs: 2}, {Name: "r2", CPUs: 2}}

// outage is something that was killed and comes back.
type outage struct {
	name  string
	left  int // kills until then
	order int // what others need to come back comes first
	back  func()
}

func (w *world) out(name string) bool {
	return slices.ContainsFunc(w.outages, func(o outage) bool { return o.name == name })
}

func (w *world) down(name string, order, longest int, back func()) {
	w.outages = append(w.outages, outage{name, w.r.IntN(longest + 1), order, back})
}

// restore brings back what has been away long enough, or all.
func (w *world) restore(all bool) {
	w.T.Helper()
	slices.SortStableFunc(w.outages, func(a, b outage) int { return a.order - b.order })
	var still []outage
	for _, o := range w.outages {
		// Nodes do not come back to a controller that is away.
		controller := map[int]string{1: "slurmctld", 2: "apiserver"}[o.order]
		away := controller != "" && slices.ContainsFunc(still, func(s outage) bool { return s.name == controller })
		if !all && (o.left > 0 || away) {
			o.left--
			still = append(still, o)
			continue
		}
		o.back()
	}
	w.outages = still
}

// cards are what is killed, each as often as it stands here in a round.
func (w *world) cards() []string {
	cards := []string{"worker", "worker", "worker", "helper", "helper", "helper", "server", "server"}
	if w.slurm != nil {
		cards = append(cards, "slurm node", "slurmd", "slurmctld")
	}
	if w.kube != nil {
		cards = append(cards, "kube node", "kubelet", "apiserver")
	}
	if w.ray != nil {
		cards = append(cards, "ray node", "raylet", "ray supervisor")
	}
	w.r.Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
	return cards
}

// strike kills the next thing that is there.
func (w *world) strike() {
	w.T.Helper()
	w.Within(2*time.Minute, "there is nothing to kill", func() (bool, error) {
		w.fill()
		for range 20 {
			if len(w.deck) == 0 {
				w.deck = w.cards()
			}
			card := w.deck[0]
			w.deck = w.deck[1:]
			if what := w.kill(card); what != "" {
				w.counts[card]++
				w.T.Logf("%s killed: %s", time.Now().UTC().Format(time.TimeOnly), what)
				return true, nil
			}
		}
		return false, nil
	})
}

// kill kills one of a kind; empty when there is none.
func (w *world) kill(card string) string {
	w.T.Helper()
	switch card {
	case "worker":
		return w.victim(workers())
	case "helper":
		return w.victim(slices.DeleteFunc(processes(), func(p process) bool { return !p.helper() }))
	case "server":
		if w.out(card) {
			return ""
		}
		w.Must(w.Kill())
		w.down(card, 0, 1, w.Again)
	case "slurm node":
		node := w.slurm.Nodes[w.r.IntN(len(w.slurm.Nodes))]
		if w.out(node) {
			return ""
		}
		w.slurm.Fail(node)
		w.down(node, 1, 3, func() { w.restoreNode(node) })
		return card + " " + node
	case "slurmd":
		node := w.slurm.Nodes[w.r.IntN(len(w.slurm.Nodes))]
		if w.out(node) || w.slurm.KillDaemon(node) != nil { // between its starts it has no process
			return ""
		}
		return card + " of " + node
	case "slurmctld":
		if w.out(card) {
			return ""
		}
		w.slurm.KillController()
		w.down(card, 0, 2, func() { w.Must(w.slurm.StartController(w.T.Context())) })
	case "apiserver":
		if w.out(card) {
			return ""
		}
		w.kube.KillServer()
		w.down(card, 0, 2, w.kube.StartServer)
	case "kubelet":
		if w.out(card) || w.out("kube node") {
			return ""
		}
		w.kube.KillKubelet()
		w.down(card, 2, 3, w.kube.StartKubelet)
	case "kube node":
		if w.out(card) {
			return ""
		}
		w.outages = slices.DeleteFunc(w.outages, func(o outage) bool { return o.name == "kubelet" })
		w.kube.FailNode()
		w.down(card, 2, 3, w.kube.StartNode)
	case "ray node", "raylet":
		node := rayNodes[w.r.IntN(len(rayNodes))]
		if w.out(node.Name) {
			return ""
		}
		if card == "ray node" {
			w.ray.Fail(w.T, node.Name)
		} else if !w.ray.KillRaylet(node.Name) {
			return ""
		}
		w.down(node.Name, 3, 2, func() { w.ray.Add(w.T, node) })
		return card + " " + node.Name
	case "ray supervisor": // of a job, as Ray has one for each
		return w.victim(slices.DeleteFunc(processes(), func(p process) bool {
			return !strings.HasPrefix(p.argv[0], "ray::") || !strings.Contains(p.argv[0], "JobSupervisor")
		}))
	}
	return card
}

// restoreNode starts a node again. Slurm may take its time until it gives it work,
// as when it still looks for jobs that were on it; that is nothing to wait for.
func (w *world) restoreNode(node string) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Second)
	defer cancel()
	if err := w.slurm.Restore(ctx, node); err != nil {
		state, _ := w.slurm.Command(w.T.Context(), "sinfo", "--noheader", "--Node", "--partition=batch", "--format=%N %T")
		w.T.Logf("%s takes no work yet: %s", node, strings.Join(strings.Fields(state), " "))
	}
}

// victim kills one of them.
func (w *world) victim(all []process) string {
	w.T.Helper()
	if len(all) == 0 {
		return ""
	}
	p := all[w.r.IntN(len(all))]
	if syscall.Kill(p.pid, syscall.SIGKILL) != nil {
		return ""
	}
	if p.worker() {
		return fmt.Sprintf("worker %s of %s", p.env["RANK"], p.env[mark])
	}
	return fmt.Sprintf("%s (%d)", strings.Join(p.argv[:min(len(p.argv), 3)], " "), p.pid)
}

// nothingLeft waits until no process of a job or for one runs, and the engines
// have no work of ours.
func (w *world) nothingLeft() {
	w.T.Helper()
	w.Within(time.Minute, "something is left running", func() (bool, error) {
		left := map[string]bool{}
		for _, p := range w.Processes() { // with the mark of jobs, or of the data directory
			left[fmt.Sprintf("process %d: %.200s", p.PID, p.Line)] = true
		}
		for _, p := range processes() {
			if p.helper() {
				left[fmt.Sprintf("process %d: %.200s", p.pid, strings.Join(p.argv, " "))] = true
			}
		}
		if w.slurm != nil {
			if out, err := w.slurm.Command(w.T.Context(), "squeue", "--noheader", "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"); err != nil || strings.TrimSpace(out) != "" {
				left[fmt.Sprintf("on Slurm: %s %v", out, err)] = true
			}
		}
		if w.kube != nil {
			for _, phase := range []string{"Running", "Pending"} {
				if out := w.kube.Kubectl("--namespace", kubetest.Namespace, "get", "pods", "--field-selector", "status.phase="+phase, "--no-headers", "-o",
					"custom-columns=N:.metadata.name,D:.metadata.deletionTimestamp,ON:.spec.nodeName,C:.status.conditions[*].type,OF:.metadata.ownerReferences[*].name"); out != "" {
					left[phase+" on Kubernetes: "+out] = true
				}
			}
		}
		return len(left) == 0, fmt.Errorf("%s", strings.Join(slices.Sorted(maps.Keys(left)), "\n"))
	})
}
