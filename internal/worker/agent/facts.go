package agent

import (
	"context"
	"encoding/csv"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/machine"
)

const factsTime = 5 * time.Second

// facts of this node under the names of node labels, so that what does not fit
// it is known before anything queues.
func facts(ctx context.Context) map[string]string {
	read := machine.Read("/")
	f := read.Labels()
	var pythons []string
	for _, dir := range []string{"/usr/local/bin", "/usr/bin"} {
		found, _ := filepath.Glob(filepath.Join(dir, "python3.[0-9]*"))
		for _, p := range found {
			if v := strings.TrimPrefix(filepath.Base(p), "python"); strings.Trim(v, "0123456789.") == "" {
				pythons = append(pythons, v)
			}
		}
	}
	if len(pythons) > 0 {
		f[machine.LabelPython] = strings.Join(pythons[:min(len(pythons), 10)], ",")
	}
	if path, err := exec.LookPath("nvidia-smi"); err == nil {
		ctx, cancel := context.WithTimeout(ctx, factsTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, "--query-gpu=driver_version,compute_cap,name,memory.total", "--format=csv,noheader,nounits")
		cmd.WaitDelay = time.Second
		if out, err := cmd.Output(); err == nil {
			gpuFacts(f, string(out))
		}
	}
	return f
}

// gpuFacts reads lines such as "550.54.15, 9.0, NVIDIA H100 80GB HBM3, 81559".
func gpuFacts(f map[string]string, text string) {
	r := csv.NewReader(strings.NewReader(text))
	r.TrimLeadingSpace, r.FieldsPerRecord, r.LazyQuotes = true, -1, true
	lines, err := r.ReadAll()
	if err != nil {
		return
	}
	n, lowest := 0, 0.0
	for _, l := range lines {
		if len(l) != 4 {
			continue
		}
		compute, err := strconv.ParseFloat(l[1], 64)
		if err != nil {
			continue
		}
		n++
		if f[machine.LabelDriver] = l[0]; n == 1 || compute < lowest {
			lowest, f[machine.LabelCompute], f[machine.LabelGPU] = compute, l[1], l[2]
		}
	}
	if n > 0 {
		f[machine.LabelGPUs] = strconv.Itoa(n)
	}
}
