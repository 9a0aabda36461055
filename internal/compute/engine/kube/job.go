package kube

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

type (
	object = map[string]any
	array  = []any
)

// Where pods have what is theirs. The root file system is read-only.
const (
	workerDir  = "/falaj/bin"
	workerFile = workerDir + "/falaj-worker"
	agentDir   = "/falaj/work"
	cacheDir   = "/falaj/cache"
)

// endLag is what a pod may take beyond the workload's own limits before
// Kubernetes ends it: the agent ends it in time, and then sends what is left.
const endLag = 10 * time.Minute

// endGrace is what an agent may take after its worker's own grace, to bring back
// what the worker left.
const endGrace = time.Minute

// of makes an object of a launch.
func (l *Launcher) of(launch remote.Launch, version, kind string, spec object) *unstructured.Unstructured {
	spec["apiVersion"], spec["kind"] = version, kind
	spec["metadata"] = object{
		"name": name(launch.ID), "namespace": l.namespace,
		"labels":      l.labels(launch.ID),
		"annotations": annotations(launch.Spec),
	}
	return &unstructured.Unstructured{Object: spec}
}

// annotations say whose launch it is, for people who list pods.
func annotations(s engine.Spec) object {
	a := object{projectAnnotation: s.Project}
	if s.Name != "" {
		a[nameAnnotation] = s.Name
	}
	if s.User != "" {
		a[userAnnotation] = s.User
	}
	return a
}

func (l *Launcher) labels(id string) object {
	return object{managedBy: "falaj", installationLabel: l.c.Installation, launchLabel: id}
}

// jobs are the Indexed Jobs of a launch, one for each role: one pod per worker, which
// is never started again. A failed pod fails its Job, which ends the others of it;
// those of other roles are told by the server.
func (l *Launcher) jobs(launch remote.Launch) ([]*unstructured.Unstructured, error) {
	o, err := parseOptions(launch.Spec.Options)
	if err != nil {
		return nil, err
	}
	parts, first := launch.Spec.Parts(), 0
	if o.queue != "" && len(parts) > 1 {
		return nil, fault.New(fault.Unsupported, "Kueue would admit each role of the gang separately, and the pool leaves admission to Kueue").
			WithHint("Run the job in a pool without the option queue.")
	}
	if len(launch.Spec.Roles) == 0 {
		parts = []engine.Role{{Workers: launch.Workers, Resources: launch.Spec.Resources}}
	}
	var all []*unstructured.Unstructured
	for n, part := range parts {
		job, err := l.job(launch, o, part, first)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			job.SetName(job.GetName() + "-r" + strconv.Itoa(n))
		}
		all, first = append(all, job), first+part.Workers
	}
	return all, nil
}

// job is that of one role, of which the first worker has a number.
func (l *Launcher) job(launch remote.Launch, o options, part engine.Role, first int) (*unstructured.Unstructured, error) {
	pod, err := l.pod(launch, o, part, first)
	if err != nil {
		return nil, err
	}
	labels := l.labels(launch.ID)
	if first > 0 {
		labels[firstLabel] = strconv.Itoa(first)
	}
	job := l.of(launch, "batch/v1", "Job", object{"spec": object{
		"completionMode": "Indexed", "completions": int64(part.Workers), "parallelism": int64(part.Workers),
		"backoffLimit": int64(0), "podReplacementPolicy": "Failed",
		"podFailurePolicy": object{"rules": array{
			object{"action": "FailJob", "onPodConditions": array{object{"type": "DisruptionTarget", "status": "True"}}},
			object{"action": "FailJob", "onExitCodes": object{"operator": "NotIn", "values": array{int64(0)}}},
		}},
		"suspend": o.queue != "",
		"template": object{
			"metadata": object{"labels": labels, "annotations": annotations(launch.Spec)},
			"spec":     pod,
		},
	}})
	if o.queue != "" {
		labels := job.GetLabels()
		labels["kueue.x-k8s.io/queue-name"] = o.queue
		job.SetLabels(labels)
	}
	return job, nil
}

