// Package images_test runs one job in one OCI image on this machine and on a
// Kubernetes, and in the machine's own Python, on the real binary.
package images_test

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/oci/ocitest"
	"github.com/falaj-ml/falaj/internal/sandbox/sandboxtest"
	"github.com/falaj-ml/falaj/test/live"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// TestImage: the same image, by the digest that its tag was pinned to, gives the
// same losses by runc and on pods as Debian's packages on this machine do.
func TestImage(t *testing.T) {
	kubetest.Need(t)
	sandboxtest.Runc(t)
	cert, key := kubetest.Certificate(t)

	registry := ocitest.New(t)
	c := kubetest.Start(t, kubetest.Options{Pods: true})
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `tls: {cert: %s, key: %s}
engines: {cluster: {kind: kube, kubeconfig: %s, namespace: %s, worker_image: %q}}
images: {registries: [%[6]q], insecure: [%[6]q]}
`, cert, key, c.Falaj(), kubetest.Namespace, c.Worker(s.Bin.Worker), registry.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config, "--http", kubetest.Address + ":0"}
	s.Env = append(s.Env, "SSL_CERT_FILE="+cert)
	s.Up(t)
	x := &site{s.Project(t, "p")}
	x.Apply(`{api_version: falaj/v1, kind: Pool, name: pods, spec: {engine: cluster, mode: delegated}}`)

	ref := push(t, registry, s.Bin.Root)
	x.Apply(fmt.Sprintf(`{api_version: falaj/v1, kind: Environment, project: PROJECT, name: image, spec: {image: "%s/falaj/torch:latest"}}`, registry.Host))
	example := filepath.Join(s.Bin.Root, "examples", "digits-ddp")
	env, err := os.ReadFile(filepath.Join(example, "env.yaml"))
	x.Must(err)
	x.Apply(string(env) + "project: PROJECT\n")
	if said := x.Run(0, "env", "build", "image"); !strings.Contains(said, ref) {
		t.Errorf("the tag is not pinned to %s:\n%s", ref, said)
	}
	if said := x.Run(0, "env", "check", "image"); !regexp.MustCompile(`(?m)^home +yes`).MatchString(said) || !regexp.MustCompile(`(?m)^pods +yes`).MatchString(said) {
		t.Errorf("the image does not fit:\n%s", said)
	}

	want := x.digits(example, "torch", "home")
	if len(want) != 20 || want[19] >= want[0] {
		t.Fatalf("nothing was learnt: %v", want)
	}
	for _, pool := range []string{"home", "pods"} {
		t.Run(pool, func(t *testing.T) {
			p := *x.Project
			p.T = t
			got := (&site{&p}).digits(example, "image", pool)
			if len(got) != len(want) {
				t.Fatalf("%d steps, not %d", len(got), len(want))
			}
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-4 {
					t.Errorf("step %d: loss %v in the image, %v in this machine's Python", i+1, got[i], want[i])
				}
			}
		})
	}
	// What the tag means may change; what was applied does not.
	registry.Push(t, "falaj/torch", ocitest.Image(t, nil, ocitest.Busybox(t)))
	if said := x.Run(0, "env", "show", "image"); !strings.Contains(said, ref) {
		t.Errorf("the environment followed its tag:\n%s", said)
	}
}

type site struct{ *live.Project }

// digits runs the example and gives its losses by step. Its environment and its
// pool are all that differs.
func (x *site) digits(example, environment, pool string) []float64 {
	x.T.Helper()
	job, err := os.ReadFile(filepath.Join(example, "job.yaml"))
	x.Must(err)
	text := strings.NewReplacer(`"120"]`, `"20"]`, "{min: 2, max: 4}", "2", "environment: torch", "environment: "+environment).Replace(string(job)) + "  pools: [" + pool + "]\n"
	file := filepath.Join(x.T.TempDir(), "job.yaml")
	x.Must(os.WriteFile(file, []byte(text), 0o600))
	id := regexp.MustCompile(`job_[0-9A-Z]{26}`).FindString(x.Run(0, "job", "submit", "-f", file, "--source", example, "-o", "json"))
	var o client.Object
	x.Eventually("job "+id+" does not end", func() (bool, error) {
		err := x.C.Do(x.T.Context(), http.MethodGet, x.Path("jobs/"+id+"?wait=20s"), nil, &o)
		return slices.Contains([]string{"failed", "succeeded", "cancelled"}, o.Text("state")), err
	})
	log := x.Run(0, "job", "logs", id)
	if o.Text("state") != "succeeded" {
		x.T.Fatalf("job %s is %s:\n%s\n%s", id, o.Text("state"), x.Run(0, "job", "describe", id), log)
	}
	var losses []float64
	for _, m := range regexp.MustCompile(`step (\d+) loss ([0-9.]+)`).FindAllStringSubmatch(log, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		x.Must(err)
		losses = append(losses, v)
	}
	return losses
}

// push pushes the image of Debian's Python with PyTorch and gives its reference
// by digest.
func push(t *testing.T, registry *ocitest.Registry, root string) string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(root, ".tmp", "images", "torch"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%v %+v", err, m)
	}
	img, err := index.Image(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return registry.Push(t, "falaj/torch", img)
}
