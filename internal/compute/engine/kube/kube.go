// Package kube launches workloads on Kubernetes: a remote.Launcher over the
// dynamic client, so that no type of Kubernetes leaves this package.
//
//   - kube.go: Config, Launcher: start, stop, list, forget.
//   - options.go: what a pool says for it.
//   - job.go, policy.go: the objects of a launch.
//   - observe.go: what the cluster says of launches, in words.
//   - inventory.go: its nodes.
//
// A launch is a NetworkPolicy, made before anything that it fences and removed
// when all of it is gone, an Indexed Job whose pods run the agent once per
// worker, one for each role of a gang that has some, and what the first Job owns: a
// headless Service and a Secret. The objects'
// name is the launch's: starting twice makes one. Kubernetes never tries again
// by itself; a new attempt is Falaj's to make.
package kube

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
)

// Config says which cluster, and where in it.
type Config struct {
	Kubeconfig string // file; empty is the one that a pod is given by its cluster
	Context    string // of the file; empty is its current one
	Namespace  string // empty is the context's
	// WorkerImage has the static falaj-worker at /falaj-worker. Pods copy it
	// from there, so that every image can run it.
	WorkerImage string
	// Installation tells the launches of this Falaj from those of another in the
	// same namespace.
	Installation string
	// Resolve finds the addresses of the server when its URL has a name; nil asks
	// the resolver of this machine.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Patience is how long an image may fail to be pulled before the launch
	// counts as not started; 0 is two minutes.
	Patience time.Duration
	Now      func() time.Time // nil is time.Now
	Log      *slog.Logger
}

// Launcher starts Indexed Jobs. Safe for concurrent use.
type Launcher struct {
	c         Config
	client    dynamic.Interface
	namespace string
}

// What a call to the API server may take, and how many there may be at once: a
// thousand launches must not starve the cluster's other users.
const (
	callTimeout = 30 * time.Second
	callsPerSec = 50
	callsBurst  = 100
)

// Labels and annotations of what is ours. LaunchLabel is the launch's ID.
const (
	managedBy         = "app.kubernetes.io/managed-by"
	installationLabel = "falaj.dev/installation"
	launchLabel       = "falaj.dev/launch"
	projectAnnotation = "falaj.dev/project"
	nameAnnotation    = "falaj.dev/job"
	userAnnotation    = "falaj.dev/user"
	indexLabel        = "batch.kubernetes.io/job-completion-index"
	firstLabel        = "falaj.dev/first-worker" // of a pod's Job, where that is not 0
)

var (
	jobs     = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	pods     = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	secrets  = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	services = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	nodes    = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	events   = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	policies = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}
)

