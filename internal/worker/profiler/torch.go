package profiler

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// How a program's own torch.profiler is asked: the program calls
// falaj.step() (of the Python SDK) after each step. That looks, not oftener than
// once a second, for a file request.json in FALAJ_SCRATCH_DIR/.falaj-profile;
// when there is a new one it runs torch.profiler for so many seconds of steps
// and puts the trace beside it, as ID.RANK.json.gz, by a rename. ID.RANK.begun
// says that it has begun.
const (
	torchDir     = ".falaj-profile"
	torchRequest = "request.json"
	torchLook    = 250 * time.Millisecond
	torchBegin   = 20 * time.Second // for the first step to notice
	torchEnd     = 20 * time.Second // for the trace to be written
)

func torch(ctx context.Context, r Request, found []python) (Result, error) {
	scratch := found[0].env["FALAJ_SCRATCH_DIR"]
	if !filepath.IsAbs(scratch) {
		return Result{}, fault.New(fault.Unsupported, "the program has no FALAJ_SCRATCH_DIR")
	}
	dir := filepath.Join(scratch, torchDir)
	if err := os.MkdirAll(dir, 0o777); err != nil { //nolint:gosec // Of one user, whichever the umask is.
		return Result{}, err
	}
	b, err := json.Marshal(map[string]any{"id": r.ID, "seconds": r.Seconds})
	if err != nil {
		return Result{}, err
	}
	tmp := filepath.Join(dir, ".request.tmp")
	if err := os.WriteFile(tmp, b, 0o644); err != nil { //nolint:gosec // As above.
		return Result{}, err
	}
	if err := os.Rename(tmp, filepath.Join(dir, torchRequest)); err != nil {
		return Result{}, err
	}
	defer os.Remove(filepath.Join(dir, torchRequest))
	begun, err := await(ctx, torchBegin, func() []string { return glob(dir, r.ID, ".begun") })
	if err != nil {
		return Result{}, err
	}
	if len(begun) == 0 {
		return Result{}, fault.New(fault.Unsupported, "the program does not poll for profiles").
			WithHint("Call falaj.step() after each training step; or use the tool py-spy.")
	}
	var traces []string
	_, err = await(ctx, time.Duration(r.Seconds)*time.Second+torchEnd, func() []string {
		begun = glob(dir, r.ID, ".begun")
		if traces = glob(dir, r.ID, ".json.gz"); len(traces) < len(begun) {
			return nil
		}
		return traces
	})
	if err != nil {
		return Result{}, err
	}
	if len(traces) == 0 {
		return Result{}, fault.New(fault.Timeout, "no trace of %d processes was written in time", len(begun)).
			WithHint("Profile for a shorter time: large traces take long to write.")
	}
	out := Result{Processes: len(traces)}
	size := int64(0)
	for _, path := range traces {
		defer os.Remove(path)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if size += info.Size(); size > MaxResult {
			return Result{}, fault.New(fault.TooLarge, "the traces have more than %d bytes", MaxResult).WithHint("Profile for a shorter time.")
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return Result{}, err
		}
		rank, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), r.ID+"."), ".")
		out.Files = append(out.Files, File{Name: "trace-" + rank + ".json.gz", Data: data})
	}
	for _, path := range begun {
		_ = os.Remove(path)
	}
	return out, nil
}

func glob(dir, id, suffix string) []string {
	all, err := filepath.Glob(filepath.Join(dir, id+".*"+suffix))
	if err != nil {
		return nil
	}
	return all
}

// await looks until there is something or the time has passed.
func await(ctx context.Context, d time.Duration, look func() []string) ([]string, error) {
	until := time.NewTimer(d)
	defer until.Stop()
	tick := time.NewTicker(torchLook)
	defer tick.Stop()
	for {
		if found := look(); len(found) > 0 {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-until.C:
			return look(), nil
		case <-tick.C:
		}
	}
}
