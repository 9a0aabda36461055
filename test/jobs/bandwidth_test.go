package jobs

import (
	"net/http"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/test/live"
)

// TestMemoryBandwidth: before the machine is measured nobody is limited by it; after that
// two jobs of 60 % of it run one after another, and two of 40 % together.
func TestMemoryBandwidth(t *testing.T) {
	t.Parallel()
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "memory")
	has := func() resource.Bandwidth {
		t.Helper()
		var pool struct{ Capacity resource.Amount }
		p.Must(p.C.Do(t.Context(), http.MethodGet, "/api/v1/pools/home", nil, &pool))
		return pool.Capacity.MemoryBandwidth
	}
	// waits is a job that runs until it is cancelled.
	waits := func(name string, bandwidth resource.Bandwidth) string {
		t.Helper()
		return submit(p, name, map[string]any{
			"command": []string{"/bin/sleep", "100000"}, "pools": []string{"home"}, "grace": "1s",
			"resources": map[string]string{"cpu": "100m", "memory": "32MiB", "memory_bandwidth": bandwidth.String()},
		})
	}
	running := func(job string) {
		t.Helper()
		p.Eventually(job+" does not run", func() (bool, error) { return describe(p, job).State == "running", nil })
	}
	cancel := func(jobs ...string) {
		t.Helper()
		for _, job := range jobs {
			p.Run(0, "job", "cancel", job)
			ended(p, job)
		}
	}

	if n := has(); n != 0 {
		t.Fatalf("%s before it was measured", n)
	}
	free := []string{waits("free-a", 10e12), waits("free-b", 10e12)}
	for _, job := range free {
		running(job)
	}
	cancel(free...)

	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("doctor"), map[string]string{"pool": "home"}, nil))
	p.Must(s.Stop())
	p.Again()
	all := has()
	if all <= 0 || !strings.Contains(p.Run(0, "pool", "describe", "home"), all.String()+" memory bandwidth") {
		t.Fatalf("%s measured:\n%s", all, p.Run(0, "pool", "describe", "home"))
	}
	first := waits("first", all/10*6)
	running(first)
	second := waits("second", all/10*6)
	p.Eventually("nothing says why it waits", func() (bool, error) {
		return strings.Contains(p.Run(0, "job", "why", second), (all/10*6).String()+" memory bandwidth wanted"), nil
	})
	beside := []string{waits("beside", all/10*4)}
	running(beside[0])
	cancel(first)
	running(second)
	cancel(append(beside, second)...)

	both := []string{waits("both-a", all/10*4), waits("both-b", all/10*4)}
	for _, job := range both {
		running(job)
	}
	cancel(both...)
}
