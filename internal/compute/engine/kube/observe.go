package kube

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
)

// settle is how long a Job may have fewer pods than wanted before the cluster's
// events are asked for the reason.
const settle = 3 * time.Second

// starts is how long a pod takes to start where nothing is wrong.
const starts = 10 * time.Second

// What is read of a Job, a Pod and an Event; everything else of them is ignored.
type (
	jobView struct {
		Metadata meta.ObjectMeta `json:"metadata"`
		Spec     struct {
			Suspend     bool  `json:"suspend"`
			Completions int64 `json:"completions"`
		} `json:"spec"`
		Status struct {
			StartTime  *meta.Time  `json:"startTime"`
			Conditions []condition `json:"conditions"`
		} `json:"status"`
	}
	podView struct {
		Metadata meta.ObjectMeta `json:"metadata"`
		Spec     struct {
			NodeName    string `json:"nodeName"`
			Tolerations []struct {
				Key     string `json:"key"`
				Seconds *int64 `json:"tolerationSeconds"`
			} `json:"tolerations"`
		} `json:"spec"`
		Status struct {
			Phase      string      `json:"phase"`
			Reason     string      `json:"reason"`
			Message    string      `json:"message"`
			Conditions []condition `json:"conditions"`
			Init       []container `json:"initContainerStatuses"`
			Containers []container `json:"containerStatuses"`
		} `json:"status"`
	}
	condition struct {
		Type    string    `json:"type"`
		Status  string    `json:"status"`
		Reason  string    `json:"reason"`
		Message string    `json:"message"`
		Since   meta.Time `json:"lastTransitionTime"`
	}
	container struct {
		Image string `json:"image"`
		State struct {
			Waiting *struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"waiting"`
			Running *struct {
				Started meta.Time `json:"startedAt"`
			} `json:"running"`
			Terminated *struct {
				Code    int64     `json:"exitCode"`
				Reason  string    `json:"reason"`
				Message string    `json:"message"`
				Started meta.Time `json:"startedAt"`
				Ended   meta.Time `json:"finishedAt"`
			} `json:"terminated"`
		} `json:"state"`
	}
	eventView struct {
		Involved struct {
			Name string `json:"name"`
		} `json:"involvedObject"`
		Message string `json:"message"`
	}
)

func view[T any](u *unstructured.Unstructured) (T, error) {
	var v T
	return v, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v)
}

// Observe asks for all launches of this Falaj with two lists, and for more only
// where something is wrong.
func (l *Launcher) Observe(ctx context.Context, ids []string) (map[string]remote.Observed, error) {
	ours := meta.ListOptions{LabelSelector: installationLabel + "=" + l.c.Installation}
	// The Jobs first: a Job that is there has its pods in the later list.
	jobList, err := l.list(ctx, jobs, l.namespace, ours)
	if err != nil {
		return nil, translate(err, "listing Jobs")
	}
	podList, err := l.list(ctx, pods, l.namespace, ours)
	if err != nil {
		return nil, translate(err, "listing pods")
	}
	jobsOf, podsOf := map[string][]jobView{}, map[string][]podView{}
	for i := range jobList {
		j, err := view[jobView](&jobList[i])
		if err != nil {
			return nil, translate(err, "reading Job %s", jobList[i].GetName())
		}
		id := j.Metadata.Labels[launchLabel]
		jobsOf[id] = append(jobsOf[id], j)
	}
	for i := range podList {
		p, err := view[podView](&podList[i])
		if err != nil {
			return nil, translate(err, "reading pod %s", podList[i].GetName())
		}
		id := p.Metadata.Labels[launchLabel]
		podsOf[id] = append(podsOf[id], p)
	}
	silent, err := l.silent(ctx, podsOf)
	if err != nil {
		return nil, err
	}
	all := make(map[string]remote.Observed, len(ids))
	var without []string
	for _, id := range ids {
		s := scene{jobs: jobsOf[id], pods: podsOf[id], silent: silent, now: l.c.Now(), patience: l.c.Patience}
		all[id] = s.observed()
		if len(s.jobs) > 0 && all[id].State == engine.Pending && !s.jobs[0].Spec.Suspend &&
			int64(len(s.pods)) < s.workers() && s.now.Sub(s.jobs[0].Metadata.CreationTimestamp.Time) > settle {
			without = append(without, id)
		}
	}
	return all, l.refusals(ctx, without, all)
}

// silent are the nodes of pods that ought to be ready and are not, which do not
// answer, and since when. The cluster itself gives up such pods only while it has
// other nodes that do.
func (l *Launcher) silent(ctx context.Context, podsOf map[string][]podView) (map[string]time.Time, error) {
	suspects := false
	for _, pods := range podsOf {
		suspects = suspects || slices.ContainsFunc(pods, func(p podView) bool {
			scheduled := find(p.Status.Conditions, "PodScheduled")
			return (p.Status.Phase == "Running" || p.Status.Phase == "Pending" && scheduled.Status == "True" && l.c.Now().Sub(scheduled.Since.Time) > starts) &&
				find(p.Status.Conditions, "Ready").Status != "True"
		})
	}
	if !suspects {
		return nil, nil
	}
	list, err := l.list(ctx, nodes, "", meta.ListOptions{})
	if err != nil {
		return nil, translate(err, "listing nodes")
	}
	since := map[string]time.Time{}
	for i := range list {
		if n, err := view[nodeView](&list[i]); err == nil {
			if c := find(n.Status.Conditions, "Ready"); c.Status == "Unknown" {
				since[n.Metadata.Name] = c.Since.Time
			}
		}
	}
	return since, nil
}

// refusals adds why the cluster makes no pods of a Job: a quota, an admission
// webhook.
func (l *Launcher) refusals(ctx context.Context, ids []string, all map[string]remote.Observed) error {
	if len(ids) == 0 {
		return nil
	}
	list, err := l.list(ctx, events, l.namespace, meta.ListOptions{FieldSelector: "involvedObject.kind=Job,type=Warning"})
	if err != nil {
		return translate(err, "listing events")
	}
	said := map[string]string{}
	for i := range list {
		if e, err := view[eventView](&list[i]); err == nil {
			said[e.Involved.Name] = e.Message
		}
	}
	for _, id := range ids {
		o := all[id]
		m := said[name(id)]
		for of, words := range said {
			if m == "" && strings.HasPrefix(of, name(id)+"-r") { // a role's
				m = words
			}
		}
		if m != "" {
			o.Words = append(o.Words, "the cluster refuses its pods: "+m)
		} else {
			o.Words = append(o.Words, "the cluster has not created its pods yet")
		}
		all[id] = o
	}
	return nil
}

// scene is what is there of one launch.
type scene struct {
	jobs     []jobView // of each role
	pods     []podView
	silent   map[string]time.Time // nodes that do not answer, since when
	now      time.Time
	patience time.Duration
}

// workers is how many pods there are to be.
func (s scene) workers() (n int64) {
	for _, j := range s.jobs {
		n += j.Spec.Completions
	}
	return n
}

// observed decides from the scene.
func (s scene) observed() remote.Observed {
	slices.SortFunc(s.pods, func(a, b podView) int { return cmp.Compare(a.index(), b.index()) })
	var o remote.Observed
	for _, p := range s.pods {
		o.Nodes = append(o.Nodes, p.Spec.NodeName)
		started, ended := p.times()
		if !started.IsZero() && (o.Started.IsZero() || started.Before(o.Started)) {
			o.Started = started
		}
		if ended.After(o.Ended) {
			o.Ended = ended
		}
	}
	switch {
	case len(s.jobs) == 0 && len(s.pods) == 0:
		o.State, o.Message = engine.Lost, "the Job no longer exists in Kubernetes"
		return o
	case len(s.jobs) > 0 && !slices.ContainsFunc(s.jobs, func(j jobView) bool { return !j.true("Complete") }):
		o.State, o.Reason = engine.Ended, engine.Exited
		for _, p := range s.pods { // an agent outlives its worker, and says so by exit code 0
			if m := p.outOfMemory(); m != "" {
				o.Reason, o.Message = engine.OutOfMemory, m
			}
		}
		return o
	}
	// What took one worker away took the gang.
	for _, p := range s.pods {
		o.Reason, o.Message = p.taken(s.now, s.patience)
		if since, silent := s.silent[p.Spec.NodeName]; o.Reason == "" && silent && s.now.Sub(since) > p.tolerance() {
			o.Reason, o.Message = engine.NodeFailed, p.who()+": the node has not answered since "+since.UTC().Format(time.TimeOnly)+" UTC"
		}
		switch o.Reason {
		case "":
			continue
		case engine.NodeFailed: // what the cluster cannot see may run on
			o.State = engine.Lost
		default:
			o.State = engine.Ended
		}
		return o
	}
	for _, j := range s.jobs {
		if c := j.condition("Failed"); c.Status == "True" {
			o.State, o.Reason, o.Message = engine.Ended, engine.Exited, c.Message
			if c.Reason == "DeadlineExceeded" {
				o.Reason = engine.TimedOut
			}
			for _, p := range s.pods {
				if m, killed := p.exit(); m != "" {
					if o.Message = m; killed {
						o.Reason = engine.Signalled
					}
					break
				}
			}
			if o.Message == "" {
				o.Message = "the Job failed: " + c.Reason
			}
			return o
		}
	}
	o.State, o.Ended = engine.Pending, time.Time{}
	waiting := 0
	for _, p := range s.pods {
		words := p.words()
		if words == "" {
			o.State = engine.Running
			continue
		}
		waiting++
		if !slices.Contains(o.Words, words) {
			o.Words = append(o.Words, words)
		}
	}
	switch {
	case len(s.jobs) == 0:
		o.State, o.Words = engine.Running, []string{"its Job is deleted, and its pods are ending"}
	case s.jobs[0].Spec.Suspend:
		if queue := s.jobs[0].Metadata.Labels["kueue.x-k8s.io/queue-name"]; queue != "" {
			o.Words = append(o.Words, "it is pending in Kueue's queue "+queue)
		} else {
			o.Words = append(o.Words, "its Job was suspended")
		}
	case o.State == engine.Running && waiting > 0:
		o.Words = append([]string{fmt.Sprintf("%d of %d workers have started", len(s.pods)-waiting, s.workers())}, o.Words...)
	}
	return o
}

func (j jobView) condition(kind string) condition {
	return find(j.Status.Conditions, kind)
}

func (j jobView) true(kind string) bool { return j.condition(kind).Status == "True" }

func find(all []condition, kind string) condition {
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	return condition{}
}

func (p podView) index() int {
	n, _ := strconv.Atoi(p.Metadata.Labels[indexLabel])
	first, _ := strconv.Atoi(p.Metadata.Labels[firstLabel])
	return first + n
}

// who names a worker for people.
func (p podView) who() string {
	if p.Spec.NodeName == "" {
		return fmt.Sprintf("worker %d", p.index())
	}
	return fmt.Sprintf("worker %d on node %s", p.index(), p.Spec.NodeName)
}

// tolerance is how long the pod may stay on a node that does not answer.
func (p podView) tolerance() time.Duration {
	for _, t := range p.Spec.Tolerations {
		if t.Key == "node.kubernetes.io/unreachable" && t.Seconds != nil {
			return time.Duration(*t.Seconds) * time.Second
		}
	}
	return 5 * time.Minute // what Kubernetes gives pods that say nothing
}

func (p podView) times() (started, ended time.Time) {
	for _, c := range p.Status.Containers {
		switch {
		case c.State.Running != nil:
			started = c.State.Running.Started.Time
		case c.State.Terminated != nil:
			started, ended = c.State.Terminated.Started.Time, c.State.Terminated.Ended.Time
		}
	}
	return started, ended
}

// disruptions are the reasons of the condition DisruptionTarget, by which the
// cluster says that it ended a pod, and why.
var disruptions = map[string]struct {
	reason engine.Reason
	words  string
}{
	"PreemptionByScheduler":  {engine.Preempted, "was preempted by a pod of higher priority"},
	"EvictionByEvictionAPI":  {engine.Preempted, "was evicted, as when a node is drained"},
	"TerminationByKubelet":   {engine.Preempted, "was ended by its node"},
	"DeletionByTaintManager": {engine.NodeFailed, "was on a node that does not respond or is unschedulable"},
	"DeletionByPodGC":        {engine.NodeFailed, "was on a node that no longer exists"},
}

// hopeless are the reasons for waiting that time does not mend; others that have
// to do with the start of a container are given patience.
var hopeless = []string{"InvalidImageName", "ErrImageNeverPull", "RunContainerError", "CreateContainerError"}

// sandboxTime is how long a node may take to make the sandbox of a pod.
const sandboxTime = 2 * time.Minute

// taken says how the pod was ended by other than itself, or cannot start.
func (p podView) taken(now time.Time, patience time.Duration) (engine.Reason, string) {
	if c := find(p.Status.Conditions, "DisruptionTarget"); c.Status == "True" {
		if d, ok := disruptions[c.Reason]; ok {
			return d.reason, joined(p.who()+" "+d.words, c.Message)
		}
		return engine.Preempted, joined(p.who()+" was ended by the cluster: "+c.Reason, c.Message)
	}
	switch p.Status.Reason {
	case "NodeLost", "NodeAffinity", "NodeShutdown", "Shutdown", "Terminated":
		return engine.NodeFailed, joined(p.who()+" was on a node that is lost or shut down", p.Status.Message)
	case "Evicted", "Preempting":
		return engine.Preempted, joined(p.who()+" was evicted", p.Status.Message)
	case "DeadlineExceeded":
		return engine.TimedOut, joined(p.who()+" was active longer than allowed", p.Status.Message)
	case "OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError":
		return engine.NotStarted, joined(p.who()+" was refused by its node", p.Status.Message)
	}
	if m := p.outOfMemory(); m != "" {
		return engine.OutOfMemory, m
	}
	for _, c := range p.containers() {
		if t := c.State.Terminated; t != nil && (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") {
			if died(t.Message) {
				return engine.NodeFailed, joined(p.who()+" was on a node whose containers died", t.Message)
			}
			return engine.NotStarted, joined(p.who()+" could not start", t.Message)
		}
	}
	for _, c := range p.Status.Init {
		if t := c.State.Terminated; t != nil && t.Code > 128 { // by a signal, or with its node
			return engine.Signalled, joined(fmt.Sprintf("%s was killed while it got falaj-worker from its image: exit code %d (%s)", p.who(), t.Code, t.Reason), t.Message)
		}
		if t := c.State.Terminated; t != nil && t.Code != 0 {
			return engine.NotStarted, joined(fmt.Sprintf("%s could not get falaj-worker from its image: exit code %d", p.who(), t.Code), t.Message)
		}
	}
	scheduled := find(p.Status.Conditions, "PodScheduled")
	// The sandbox of a pod comes before the pull of its images, so that one
	// which does not come, or is gone with its node, is the node's fault. A pod
	// that has ended has none either.
	if c := find(p.Status.Conditions, "PodReadyToStartContainers"); p.Status.Phase == "Pending" && c.Status == "False" && scheduled.Status == "True" && now.Sub(c.Since.Time) > sandboxTime {
		return engine.NodeFailed, joined(p.who()+" got no sandbox there", c.Message)
	}
	for _, c := range p.containers() {
		w := c.State.Waiting
		// Without a reason the kubelet, started again, has not looked yet; where it
		// could not sync, it waits for the API server.
		if w == nil || strings.Contains(w.Message, "failed to sync ") || scheduled.Status != "True" || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		if slices.Contains(hopeless, w.Reason) && died(w.Message) {
			return engine.NodeFailed, joined(p.who()+" was on a node whose containers died", w.Message)
		}
		if slices.Contains(hopeless, w.Reason) || now.Sub(scheduled.Since.Time) > patience {
			return engine.NotStarted, joined(fmt.Sprintf("%s could not start image %s: %s", p.who(), c.Image, w.Reason), w.Message)
		}
	}
	return "", ""
}

// died says of a container that did not start whether what starts containers on
// the node was killed meanwhile; else it is the image's fault, or the pool's.
func died(message string) bool {
	for _, words := range []string{"failed to start shim", "signal: killed", "ttrpc: closed", "transport is closing", "connection refused", "error reading from server: EOF", "context canceled"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

func (p podView) containers() []container {
	return append(slices.Clone(p.Status.Init), p.Status.Containers...)
}

func (p podView) outOfMemory() string {
	for _, c := range p.containers() {
		if t := c.State.Terminated; t != nil && t.Reason == "OOMKilled" {
			return p.who() + " used more memory than its limit, and the kernel killed it"
		}
	}
	return ""
}

// exit says how the agent's container ended, where it failed, and whether it was
// killed: by a signal, or with all that ran on its node, which then knows no more.
func (p podView) exit() (words string, killed bool) {
	for _, c := range p.Status.Containers {
		if t := c.State.Terminated; t != nil && t.Code != 0 {
			return joined(fmt.Sprintf("the agent of %s ended with exit code %d (%s)", p.who(), t.Code, t.Reason), t.Message), t.Code > 128
		}
	}
	return "", false
}

// words say why the pod does not run; empty when it does or did.
func (p podView) words() string {
	if p.Status.Phase != "Pending" {
		return ""
	}
	if c := find(p.Status.Conditions, "PodScheduled"); c.Status == "False" {
		return joined("Kubernetes found no suitable node", c.Message)
	}
	for _, c := range p.containers() {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			return joined(fmt.Sprintf("%s cannot start image %s yet: %s", p.who(), c.Image, w.Reason), w.Message)
		}
	}
	if p.Spec.NodeName == "" {
		return "Kubernetes has not scheduled it yet"
	}
	return "its pods are being created"
}

// joined bounds what the cluster says: messages of image pulls run to pages.
func joined(words, said string) string {
	said = strings.Join(strings.Fields(said), " ")
	if said == "" {
		return words
	}
	if len(said) > 600 {
		said = strings.ToValidUTF8(said[:600], "") + "…"
	}
	return words + ": " + said
}
