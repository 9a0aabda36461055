package local

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/sandbox"
	"github.com/falaj-ml/falaj/internal/sandbox/shim"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
)

// maxAnswer bounds what the profiler inside may say: a result in base64.
const maxAnswer = profiler.MaxResult/3*4 + 1<<20

// Profile profiles a worker from inside its sandbox.
func (d *Driver) Profile(ctx context.Context, h engine.Handle, r profiler.Request) (profiler.Result, error) {
	none := profiler.Result{}
	if err := r.Check(); err != nil {
		return none, err
	}
	w, err := d.find(h)
	if err != nil {
		return none, err
	}
	st, err := shim.Read[shim.Status](w.dir, shim.StatusFile)
	switch {
	case err != nil || w.over() || !st.Init.Alive():
		return none, fault.New(fault.Conflict, "workload %s is not running", h)
	case st.Isolated < sandbox.Sandbox:
		return none, fault.New(fault.Unsupported, "workload %s runs with isolation %s, which cannot isolate a profiler from the server", h, st.Isolated).
			WithHint("Ask for isolation sandbox or container.")
	case !w.profiling.TryLock():
		return none, fault.New(fault.Conflict, "a profile of %s is already running", h).WithHint("Wait for it to end.")
	}
	defer w.profiling.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.Patience())
	defer cancel()
	r.Among = w.extras.Gang
	request, err := json.Marshal(r)
	if err != nil {
		return none, err
	}
	cmd, err := sandbox.Box{Init: st.Init.PID, Start: st.Init.Start, Cgroups: st.Cgroups}.Enter(ctx, d.c.Worker, profiler.Mode)
	if err != nil {
		return none, err
	}
	said, words := &profiler.Limited{Left: maxAnswer}, &profiler.Limited{Left: 8 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), said, words
	err = cmd.Run()
	if ctx.Err() != nil {
		return none, fault.New(fault.Timeout, "the profile of %s did not finish in %s", h, r.Patience())
	}
	var a profiler.Answer
	if json.Unmarshal(said.B.Bytes(), &a) == nil && (a.Result != nil || a.Detail != "") {
		return a.Unpack()
	}
	if w.over() {
		return none, fault.New(fault.Conflict, "workload %s has ended meanwhile", h)
	}
	text := profiler.Plain(strings.Join(strings.Fields(words.B.String()), " "))
	if strings.HasPrefix(text, sandbox.NotStarted) {
		return none, fault.New(fault.Conflict, "workload %s is not running yet", h).WithHint("Try again later.")
	}
	return none, fault.New(fault.Unavailable, "profiling %s: %.600s (%v)", h, text, err)
}

var _ engine.Profiler = (*Driver)(nil)