var (
	launchID     = regexp.MustCompile(`^[a-z]{1,8}_[0-9A-Za-z]{1,40}$`)
	installation = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z_.-]{0,61}[0-9A-Za-z])?$`)
)

// New opens a cluster; it does not call it. Error: fault.Invalid.
func New(c Config) (*Launcher, error) {
	if !installation.MatchString(c.Installation) {
		return nil, fault.New(fault.Invalid, "the installation %q cannot be a label of Kubernetes", c.Installation)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
	config, err := file.ClientConfig()
	if err != nil {
		return nil, fault.New(fault.Invalid, "the Kubernetes cluster of the configuration: %w", err).
			WithHint("Set kubeconfig to a file that works with kubectl, and context to one of its contexts.")
	}
	namespace := c.Namespace
	if namespace == "" {
		if namespace, _, err = file.Namespace(); err != nil {
			return nil, fault.New(fault.Invalid, "the namespace of the Kubernetes configuration: %w", err)
		}
	}
	config.QPS, config.Burst, config.Timeout = callsPerSec, callsBurst, callTimeout
	config.UserAgent = "falaj"
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the Kubernetes cluster of the configuration: %w", err)
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Patience == 0 {
		c.Patience = 2 * time.Minute
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Launcher{c: c, client: client, namespace: namespace}, nil
}

// Check says what is wrong with the options of a pool. Error: fault.Invalid.
func (l *Launcher) Check(options map[string]string) error {
	_, err := parseOptions(options)
	return err
}

// name of a launch's objects: IDs are a prefix, an underscore and a ULID, so the
// names of two differ.
func name(id string) string { return strings.ToLower(strings.ReplaceAll(id, "_", "-")) }

// Start makes the launch's objects, or those that are not there yet.
func (l *Launcher) Start(ctx context.Context, launch remote.Launch) error {
	if !launchID.MatchString(launch.ID) {
		return fault.New(fault.Invalid, "%q cannot name a Job of Kubernetes", launch.ID)
	}
	gang, err := l.jobs(launch)
	if err != nil {
		return err
	}
	policy, err := l.policy(ctx, launch)
	if err != nil {
		return err
	}
	if _, err := l.create(ctx, policies, policy); err != nil {
		return err
	}
	var made *unstructured.Unstructured // the last is the first
	for _, job := range slices.Backward(gang) {
		if made, err = l.create(ctx, jobs, job); err != nil {
			return l.abandon(ctx, launch.ID, err)
		}
	}
	if made.GetLabels()[installationLabel] != l.c.Installation {
		return fault.New(fault.Conflict, "the Job %s in %s belongs to another owner", made.GetName(), l.namespace).
			WithHint("Give this Falaj a namespace of its own.")
	}
	owner := []meta.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: made.GetName(), UID: made.GetUID()}}
	service, secret := l.service(launch), l.secret(launch)
	service.SetOwnerReferences(owner)
	secret.SetOwnerReferences(owner)
	if _, err := l.create(ctx, services, service); err != nil {
		return l.abandon(ctx, launch.ID, err)
	}
	if _, err := l.create(ctx, secrets, secret); err != nil {
		return l.abandon(ctx, launch.ID, err)
	}
	return nil
}

// create makes an object, or reads the one of its name that is there.
func (l *Launcher) create(ctx context.Context, kind schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made, err := l.client.Resource(kind).Namespace(l.namespace).Create(ctx, o, meta.CreateOptions{FieldValidation: "Strict"})
	for range 10 {
		// An API server that has just started does not know all roles yet.
		if !kerrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot create resource") {
			break
		}
		select {
		case <-ctx.Done():
			return nil, translate(ctx.Err(), "creating the %s %s", o.GetKind(), o.GetName())
		case <-time.After(time.Second):
		}
		made, err = l.client.Resource(kind).Namespace(l.namespace).Create(ctx, o, meta.CreateOptions{FieldValidation: "Strict"})
	}
	if kerrors.IsAlreadyExists(err) {
		made, err = l.client.Resource(kind).Namespace(l.namespace).Get(ctx, o.GetName(), meta.GetOptions{})
	}
	return made, translate(err, "creating the %s %s", o.GetKind(), o.GetName())
}

// abandon removes what was made of a launch that a repetition would not help.
func (l *Launcher) abandon(ctx context.Context, id string, err error) error {
	if fault.Is(err, fault.Unavailable) {
		return err
	}
	return errors.Join(err, l.Forget(ctx, id))
}

// Stop deletes the Jobs and their pods; the NetworkPolicy stays until Forget.
func (l *Launcher) Stop(ctx context.Context, id string, grace time.Duration) error {
	if err := l.deleteJobs(ctx, id); err != nil {
		return err
	}
	return l.deletePods(ctx, id, grace)
}

// deleteJobs deletes those of all roles.
func (l *Launcher) deleteJobs(ctx context.Context, id string) error {
	all, err := l.list(ctx, jobs, l.namespace, meta.ListOptions{LabelSelector: launchLabel + "=" + id + "," + installationLabel + "=" + l.c.Installation})
	if err != nil {
		return translate(err, "listing the Jobs of %s", id)
	}
	background := meta.DeletePropagationBackground
	for i := range all {
		err := l.client.Resource(jobs).Namespace(l.namespace).Delete(ctx, all[i].GetName(), meta.DeleteOptions{PropagationPolicy: &background})
		if err != nil && !kerrors.IsNotFound(err) {
			return translate(err, "deleting the Job %s", all[i].GetName())
		}
	}
	return nil
}

func (l *Launcher) deletePods(ctx context.Context, id string, grace time.Duration) error {
	// With no grace at all the API forgets a pod before its node has ended it.
	seconds := max(1, int64((grace+time.Second-1)/time.Second))
	err := l.client.Resource(pods).Namespace(l.namespace).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &seconds},
		meta.ListOptions{LabelSelector: launchLabel + "=" + id + "," + installationLabel + "=" + l.c.Installation})
	return translate(err, "deleting the pods of %s", id)
}

// List gives the launches of this Falaj of which anything is there.
func (l *Launcher) List(ctx context.Context) ([]string, error) {
	var ids []string
	for _, kind := range []schema.GroupVersionResource{jobs, policies} {
		list, err := l.list(ctx, kind, l.namespace, meta.ListOptions{LabelSelector: installationLabel + "=" + l.c.Installation})
		if err != nil {
			return nil, translate(err, "listing %s", kind.Resource)
		}
		for i := range list {
			if id := list[i].GetLabels()[launchLabel]; id != "" {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Forget deletes all objects of the launch.
func (l *Launcher) Forget(ctx context.Context, id string) error {
	if err := l.deleteJobs(ctx, id); err != nil {
		return err
	}
	background := meta.DeletePropagationBackground
	for _, kind := range []schema.GroupVersionResource{secrets, services, policies} {
		err := l.client.Resource(kind).Namespace(l.namespace).Delete(ctx, name(id), meta.DeleteOptions{PropagationPolicy: &background})
		if err != nil && !kerrors.IsNotFound(err) {
			return translate(err, "deleting the %s of %s", kind.Resource, id)
		}
	}
	// The cluster deletes them with their Job, but for those that its controllers
	// lost sight of while they were cut off.
	return l.deletePods(ctx, id, 0)
}

// list reads all pages.
func (l *Launcher) list(ctx context.Context, kind schema.GroupVersionResource, namespace string, o meta.ListOptions) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for o.Limit = 500; ; {
		page, err := l.client.Resource(kind).Namespace(namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return all, nil
		}
	}
}

// translate gives an error of the API server its kind; nil stays nil.
func translate(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	kind, hint := fault.Unavailable, "Falaj retries. Check the cluster's API server."
	switch {
	case kerrors.IsNotFound(err):
		kind, hint = fault.NotFound, "Check that the namespace of the engine's configuration exists."
	case kerrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
		kind, hint = fault.Exhausted, "A ResourceQuota of the namespace is exhausted."
	case kerrors.IsForbidden(err):
		kind, hint = fault.PermissionDenied, "Give Falaj's service account the role of deploy/kubernetes/rbac.yaml."
	case kerrors.IsUnauthorized(err):
		kind, hint = fault.PermissionDenied, "The cluster rejects the credentials of the kubeconfig. Renew them."
	case kerrors.IsInvalid(err), kerrors.IsBadRequest(err), kerrors.IsRequestEntityTooLargeError(err):
		kind, hint = fault.Invalid, "Check the options of the pool."
	case kerrors.IsConflict(err), kerrors.IsAlreadyExists(err):
		kind, hint = fault.Conflict, ""
	}
	return fault.Wrap(fault.New(kind, "Kubernetes: %w", err).WithHint("%s", hint), doing, args...)
}

var _ remote.Launcher = (*Launcher)(nil)
