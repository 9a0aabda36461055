package kube

import (
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/falaj-ml/falaj/internal/fault"
	ours "github.com/falaj-ml/falaj/internal/resource"
)

// options are what a pool says for Kubernetes.
type options struct {
	image       string // of workloads that name none
	pull        string // imagePullPolicy
	pullSecrets []string
	worker      string // where the image has falaj-worker; empty copies it in from the worker image

	selector    map[string]string // node labels
	tolerations []toleration
	colocate    string // topology key: all workers where it has one value
	priority    string // PriorityClass
	runtime     string // RuntimeClass: gvisor, kata …
	queue       string // Kueue's LocalQueue
	account     string // ServiceAccount; its token is not mounted

	user, group   int64
	shared        bool // the nodes see the server's directories
	shm, scratch  string
	cache         string         // directory of the nodes that stays; empty is the pod's own
	egress        []netip.Prefix // that pods reach beside the server and each other
	dns           bool
	unreachableIn int64 // seconds that a pod stays on a node that does not answer
}

type toleration struct{ key, value, effect string }

// unprivileged is the user of pods whose pool names none.
const unprivileged = 65532

// known says how each option is read; the table of docs/guides/engines-kubernetes.md
// says what it does.
var known = map[string]func(o *options, v string) error{
	"image":              func(o *options, v string) error { o.image = v; return nil },
	"pull":               readPull,
	"image_pull_secrets": func(o *options, v string) (err error) { o.pullSecrets, err = names(v); return err },
	"worker_path":        func(o *options, v string) (err error) { o.worker, err = absolute(v); return err },
	"node_selector":      readSelector,
	"zone":               func(o *options, v string) error { return o.selectLabel("topology.kubernetes.io/zone", v) },
	"region":             func(o *options, v string) error { return o.selectLabel("topology.kubernetes.io/region", v) },
	"instance_type":      func(o *options, v string) error { return o.selectLabel("node.kubernetes.io/instance-type", v) },
	"architecture":       func(o *options, v string) error { return o.selectLabel("kubernetes.io/arch", v) },
	"gpu_product":        func(o *options, v string) error { return o.selectLabel("nvidia.com/gpu.product", v) },
	"tolerations":        readTolerations,
	"colocate":           func(o *options, v string) (err error) { o.colocate, err = labelKey(v); return err },
	"priority_class":     func(o *options, v string) (err error) { o.priority, err = objectName(v); return err },
	"runtime_class":      func(o *options, v string) (err error) { o.runtime, err = objectName(v); return err },
	"queue":              func(o *options, v string) (err error) { o.queue, err = objectName(v); return err },
	"service_account":    func(o *options, v string) (err error) { o.account, err = objectName(v); return err },
	"user":               readUser,
	"shared":             func(o *options, v string) (err error) { o.shared, err = yes(v); return err },
	"shm":                func(o *options, v string) (err error) { o.shm, err = size(v); return err },
	"scratch":            func(o *options, v string) (err error) { o.scratch, err = size(v); return err },
	"egress":             readEgress,
	"dns":                func(o *options, v string) (err error) { o.dns, err = yes(v); return err },
	"unreachable_after":  readUnreachable,
	"node_cache":         func(o *options, v string) (err error) { o.cache, err = absolute(v); return err },
	"node_cache_size":    readCount,
}

// parseOptions reads a pool's options. Error: fault.Invalid.
func parseOptions(in map[string]string) (options, error) {
	o := options{pull: "IfNotPresent", user: unprivileged, group: unprivileged, unreachableIn: 300, selector: map[string]string{}}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		read := known[k]
		if read == nil {
			return o, fault.New(fault.Invalid, "Kubernetes has no option %.80q", k).
				WithHint("Its options are %s.", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := read(&o, in[k]); err != nil {
			return o, fault.Wrap(err, "option %s", k)
		}
	}
	return o, nil
}

func bad(v, want string) error { return fault.New(fault.Invalid, "%.80q is not %s", v, want) }

func list(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
}

func yes(v string) (bool, error) {
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, bad(v, "true or false")
	}
	return b, nil
}

func absolute(v string) (string, error) {
	if !path.IsAbs(v) || path.Clean(v) != v {
		return "", bad(v, "an absolute path")
	}
	return v, nil
}

func objectName(v string) (string, error) {
	if problems := validation.IsDNS1123Subdomain(v); len(problems) > 0 {
		return "", bad(v, "the name of an object")
	}
	return v, nil
}

func names(v string) ([]string, error) {
	for _, n := range list(v) {
		if _, err := objectName(n); err != nil {
			return nil, err
		}
	}
	return list(v), nil
}

func labelKey(v string) (string, error) {
	if problems := validation.IsQualifiedName(v); len(problems) > 0 {
		return "", bad(v, "the key of a label, such as topology.kubernetes.io/zone")
	}
	return v, nil
}

func size(v string) (string, error) {
	if q, err := resource.ParseQuantity(v); err != nil || q.Sign() <= 0 {
		return "", bad(v, "a size, such as 1Gi")
	}
	return v, nil
}

func (o *options) selectLabel(k, v string) error {
	if _, err := labelKey(k); err != nil {
		return err
	}
	if problems := validation.IsValidLabelValue(v); len(problems) > 0 {
		return bad(v, "the value of a label")
	}
	o.selector[k] = v
	return nil
}

func readSelector(o *options, v string) error {
	for _, pair := range list(v) {
		k, value, ok := strings.Cut(pair, "=")
		if !ok {
			return bad(pair, "label=value")
		}
		if err := o.selectLabel(k, value); err != nil {
			return err
		}
	}
	return nil
}

// readTolerations reads "key=value:Effect"; "key:Effect" tolerates every value,
// and "key" every effect.
func readTolerations(o *options, v string) error {
	for _, one := range list(v) {
		rest, effect, _ := strings.Cut(one, ":")
		key, value, _ := strings.Cut(rest, "=")
		if _, err := labelKey(key); err != nil {
			return err
		}
		if len(validation.IsValidLabelValue(value)) > 0 || !slices.Contains([]string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}, effect) {
			return bad(one, "a toleration, such as nvidia.com/gpu=present:NoSchedule")
		}
		o.tolerations = append(o.tolerations, toleration{key, value, effect})
	}
	return nil
}

func readPull(o *options, v string) error {
	policy := map[string]string{"always": "Always", "missing": "IfNotPresent", "never": "Never"}[v]
	if policy == "" {
		return bad(v, "always, missing or never")
	}
	o.pull = policy
	return nil
}

func readUser(o *options, v string) error {
	user, group, both := strings.Cut(v, ":")
	if !both {
		group = user
	}
	for i, id := range []string{user, group} {
		n, err := strconv.ParseInt(id, 10, 32)
		if err != nil || n < 0 || i == 0 && n == 0 {
			return bad(v, "the number of a user that is not root, such as 1000 or 1000:100")
		}
		*[]*int64{&o.user, &o.group}[i] = n
	}
	return nil
}

func readEgress(o *options, v string) error {
	for _, one := range list(v) {
		p, err := netip.ParsePrefix(one)
		if err != nil {
			return bad(one, "a range of addresses, such as 10.1.0.0/16")
		}
		o.egress = append(o.egress, p.Masked())
	}
	return nil
}

func readUnreachable(o *options, v string) error {
	d, err := ours.ParseDuration(v)
	o.unreachableIn = int64(d.Seconds())
	return err
}

// readCount checks what the agent reads for itself.
func readCount(_ *options, v string) error {
	if _, err := strconv.ParseUint(v, 10, 62); err != nil {
		return bad(v, "a number of bytes")
	}
	return nil
}
