// Package chaos kills with SIGKILL whatever has a part in running jobs: workers,
// their agents and shims, the server, nodes, slurmd, slurmctld, kubelet, the API
// server, raylets, Ray's supervisors of jobs; while jobs of one worker and of
// several run on the local engine, on a real Slurm, a real Kubernetes and a real
// Ray. Then every job has to have ended as it would have undisturbed, no worker
// may ever have run twice, and nothing may be left.
//
//	go test ./test/engines/chaos -v -args -kills=50 -seed=7 -engines=local,slurm,kube,ray
//
// The seed fixes the jobs, and what is killed when, not how the machine
// interleaves them.
//
//   - chaos_test.go: the run.
//   - jobs_test.go: the jobs, and what must become of them.
//   - kills_test.go: what is killed, and comes back.
//   - witness_test.go: sees in /proc which workers run at the same time.
package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
	"github.com/falaj-ml/falaj/internal/compute/engine/ray/raytest"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/test/live"
)

var (
	kills   = flag.Int("kills", 12, "how often something is killed")
	seed    = flag.Uint64("seed", 0, "seed of the jobs and the kills; 0 takes one from the clock")
	engines = flag.String("engines", "local,slurm", "where jobs run: local, slurm, kube, ray")
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// world is a Falaj with its engines, and what is known of the jobs.
type world struct {
	*live.Project
	r       *rand.Rand
	pools   []string
	slurm   *slurmtest.Cluster
	kube    *kubetest.Cluster
	ray     *raytest.Cluster
	witness *witness
	jobs    []*job
	open    int // the first job that may not have ended
	deck    []string
	outages []outage
	counts  map[string]int
}

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real engines")
	}
	kubetest.NeedNamespaces(t)
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d kills on %s", *seed, *kills, *engines)
	w := newWorld(t)
	begun := time.Now()
	for range *kills {
		w.fill()
		w.pause(time.Duration(w.r.IntN(2500)) * time.Millisecond)
		w.strike()
		w.restore(false)
	}
	w.fill()
	w.restore(true)
	t.Logf("%d kills in %s: %v", *kills, time.Since(begun).Round(time.Second), w.counts)
	w.finish()
	w.verify()
	w.nothingLeft()
	w.audit()
	t.Logf("over after %s", time.Since(begun).Round(time.Second))
}

// newWorld starts the engines, and a Falaj at an address that all of them reach.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{r: rand.New(rand.NewPCG(*seed, 0)), counts: map[string]int{}}
	on := strings.Split(*engines, ",")
	cert, key := kubetest.Certificate(t)

	bin := live.Build(t)
	var config, manifests []string
	if slices.Contains(on, "local") {
		w.pools = append(w.pools, "home")
	}
	if slices.Contains(on, "slurm") {
		w.slurm = slurmtest.New(t, slurmtest.Options{})
		w.pools = append(w.pools, "hpc")
		config = append(config, fmt.Sprintf("hpc: {kind: slurm, conf: %s, users: {p: daemon}, worker: %s, lease: 20s}", w.slurm.Conf, w.slurm.Worker(t, bin.Worker)))
		manifests = append(manifests, `{api_version: falaj/v1, kind: Pool, name: hpc, spec: {engine: hpc, mode: delegated, options: {partition: batch}}}`)
	}
	if slices.Contains(on, "kube") {
		w.kube = kubetest.Start(t, kubetest.Options{Pods: true})
		worker, busybox := w.kube.Worker(bin.Worker), w.kube.Import("busybox")
		w.pools = append(w.pools, "cluster")
		config = append(config, fmt.Sprintf("cluster: {kind: kube, kubeconfig: %s, namespace: %s, worker_image: %q, lease: 20s}", w.kube.Falaj(), kubetest.Namespace, worker))
		manifests = append(manifests, fmt.Sprintf(`{api_version: falaj/v1, kind: Pool, name: cluster, spec: {engine: cluster, mode: delegated, options: {image: %q, pull: never}}}`, busybox))
	}
	if slices.Contains(on, "ray") {
		w.ray = raytest.New(t, rayNodes...)
		w.pools = append(w.pools, "ray")
		config = append(config, fmt.Sprintf("ray: {kind: ray, address: %s, token_file: %s, lease: 20s}", w.ray.Address, w.ray.TokenFile))
		manifests = append(manifests, `{api_version: falaj/v1, kind: Pool, name: ray, spec: {engine: ray, mode: delegated}}`)
	}

	s := live.New(t, "")
	s.Mark = mark
	file := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "tls: {cert: %s, key: %s}\nengines: {%s}\n", cert, key, strings.Join(config, ", ")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", file, "--http", kubetest.FreeAddress(t)} // the nodes know this address
	s.Env = append(s.Env, "SSL_CERT_FILE="+cert)
	s.Up(t)
	w.Project = s.Project(t, "p")
	for _, m := range manifests {
		w.Apply(m)
	}
	w.witness = watch(t)
	return w
}

// pause lets things go on.
func (w *world) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.T.Context().Done():
	}
}
