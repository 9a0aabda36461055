// Package jobs is what a job reads and what it leaves, across the domains: it resolves and
// exports a job's datasets and models, mounts its open tables, keeps its runs, models, rows and
// logs, and issues the tokens of its attempts.
//
// # Map
//
//   - data.go, tables.go: what a job reads.
//   - runs.go, models.go, rows.go: what a job leaves.
//   - inputs.go: what a job could read, for the labels of what it leaves.
//   - spark.go: SQL of a dataset as a job on Spark.
//   - tokens.go: what an attempt may do.
package jobs

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/usecase/deployments"
)

// attemptTag marks the logged model of an attempt, so that a crash between
// making and recording it makes no second one.
const attemptTag = tracking.AttemptTag

// Data answers training's questions about data from datasets, and about models
// from the registry.
type Data struct {
	Datasets   dataset.Services
	Registry   *registry.Files // nil: inputs are datasets only
	Authorizer policy.Authorizer
	Guard      residency.Guard
}

var _ training.Data = Data{}

// modelScheme begins the reference of a model.
const modelScheme = "models:/"

// Resolve implements training.Data.
func (d Data) Resolve(ctx context.Context, p project.Name, ref string) (training.Input, error) {
	if d.Registry != nil && strings.HasPrefix(ref, modelScheme) {
		return d.model(ctx, p, ref)
	}
	r, err := dataset.ParseRef(ref)
	if err != nil {
		return training.Input{}, err
	}
	v, err := d.Datasets.Definitions.Version(ctx, p, r)
	if err != nil {
		return training.Input{}, err
	}
	if err := v.Usable(); err != nil {
		return training.Input{}, err
	}
	if err := d.Authorizer.Allow(ctx, dataset.ActionQuery, policy.Object{
		Project: string(p), Kind: "dataset", Name: v.Ref().String(), Classification: string(v.Classification), Residency: v.Residency,
	}); err != nil {
		return training.Input{}, err
	}
	return training.Input{Ref: "dataset " + v.Ref().String(), Digest: v.ContentDigest, Residency: v.Residency, Classification: v.Classification, Bytes: v.Bytes}, nil
}

// model pins a version of a registered model.
func (d Data) model(ctx context.Context, p project.Name, ref string) (training.Input, error) {
	src, err := registry.ParseSource(ref, "", "")
	if err != nil {
		return training.Input{}, err
	}
	if src.Model == "" {
		return training.Input{}, fault.New(fault.Invalid, "%.100q names no version of a registered model", ref).
			WithHint("Write models:/NAME/VERSION or models:/NAME@ALIAS.")
	}
	number := src.Alias
	if number == "" {
		number = strconv.Itoa(src.Version)
	}
	m, err := d.Registry.OpenReadable(ctx, p, src.Model, number)
	if err != nil {
		return training.Input{}, err
	}
	in := training.Input{
		Ref: "model " + m.Version.String(), Digest: m.Version.Digest, Residency: m.Version.Residency,
		Classification: deployments.ClassOf(m.Version.Classification), Datasets: m.Version.Datasets,
	}
	for _, f := range m.Files() {
		in.Bytes += f.Size
	}
	return in, nil
}

// Permitted asks as the job's submitter. What Falaj itself submitted is not asked again.
func (d Data) Permitted(ctx context.Context, p project.Name, by training.Actor, in training.Input) error {
	who := submitter(p, by.ID)
	if who.ID == "" {
		return nil
	}
	ctx = identity.With(ctx, who)
	if in.Model() != "" {
		name, number, _ := registry.SplitRef(in.Model())
		return d.Registry.MayReadFiles(ctx, p, name, number)
	}
	return d.Authorizer.Allow(ctx, dataset.ActionQuery, policy.Object{
		Project: string(p), Kind: "dataset", Name: in.Dataset(), Classification: string(in.Classification), Residency: in.Residency,
	})
}

// submitter is the account that submitted a job, as the policy knows it; without an ID
// where a loop of Falaj did.
func submitter(p project.Name, account string) identity.Principal {
	switch {
	case strings.HasPrefix(account, "usr_"):
		return identity.Principal{Kind: identity.User, ID: account}
	case strings.HasPrefix(account, "svc_"):
		return identity.Principal{Kind: identity.Service, ID: account, Project: p}
	}
	return identity.Principal{}
}

// exportModel writes the files of a model version, each checked against its signature.
func (d Data) exportModel(ctx context.Context, p project.Name, in training.Input, pool compute.Pool, dir string) error {
	name, number, _ := registry.SplitRef(in.Model())
	m, err := d.Registry.OpenVerified(ctx, p, name, number)
	if err != nil {
		return err
	}
	if m.Version.Digest != in.Digest {
		return fault.New(fault.Conflict, "%s differs from the submitted one: its digest is %s", in.Ref, m.Version.Digest)
	}
	err = d.Guard.Pass(ctx, residency.Transfer{
		Project: string(p), What: in.Ref, Label: m.Version.Residency, Where: "pool " + string(pool.Name), Zone: pool.MachineZone, Action: string(registry.ActionRead),
	})
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, f := range m.Files() {
		if err := writeModelFile(ctx, root, m, f.Path); err != nil {
			return fault.Wrap(err, "file %s", f.Path)
		}
	}
	return nil
}

func writeModelFile(ctx context.Context, root *os.Root, m *registry.Verified, name string) error {
	in, err := m.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	out, err := root.OpenFile(filepath.FromSlash(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Export implements training.Data.
func (d Data) Export(ctx context.Context, p project.Name, in training.Input, pool compute.Pool, dir string) error {
	if in.Model() != "" {
		return d.exportModel(ctx, p, in, pool, dir)
	}
	r, err := dataset.ParseRef(in.Dataset())
	if err != nil {
		return err
	}
	_, v, err := d.Datasets.Reads.Export(ctx, dataset.ExportRequest{OpenRequest: dataset.OpenRequest{
		Project: p, Ref: r, Purpose: "training job", Where: "pool " + string(pool.Name), Zone: pool.MachineZone,
	}, Dir: dir})
	if err == nil && v.ContentDigest != in.Digest {
		return fault.New(fault.Conflict, "%s differs from the submitted one: its digest is %s", in.Ref, v.ContentDigest)
	}
	return err
}