func (l *Launcher) pod(launch remote.Launch, o options, part engine.Role, first int) (object, error) {
	spec, amount := launch.Spec, part.Resources
	image := spec.Image
	if image == "" {
		image = o.image
	}
	if image == "" {
		return nil, fault.New(fault.Invalid, "the workload has no image").
			WithHint("Give its environment an image, or the pool the option image.")
	}
	if l.c.WorkerImage == "" && o.worker == "" {
		return nil, fault.New(fault.Invalid, "the place of falaj-worker in pods is not set").
			WithHint("Set worker_image in the engine's configuration, or set the option worker_path to its path in the images.")
	}
	limits, err := resources(amount)
	if err != nil {
		return nil, err
	}
	// A pod that keeps more is evicted by its kubelet. Inputs, packages and the log count too.
	if disk := spec.Disk.Scratch + spec.Disk.Output + spec.Disk.Checkpoints; disk > 0 {
		limits["ephemeral-storage"] = strconv.FormatInt(int64(disk), 10)
	}

	volumes := array{empty("tmp", o.scratch, ""), empty("work", o.scratch, ""), empty("cache", o.scratch, "")}
	if o.cache != "" {
		volumes[2] = object{"name": "cache", "hostPath": object{"path": o.cache, "type": "Directory"}}
	}
	mounts := array{mount("tmp", "/tmp"), mount("work", agentDir), mount("cache", cacheDir)}
	if o.shm != "" {
		volumes, mounts = append(volumes, empty("shm", o.shm, "Memory")), append(mounts, mount("shm", "/dev/shm"))
	}
	if o.shared {
		for i, m := range spec.Mounts {
			at := "shared-" + strconv.Itoa(i)
			volumes = append(volumes, object{"name": at, "hostPath": object{"path": m.Path}})
			mounts = append(mounts, object{"name": at, "mountPath": m.Path, "readOnly": !m.Writable})
		}
	}
	closed := object{
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": array{"ALL"}},
	}
	pod := object{
		"restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
		"subdomain":                     name(launch.ID), // with the Service: stable names for those who want them
		"terminationGracePeriodSeconds": seconds(spec.Grace + endGrace),
		"securityContext": object{
			"runAsNonRoot": true, "runAsUser": o.user, "runAsGroup": o.group, "fsGroup": o.group,
			"fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": object{"type": "RuntimeDefault"},
		},
		"tolerations": tolerations(o),
	}
	worker := o.worker
	if worker == "" {
		worker = workerFile
		volumes = append(volumes, empty("bin", "", ""))
		pod["initContainers"] = array{object{
			"name": "worker", "image": l.c.WorkerImage, "imagePullPolicy": o.pull, "securityContext": closed,
			"command": array{"/falaj-worker", "install", workerFile}, "volumeMounts": array{mount("bin", workerDir)},
			"resources": object{"limits": limits, "requests": limits},
		}}
		mounts = append(mounts, object{"name": "bin", "mountPath": workerDir, "readOnly": true})
	}
	pod["volumes"] = volumes
	var counted array
	if first > 0 {
		counted = array{object{"name": protocol.EnvFirst, "value": strconv.Itoa(first)}}
	}
	pod["containers"] = array{object{
		"name": "agent", "image": image, "imagePullPolicy": o.pull, "command": array{worker, "agent"},
		"env": append(array{
			field(protocol.EnvIndex, "metadata.labels['"+indexLabel+"']"),
			field(protocol.EnvNode, "spec.nodeName"), field(protocol.EnvAddr, "status.podIP"),
			// Below the volumes, which belong to root: the agent wants its own.
			object{"name": protocol.EnvDir, "value": agentDir + "/agent"},
			object{"name": protocol.EnvCache, "value": cacheDir + "/" + strconv.FormatInt(o.user, 10)},
			object{"name": "TMPDIR", "value": "/tmp"},
		}, counted...),
		"envFrom":         array{object{"secretRef": object{"name": name(launch.ID)}}},
		"securityContext": closed, "volumeMounts": mounts, "terminationMessagePolicy": "FallbackToLogsOnError",
		"resources": object{"limits": limits, "requests": limits},
	}}
	if spec.Timeout > 0 {
		pod["activeDeadlineSeconds"] = seconds(spec.Timeout + spec.Grace + endLag)
	}
	if len(o.pullSecrets) > 0 {
		var refs array
		for _, n := range o.pullSecrets {
			refs = append(refs, object{"name": n})
		}
		pod["imagePullSecrets"] = refs
	}
	for k, v := range map[string]string{"priorityClassName": o.priority, "runtimeClassName": o.runtime, "serviceAccountName": o.account} {
		if v != "" {
			pod[k] = v
		}
	}
	if len(o.selector) > 0 {
		selector := object{}
		for k, v := range o.selector {
			selector[k] = v
		}
		pod["nodeSelector"] = selector
	}
	if a := affinity(launch, o, part, first); len(a) > 0 {
		pod["affinity"] = a
	}
	return pod, nil
}

