package profiler

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Nsight Systems cannot attach. It records a program that was started under
// `nsys launch`, whose session it names in that program's environment
// (NSYS_PROFILING_SESSION_ID) and keeps in its TMPDIR.
// Source: Nsight Systems User Guide, "Interactive CLI"; tried with 2022.4.

// The files of nsys: its report, and what was done on accelerators.
const (
	NsysReport = "report.nsys-rep"
	NsysTrace  = "trace.csv"
)

const nsysEnd = 30 * time.Second // for the report to be made, of which large ones take long

func nsys(ctx context.Context, r Request, found []python, dir, path string) (Result, error) {
	p, session := found[0], ""
	for _, p = range found {
		if session = p.env["NSYS_PROFILING_SESSION_ID"]; session != "" {
			break
		}
	}
	if session == "" {
		return Result{}, fault.New(fault.Unsupported, "the program was not started under Nsight Systems, which cannot attach to a running program").
			WithHint("Start the job's command with: nsys launch --trace=cuda,nvtx. Or use the tool torch or py-spy.")
	}
	program, err := p.look("nsys", path)
	if err != nil {
		return Result{}, fault.New(fault.Unsupported, "nsys is neither in the job's environment nor on its node")
	}
	tmp := p.env["TMPDIR"]
	if !filepath.IsAbs(tmp) {
		tmp = os.TempDir()
	}
	report := filepath.Join(dir, NsysReport)
	_, err = run(ctx, tmp, program, "start", "--session="+session, "--sample=none", "--cpuctxsw=none", "--output="+report)
	if err != nil && ctx.Err() == nil {
		return Result{}, fault.New(fault.Conflict, "nsys did not start: %w", err).WithHint("Another profile may be running. Try again later.")
	}
	began, over := time.Now(), time.NewTimer(time.Duration(r.Seconds)*time.Second)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
	}
	lasted := time.Since(began)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), nsysEnd)
	defer cancel()
	_, err = run(ending, tmp, program, "stop", "--session="+session) // also when nobody waits
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case err != nil:
		return Result{}, fault.New(fault.Conflict, "nsys did not end: %w", err)
	}
	out := Result{Processes: len(found), Lasted: lasted}
	for _, name := range []string{"cuda_gpu_trace", "gputrace"} { // since 2023.1, and before
		if _, err := run(ctx, tmp, program, "stats", "--report="+name, "--format=csv", "--output="+filepath.Join(dir, "trace"), report); err != nil {
			return Result{}, fault.New(fault.Conflict, "nsys produced no statistics: %w", err)
		}
		if err := os.Rename(filepath.Join(dir, "trace_"+name+".csv"), filepath.Join(dir, NsysTrace)); err == nil {
			break
		}
	}
	size := int64(0)
	for _, name := range []string{NsysReport, NsysTrace} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() {
			return Result{}, fault.New(fault.Conflict, "nsys wrote no %s", name)
		}
		if size += info.Size(); size > MaxResult {
			return Result{}, fault.New(fault.TooLarge, "the report has more than %d bytes", MaxResult).WithHint("Profile for a shorter time.")
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return Result{}, err
		}
		out.Files = append(out.Files, File{Name: name, Data: b})
	}
	if b, err := run(ctx, tmp, program, "--version"); err == nil {
		out.Version = string(bytes.TrimSpace(b[bytes.LastIndexByte(bytes.TrimSpace(b), ' ')+1:])) // NVIDIA Nsight Systems version 2022.4.2.1-df9881f
	}
	return out, nil
}
