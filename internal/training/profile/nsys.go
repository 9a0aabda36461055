package profile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// A line of nsys's report cuda_gpu_trace is what an accelerator did, times in ns:
//
//	Start (ns),Duration (ns),…,Device,Ctx,Strm,Name
//	100000000,20000000,…,NVIDIA H100 80GB HBM3 (0),1,7,sm90_xmma_gemm_bf16bf16
//	270000000,20000000,…,NVIDIA H100 80GB HBM3 (0),1,13,[CUDA memcpy HtoD]

// readNsys says how the accelerators spent the time that was recorded, as
// readTraces does.
func readNsys(r profiler.Result) (Summary, error) {
	devices := map[string][]event{}
	for _, f := range r.Files {
		if f.Name != profiler.NsysTrace {
			continue
		}
		if err := readNsysTrace(f.Data, devices); err != nil {
			return Summary{}, fault.Wrap(err, "reading %s", f.Name)
		}
	}
	if len(devices) == 0 {
		return Summary{}, fault.New(fault.Invalid, "nsys recorded no accelerator activity").
			WithHint("Start the program under nsys launch --trace=cuda, profile for longer, or use py-spy.")
	}
	t, passed := newTally(), 0.0
	for _, events := range devices {
		passed += max(addTrace(t, events), float64(r.Lasted)/float64(time.Microsecond))
	}
	s, err := t.summary(passed - t.total)
	s.Processes = max(r.Processes, 0)
	return s, err
}

func readNsysTrace(b []byte, devices map[string][]event) error {
	r := csv.NewReader(bytes.NewReader(b))
	r.FieldsPerRecord, r.LazyQuotes, r.ReuseRecord = -1, true, true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fault.New(fault.Invalid, "the trace is not CSV: %w", err)
	}
	start, duration := slices.Index(header, "Start (ns)"), slices.Index(header, "Duration (ns)")
	device, name := slices.Index(header, "Device"), slices.Index(header, "Name")
	last := max(start, duration, device, name)
	if min(start, duration, device, name) < 0 {
		return fault.New(fault.Invalid, "the trace has unexpected columns")
	}
	for n := 0; ; n++ {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.New(fault.Invalid, "the trace is not CSV: %w", err)
		}
		if n == maxEvents {
			return tooMuch()
		}
		if len(row) <= last {
			continue
		}
		at, _ := strconv.ParseFloat(row[start], 64)
		lasts, err := strconv.ParseFloat(row[duration], 64)
		e := event{Category: "kernel", Name: strings.Clone(row[name]), At: at / 1000, Lasts: lasts / 1000}
		if err != nil || !e.plausible() {
			continue
		}
		if strings.HasPrefix(e.Name, "[CUDA mem") {
			e.Category = "gpu_memcpy"
		}
		on := strings.Clone(row[device])
		if devices[on] == nil && len(devices) >= maxThreads {
			continue
		}
		devices[on] = append(devices[on], e)
	}
}