// affinity keeps the workers together where the pool wants it, and those of a role on
// the nodes that Falaj picked for them where it picks.
func affinity(launch remote.Launch, o options, part engine.Role, first int) object {
	a := object{}
	if o.colocate != "" && launch.Workers > 1 {
		a["podAffinity"] = object{"requiredDuringSchedulingIgnoredDuringExecution": array{object{
			"topologyKey":   o.colocate,
			"labelSelector": object{"matchLabels": object{launchLabel: launch.ID}},
		}}}
	}
	nodes := launch.Spec.Nodes
	if len(nodes) == launch.Workers {
		nodes = nodes[first : first+part.Workers]
	}
	if picked := slices.Compact(slices.Sorted(slices.Values(nodes))); len(picked) > 0 {
		var values array
		for _, n := range picked {
			values = append(values, n)
		}
		a["nodeAffinity"] = object{"requiredDuringSchedulingIgnoredDuringExecution": object{"nodeSelectorTerms": array{
			object{"matchFields": array{object{"key": "metadata.name", "operator": "In", "values": values}}},
		}}}
	}
	return a
}

func tolerations(o options) array {
	all := array{
		object{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": o.unreachableIn},
		object{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": o.unreachableIn},
	}
	for _, t := range o.tolerations {
		one := object{"key": t.key, "operator": "Exists"}
		if t.value != "" {
			one["operator"], one["value"] = "Equal", t.value
		}
		if t.effect != "" {
			one["effect"] = t.effect
		}
		all = append(all, one)
	}
	return all
}

// resources are the limits of a pod, and its requests: what a worker was given
// is neither lent nor overdrawn.
func resources(a resource.Amount) (object, error) {
	limits := object{}
	if cpu := int64(a.CPU); cpu > 0 {
		limits["cpu"] = strconv.FormatInt(cpu, 10) + "m"
	}
	if memory := int64(a.Memory); memory > 0 {
		limits["memory"] = strconv.FormatInt(memory, 10)
	}
	for _, n := range slices.Sorted(maps.Keys(a.Accelerators)) {
		if len(validation.IsQualifiedName(n)) > 0 {
			return nil, fault.New(fault.Invalid, "accelerator %.80q is not the name of a resource on Kubernetes, such as nvidia.com/gpu", n)
		}
		if count := a.Accelerators[n]; count > 0 {
			limits[n] = strconv.FormatInt(count, 10)
		}
	}
	return limits, nil
}

// service gives the workers names, NAME-INDEX.NAME.NAMESPACE.svc, also before
// they are ready.
func (l *Launcher) service(launch remote.Launch) *unstructured.Unstructured {
	return l.of(launch, "v1", "Service", object{"spec": object{
		"clusterIP": "None", "publishNotReadyAddresses": true, "selector": object{launchLabel: launch.ID},
	}})
}

// secret is the agent's environment; the token is nowhere else.
func (l *Launcher) secret(launch remote.Launch) *unstructured.Unstructured {
	data := object{}
	for k, v := range launch.Agent {
		data[k] = v
	}
	return l.of(launch, "v1", "Secret", object{"type": "Opaque", "immutable": true, "stringData": data})
}

func empty(name, limit, medium string) object {
	dir := object{}
	if limit != "" {
		dir["sizeLimit"] = limit
	}
	if medium != "" {
		dir["medium"] = medium
	}
	return object{"name": name, "emptyDir": dir}
}

func mount(name, at string) object { return object{"name": name, "mountPath": at} }

func field(name, path string) object {
	return object{"name": name, "valueFrom": object{"fieldRef": object{"fieldPath": path}}}
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
