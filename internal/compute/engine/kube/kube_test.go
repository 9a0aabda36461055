package kube

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
	"github.com/falaj-ml/falaj/internal/yamldoc"
)

var rewrite = flag.Bool("rewrite", false, "write testdata")

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: a, context: {cluster: c, user: u, namespace: research}}, {name: b, context: {cluster: c, user: u}}]
current-context: a
`

func open(t *testing.T, change func(*Config)) (*Launcher, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{
		Kubeconfig: file, WorkerImage: "registry.example/falaj-worker@sha256:" + strings.Repeat("a", 64), Installation: "prod",
		Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			if host != "falaj.example" {
				return nil, errors.New("no such host")
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}, nil
		},
	}
	if change != nil {
		change(&c)
	}
	return New(c)
}

func TestNew(t *testing.T) {
	l, err := open(t, nil)
	if err != nil || l.namespace != "research" {
		t.Errorf("%+v %v", l, err)
	}
	if l, err = open(t, func(c *Config) { c.Context = "b" }); err != nil || l.namespace != "default" {
		t.Errorf("%+v %v", l, err)
	}
	for name, change := range map[string]func(*Config){
		"no file":             func(c *Config) { c.Kubeconfig = "/no/such/file" },
		"no such context":     func(c *Config) { c.Context = "z" },
		"no installation":     func(c *Config) { c.Installation = "" },
		"a bad installation":  func(c *Config) { c.Installation = "a b" },
		"an installation, to": func(c *Config) { c.Installation = "a," + launchLabel + "=b" },
	} {
		if _, err := open(t, change); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func gang() remote.Launch {
	return remote.Launch{
		ID: "att_01JABCDEFGHJKMNPQRSTVWXYZ0", Workers: 4,
		Agent: map[string]string{protocol.EnvURL: "https://192.0.2.7:7070/api/v1/projects/p/workloads/w/worker/", protocol.EnvToken: "secret"},
		Spec: engine.Spec{
			Project: "vision", Workers: 4, Grace: 30 * time.Second, Timeout: time.Hour,
			Image:     "registry.example/torch@sha256:" + strings.Repeat("b", 64),
			Resources: resource.Amount{CPU: 1500, Memory: 4 * resource.GiB, Accelerators: map[string]int64{"nvidia.com/gpu": 2, "google.com/tpu": 0}},
		},
	}
}

// TestObjects compares what a launch makes with testdata.
func TestObjects(t *testing.T) {
	everything := gang()
	everything.Workers, everything.Agent[protocol.EnvURL] = 2, "https://falaj.example/api/v1/x/worker/"
	everything.Spec.Image, everything.Spec.Timeout = "", 0
	everything.Spec.Nodes = []string{"n2", "n1"}
	everything.Spec.Mounts = []engine.Mount{{Path: "/data/in"}, {Path: "/data/out", Writable: true}}
	everything.Spec.Network.Allow = []string{"198.51.100.4:443", "[2001:db8::1]:8443"}
	everything.Spec.Options = map[string]string{
		"image": "registry.example/base:1", "pull": "always", "image_pull_secrets": "a, b", "node_selector": "disk=fast,team=vision",
		"zone": "ae-1a", "region": "ae-1", "instance_type": "p5.48xlarge", "architecture": "amd64", "gpu_product": "NVIDIA-H100-80GB-HBM3",
		"tolerations": "nvidia.com/gpu=present:NoSchedule, dedicated", "colocate": "topology.kubernetes.io/zone",
		"priority_class": "research", "runtime_class": "gvisor", "queue": "lq", "service_account": "jobs", "user": "1000:100",
		"shared": "true", "shm": "1Gi", "scratch": "20Gi", "egress": "10.1.2.3/16", "unreachable_after": "90s",
		"node_cache": "/var/cache/falaj", "node_cache_size": "1000000",
	}
	roles := gang()
	roles.Workers, roles.Spec.Workers, roles.Spec.Nodes = 3, 3, []string{"gpu-0", "cpu-0", "cpu-1"}
	roles.Spec.Roles = []engine.Role{{Name: "chief", Workers: 1, Resources: roles.Spec.Resources}, {Name: "ps", Workers: 2, Resources: resource.Amount{CPU: 500, Memory: resource.GiB}}}
	for name, launch := range map[string]remote.Launch{"gang": gang(), "roles": roles, "everything": everything} {
		l, err := open(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		gang, err := l.jobs(launch)
		if err != nil {
			t.Fatal(err)
		}
		policy, err := l.policy(t.Context(), launch)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for _, o := range slices.Concat([]*unstructured.Unstructured{policy}, gang, []*unstructured.Unstructured{l.service(launch), l.secret(launch)}) {
			j, err := json.MarshalIndent(o.Object, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(append(got, j...), '\n')
		}
		file := filepath.Join("testdata", name+".json")
		if *rewrite {
			if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
		if n := strings.Count(string(got), "secret\""); name == "gang" && n != 1 {
			t.Errorf("the token is in %d places", n)
		}
	}
}

// TestRefused: what cannot be said to Kubernetes is refused with what to do.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(*remote.Launch, *Config){
		"an ID that is no name":   func(l *remote.Launch, _ *Config) { l.ID = "../x" },
		"no image":                func(l *remote.Launch, _ *Config) { l.Spec.Image = "" },
		"no worker":               func(_ *remote.Launch, c *Config) { c.WorkerImage = "" },
		"an unknown option":       func(l *remote.Launch, _ *Config) { l.Spec.Options = map[string]string{"partition": "a"} },
		"a name to be allowed":    func(l *remote.Launch, _ *Config) { l.Spec.Network.Allow = []string{"pypi.org:443"} },
		"an accelerator of sorts": func(l *remote.Launch, _ *Config) { l.Spec.Resources.Accelerators = map[string]int64{"a b": 1} },
		"a server without a URL":  func(l *remote.Launch, _ *Config) { l.Agent = nil },
		"a server of no port":     func(l *remote.Launch, _ *Config) { l.Agent[protocol.EnvURL] = "ftp://192.0.2.1/" },
	} {
		launch := gang()
		l, err := open(t, func(c *Config) { change(&launch, c) })
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Start(t.Context(), launch); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	launch := gang()
	launch.Agent[protocol.EnvURL] = "https://nowhere.example/"
	l, err := open(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Start(t.Context(), launch); !fault.Is(err, fault.Unavailable) || fault.HintOf(err) == "" {
		t.Errorf("an unknown server: %v", err)
	}
	launch = gang()
	if err := l.Start(t.Context(), launch); !fault.Is(err, fault.Unavailable) { // port 1
		t.Errorf("an API server that is not there: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for k, vs := range map[string][]string{
		"pull": {"Always", ""}, "image_pull_secrets": {"A"}, "worker_path": {"x", "/a/../b"}, "node_selector": {"a", "a=b c", "a b=c", "-=x"},
		"zone": {"a b"}, "tolerations": {"a=b:Sometimes", "=b"}, "colocate": {"a b"}, "queue": {"Q"}, "user": {"0", "root", "1:-1", "-1", "4294967296"},
		"shared": {"maybe"}, "shm": {"0", "-1Gi", "big"}, "egress": {"10.0.0.1", "example.com"}, "unreachable_after": {"soon"}, "node_cache": {"a"}, "node_cache_size": {"-1"},
		"nodeselector": {"a=b"},
	} {
		for _, v := range vs {
			if _, err := parseOptions(map[string]string{k: v}); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %q: %v", k, v, err)
			}
		}
	}
}

func FuzzOptions(f *testing.F) {
	f.Add("node_selector", "a=b,c=d")
	f.Add("tolerations", "nvidia.com/gpu=present:NoSchedule, dedicated")
	f.Add("user", "1000:100")
	f.Add("egress", "10.1.0.0/16,2001:db8::/32")
	f.Fuzz(func(t *testing.T, k, v string) {
		launch := gang()
		launch.Spec.Options = map[string]string{k: v}
		o, err := parseOptions(launch.Spec.Options)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		l := &Launcher{c: Config{WorkerImage: "w", Installation: "i"}, namespace: "n"}
		gang, err := l.jobs(launch)
		if err != nil {
			t.Fatalf("%q: %q was taken, and then: %v", k, v, err)
		}
		if o.user == 0 {
			t.Fatal("root")
		}
		gang[0].DeepCopy() // panics on what JSON does not have
	})
}

// TestObserved reads testdata/observed.yaml: what is there of a launch, and what
// that means.
func TestObserved(t *testing.T) {
	b, err := os.ReadFile("testdata/observed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(b), "\n---\n") {
		nodes, err := yamldoc.Documents([]byte(doc))
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%d documents, %v", len(nodes), err)
		}
		v, err := yamldoc.Value(nodes[0])
		if err != nil {
			t.Fatal(err)
		}
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Case    string
			Job     *jobView
			Jobs    []jobView // of roles
			Pods    []podView
			State   engine.State
			Reason  engine.Reason
			Message string
			Words   []string
			Nodes   []string
			Silent  map[string]time.Time
		}
		if err := json.Unmarshal(j, &c); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		now := time.Date(2026, 11, 21, 12, 10, 0, 0, time.UTC)
		if c.Job != nil {
			c.Jobs = []jobView{*c.Job}
		}
		o := scene{jobs: c.Jobs, pods: c.Pods, silent: c.Silent, now: now, patience: 2 * time.Minute}.observed()
		want := remote.Observed{State: c.State, Reason: c.Reason, Message: c.Message, Words: c.Words, Nodes: c.Nodes}
		o.Started, o.Ended = time.Time{}, time.Time{}
		if d := cmp.Diff(want, o); d != "" {
			t.Errorf("%s:\n%s", c.Case, d)
		}
	}
}
