package kube_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
)

// noop is a Job as people write it, with what the namespace demands of pods.
const noop = `apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s}
spec:
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: noop
          image: %q
          imagePullPolicy: Never
          command: [/bin/true]
          resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 64Mi}}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// BenchmarkNoop is a job that does nothing, by Falaj on a real cluster and by
// kubectl, in turn. ours-ms and bare-ms are medians.
func BenchmarkNoop(b *testing.B) {
	cluster, s := up(b)
	busybox := cluster.Import("busybox")
	c := s.Client(b)
	for _, m := range []string{"{api_version: falaj/v1, kind: Project, name: p}", pool("small", busybox)} {
		if _, err := c.Apply(b.Context(), "p", []byte(m), false); err != nil {
			b.Fatal(err)
		}
	}
	ours := func() {
		var job client.Object
		err := c.Do(b.Context(), http.MethodPost, "/api/v1/projects/p/jobs", map[string]any{"name": "noop", "spec": map[string]any{
			"command": []string{"/bin/true"}, "pools": []string{"small"}, "resources": map[string]any{"cpu": "100m", "memory": "64MiB"},
		}}, &job)
		for id := job.Text("id"); err == nil && job.Text("state") != "succeeded"; {
			if state := job.Text("state"); state == "failed" || state == "cancelled" {
				b.Fatal(job)
			}
			err = c.Do(b.Context(), http.MethodGet, "/api/v1/projects/p/jobs/"+id+"?wait=50s", nil, &job)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	n := 0
	bare := func() {
		n++
		name := fmt.Sprintf("bare-%d", n)
		cluster.Apply(fmt.Sprintf(noop, name, kubetest.Namespace, busybox))
		cluster.Kubectl("wait", "--namespace="+kubetest.Namespace, "--for=condition=complete", "--timeout=2m", "job/"+name)
	}
	ours() // both find the image and the node's caches as they are afterwards
	bare()
	var took [2][]float64
	for b.Loop() {
		for i, f := range []func(){ours, bare} {
			began := time.Now()
			f()
			took[i] = append(took[i], float64(time.Since(began).Microseconds())/1000)
		}
	}
	for i, unit := range []string{"ours-ms", "bare-ms"} {
		slices.Sort(took[i])
		b.ReportMetric(took[i][len(took[i])/2], unit)
	}
	b.ReportMetric(0, "ns/op")
}
