//go:build proof

package gpu

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/machine/nvml"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/test/live"
)

//go:embed load.py
var load string

// inventory is that of this machine; without a GPU the test is over.
func inventory(t *testing.T) machine.Inventory {
	t.Helper()
	i, closer, why := nvml.Open()
	t.Cleanup(func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	})
	all, err := i.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Skipf("no GPU here: %s", cmp.Or(why, "the driver lists none"))
	}
	return i
}

// TestInventory: what the library says is what nvidia-smi says.
func TestInventory(t *testing.T) {
	i := inventory(t)
	all, err := i.List()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "nvidia-smi", "--query-gpu=uuid,name,memory.total,compute_cap,driver_version", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		want[f[0]] = f
	}
	driver, cuda := i.Versions()
	t.Logf("driver %s, CUDA %s", driver, cuda)
	for _, x := range all {
		t.Logf("%+v", x)
		if x.Resource != machine.ResourceGPU {
			continue // a slice; nvidia-smi lists its GPU
		}
		f := want[x.UUID]
		if f == nil {
			t.Errorf("nvidia-smi does not know %s", x.UUID)
			continue
		}
		mib, err := strconv.ParseInt(f[2], 10, 64)
		if x.Name != f[1] || err != nil || x.Memory != resource.Bytes(mib)*resource.MiB || x.Compute != f[3] || driver != f[4] {
			t.Errorf("%+v is %q to nvidia-smi, %v", x, f, err)
		}
		s, ok := i.Sample(x.UUID)
		if !ok || s.Watts <= 0 || s.Celsius <= 0 {
			t.Errorf("%+v, %v", s, ok)
		}
	}
}

// found is what load.py prints.
type found struct {
	Devices    int
	Name       string
	Capability string
	Allocated  int64
	FP32, BF16 struct{ Tflops, Error float64 }
}

// TestJob: a job that asks for a GPU gets one, its use is seen while it runs, and
// bf16 is what it promises beside fp32: faster, and as exact as eight bits are.
func TestJob(t *testing.T) {
	all, err := inventory(t).List()
	if err != nil {
		t.Fatal(err)
	}
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "proof")
	c := s.Client(t)
	var job client.Object
	p.Must(c.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "load", "spec": map[string]any{
		"command":   []string{"/usr/bin/env", "python3", "-c", load},
		"resources": map[string]any{"cpu": "2", "memory": "16GiB", "accelerators": map[string]any{all[0].Resource: 1}},
		"timeout":   "10m", "max_attempts": 1,
	}}, &job))
	path := p.Path("jobs/" + job.Text("id"))

	// job top, until the job has ended: the busiest sample, and what the worker used.
	var busiest engine.Accelerator
	var worker engine.Member
	p.Eventually("the job has ended", func() (bool, error) {
		var top struct {
			State   string          `json:"state"`
			Workers []engine.Member `json:"workers"`
		}
		if err := c.Do(t.Context(), http.MethodGet, path+"/top", nil, &top); err != nil {
			return false, err
		}
		for _, w := range top.Workers {
			if w.PeakRSS > 0 {
				worker = w
			}
			for _, a := range w.Usage.Accelerators {
				if a.Utilisation >= busiest.Utilisation && a.Memory >= busiest.Memory {
					busiest = a
				}
			}
		}
		return top.State != "queued" && top.State != "running", nil
	})
	var logs strings.Builder
	p.Must(c.Logs(t.Context(), p.Name, job.Text("id"), 0, false, &logs))
	_, line, ok := strings.Cut(logs.String(), "FOUND ")
	if !ok {
		t.Fatalf("the job did not find its GPU; has the machine's python3 a torch with CUDA?\n%s", logs.String())
	}
	var f found
	p.Must(json.NewDecoder(strings.NewReader(line)).Decode(&f))
	t.Logf("%+v", f)
	t.Logf("busiest %+v; worker %+v", busiest, worker)

	if f.Devices != 1 {
		t.Errorf("the job sees %d GPUs and asked for one", f.Devices)
	}
	if f.Name != all[0].Name && len(all) == 1 || f.FP32.Error > 1e-6 || f.BF16.Error <= f.FP32.Error || f.BF16.Error > 0.01 || f.BF16.Tflops <= f.FP32.Tflops {
		t.Errorf("%+v", f)
	}
	if busiest.Utilisation < 0.5 || int64(busiest.Memory) < f.Allocated || busiest.Watts <= 0 || busiest.Celsius <= 0 {
		t.Errorf("job top showed at most %+v", busiest)
	}
	// What right-sizing goes by.
	if worker.PeakRSS < 100*resource.MiB || worker.CPU < time.Second {
		t.Errorf("of the worker is known %+v", worker)
	}
}
