package profile

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// Limits of all traces of a profile together.
const (
	maxTrace  = 64 << 20 // bytes when unpacked
	maxEvents = 500_000
)

// unpacked reads within what is left for a profile. Its error stays.
type unpacked struct {
	ctx    context.Context //nolint:containedctx // A reader has no other way to end.
	r      io.Reader
	left   int64
	events int
	err    error
}

func (u *unpacked) Read(b []byte) (int, error) {
	switch {
	case u.err != nil:
		return 0, u.err
	case u.ctx.Err() != nil:
		u.err = u.ctx.Err()
	case u.left <= 0:
		u.err = tooMuch()
	}
	if u.err != nil {
		return 0, u.err
	}
	n, err := u.r.Read(b[:min(int64(len(b)), u.left)])
	u.left -= int64(n)
	return n, err
}

func tooMuch() error {
	return fault.New(fault.TooLarge, "the traces exceed %d bytes or %d events", maxTrace, maxEvents).
		WithHint("Profile for a shorter time.")
}

// event is one of the Trace Event Format that torch.profiler writes.
type event struct {
	Phase    string  `json:"ph"`
	Category string  `json:"cat"`
	Name     string  `json:"name"`
	PID      any     `json:"pid"`
	TID      any     `json:"tid"`
	At       float64 `json:"ts"` // microseconds
	Lasts    float64 `json:"dur"`
}

func (e event) plausible() bool { return e.Lasts > 0 && e.At >= 0 && e.Lasts <= 1e12 && e.At <= 1e18 }

// span is when something was done.
type span struct {
	from, to float64
	kind     Kind
	name     string
}

// readTraces says how the processes spent their time: on the device where there
// is one, else in the thread that did most.
func readTraces(ctx context.Context, files []profiler.File) (Summary, error) {
	t, passed, n := newTally(), 0.0, 0
	u := &unpacked{ctx: ctx, left: maxTrace, events: maxEvents}
	for _, f := range files {
		if !strings.HasPrefix(f.Name, "trace-") {
			continue
		}
		events, err := readTrace(u, f.Data)
		if err != nil {
			return Summary{}, fault.Wrap(err, "reading %s", f.Name)
		}
		passed += addTrace(t, events)
		n++
	}
	s, err := t.summary(passed - t.total)
	s.Processes = n
	return s, err
}

// readTrace unpacks the events of a trace one by one, so that a large one is
// not held twice.
func readTrace(u *unpacked, b []byte) (all []event, err error) {
	defer func() { err = cmp.Or(u.err, err) }() // whatever the decoder made of it
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the trace is not gzip: %w", err)
	}
	u.r = z
	d := json.NewDecoder(u)
	old, err := seek(d, "traceEvents")
	if err != nil {
		return nil, fault.New(fault.Invalid, "the trace is not valid: %w", err)
	}
	for d.More() {
		var e event
		if err := d.Decode(&e); err != nil {
			return nil, fault.New(fault.Invalid, "the trace is not valid: %w", err)
		}
		if u.events--; u.events < 0 {
			return nil, tooMuch()
		}
		if e.Phase != "X" || !e.plausible() {
			continue
		}
		if old && e.Category == "" {
			e.Category = "cpu_op"
		}
		all = append(all, e)
	}
	return all, nil
}

// seek reads to the elements of a list in the outermost object; or of the list
// that is all, as builds of PyTorch without Kineto write it.
func seek(d *json.Decoder, name string) (old bool, err error) {
	switch t, err := d.Token(); {
	case err != nil:
		return false, err
	case t == json.Delim('['):
		return true, nil
	case t != json.Delim('{'):
		return false, fault.New(fault.Invalid, "not a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return false, err
		}
		if key == name {
			if t, err := d.Token(); err != nil || t != json.Delim('[') {
				return false, cmp.Or(err, error(fault.New(fault.Invalid, "%s is not a list", name)))
			}
			return false, nil
		}
		var other json.RawMessage
		if err := d.Decode(&other); err != nil {
			return false, err
		}
	}
	return false, fault.New(fault.Invalid, "%s is missing", name)
}

// addTrace adds a process's time, and gives how long the trace is.
func addTrace(t *tally, events []event) (passed float64) {
	from, to := 0.0, 0.0
	device := false
	for i, e := range events {
		if i == 0 || e.At < from {
			from = e.At
		}
		to = max(to, e.At+e.Lasts)
		device = device || onDevice(e)
	}
	lanes := map[string][]span{}
	for _, e := range events {
		k, ok := kindOf(e)
		if !ok || onDevice(e) != device {
			continue
		}
		lane := "device"
		if !device {
			lane = number(e.PID) + "/" + number(e.TID)
		}
		if len(lanes) < maxThreads || lanes[lane] != nil {
			lanes[lane] = append(lanes[lane], span{e.At, e.At + e.Lasts, k, e.Name})
		}
	}
	var most []span
	longest := 0.0
	for _, lane := range lanes {
		parts := exclusive(lane, !device)
		sum := 0.0
		for _, p := range parts {
			sum += p.to - p.from
		}
		if sum > longest {
			most, longest = parts, sum
		}
	}
	for _, p := range most {
		waiting := 0.0
		if p.kind == Communication {
			waiting = p.to - p.from
		}
		t.add(Function{Name: p.name, Kind: p.kind}, p.to-p.from, waiting)
	}
	return to - from
}

func number(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return ""
	}
}

func onDevice(e event) bool {
	return e.Category == "kernel" || e.Category == "gpu_memcpy" || e.Category == "gpu_memset"
}

// kindOf is what an event does; false for what only lies around others.
func kindOf(e event) (Kind, bool) {
	name := strings.ToLower(e.Name)
	switch e.Category {
	case "kernel", "cpu_op", "gpu_memcpy", "gpu_memset":
	case "user_annotation": // DataLoader and gloo tell by these
		if !has(name, "dataloader", "gloo:", "nccl:", "c10d", "record_param_comms") {
			return "", false
		}
	default:
		return "", false
	}
	switch {
	case has(name, "nccl", "gloo", "c10d::", "record_param_comms", "allreduce", "all_reduce", "allgather", "reducescatter", "mpi:"):
		return Communication, true
	case e.Category == "gpu_memcpy" || e.Category == "gpu_memset" || has(name, "dataloader", "aten::copy_", "aten::_to_copy", "aten::pin_memory", "memcpy"):
		return Memory, true
	}
	return Compute, true
}

// exclusive cuts spans into parts that do not lie over each other. Where they are
// nested, as in a thread, each moment is of the innermost. Else, as on a device,
// what computes goes before what moves, and that before what communicates: only
// what is not hidden counts.
func exclusive(spans []span, nested bool) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	var out, open []span
	at := 0.0
	advance := func(until float64) {
		for at < until && len(open) > 0 {
			best, next := -1, until
			live := open[:0]
			for _, s := range open {
				if s.to > at {
					live = append(live, s)
				}
			}
			open = live
			for i, s := range open {
				next = min(next, s.to)
				if best < 0 || nested || order(s.kind) < order(open[best].kind) {
					best = i
				}
			}
			if best < 0 {
				break
			}
			out = append(out, span{at, next, open[best].kind, open[best].name})
			at = next
		}
		at = max(at, until)
	}
	for _, s := range spans {
		advance(s.from)
		if len(open) < maxOpen {
			open = append(open, s)
		}
	}
	end := at
	for _, s := range open {
		end = max(end, s.to)
	}
	advance(end)
	return out
}

// maxOpen bounds how many lie over each other.
const maxOpen = 256

func order(k Kind) int {
	return slices.Index([]Kind{Compute, Memory, Communication}, k)
}
