package training

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/resource"
)

// Doctor submits a job that looks around on a pool: two workers that measure
// their nodes and what lies between them, and print it (package worker/probe).
// Its program is falaj-worker itself, sent as the job's source, so that nodes
// need nothing. Needs job.submit.
func (s *Service) Doctor(ctx context.Context, p project.Name, pool string) (Job, error) {
	if err := s.allow(ctx, ActionSubmit, Job{Project: p}); err != nil {
		return Job{}, err
	}
	if s.cfg.Worker == "" {
		return Job{}, fault.New(fault.Unsupported, "the path of falaj-worker is unknown on this server")
	}
	if s.cfg.Measure != nil {
		if err := s.cfg.Measure(ctx); err != nil {
			s.log.WarnContext(ctx, "measuring this machine failed", slog.Any("error", err))
		}
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(packProgram(w, s.cfg.Worker)) }()
	src, err := s.UploadSource(ctx, p, r)
	_ = r.Close()
	if err != nil {
		return Job{}, fault.Wrap(err, "packing falaj-worker")
	}
	spec := Spec{
		Command: []string{"./" + programName, "probe"}, Source: src.Digest, Pools: []string{pool}, Workers: Exactly(2),
		Resources: resource.Amount{CPU: resource.Cores(1) / 2, Memory: resource.GiB / 2}, Timeout: compute.Duration(10 * time.Minute), MaxAttempts: 1,
	}
	return s.Submit(ctx, p, "doctor-"+pool, spec)
}

// programName of falaj-worker in the job's working directory.
const programName = "falaj-worker"

// packProgram writes an archive of one program; the same program gives the same
// bytes.
func packProgram(w io.Writer, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	if err := t.WriteHeader(&tar.Header{Name: programName, Mode: 0o755, Size: info.Size(), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return errors.Join(err, t.Close(), z.Close())
}
