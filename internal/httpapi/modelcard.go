package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/card"
	"github.com/falaj-ml/falaj/internal/training"
)

// modelCardRoutes are what is written down of a version.
func (s *Server) modelCardRoutes(p string) {
	v := p + "/models/{name}/versions/{version}"
	route(s, "GET", v+"/card", "model.read", "Get a version's model card, limited to what the caller can read", s.modelCard)
	s.raw("GET", v+"/card.md", "model.read", "Get a version's model card as Markdown", media{gives: "text/markdown"}, s.modelCardText)
	s.raw("GET", v+"/bom", "model.read", "Get a version's bill of materials (ML-BOM, CycloneDX 1.6)", media{gives: "application/vnd.cyclonedx+json"}, s.modelBOM)
}

func (s *Server) modelCard(ctx context.Context, in *InVersion) (*body[card.Card], error) {
	f, err := s.modelFacts(ctx, project.Name(in.Project), in.Name, in.Version)
	if err != nil {
		return nil, err
	}
	return one(card.Of(f), nil)
}

func (s *Server) modelCardText(w http.ResponseWriter, r *http.Request) {
	s.written(w, r, "text/markdown; charset=utf-8", func(f card.Facts) ([]byte, error) { return card.Of(f).Markdown(), nil })
}

func (s *Server) modelBOM(w http.ResponseWriter, r *http.Request) {
	s.written(w, r, "application/vnd.cyclonedx+json; version=1.6", card.BOM)
}

func (s *Server) written(w http.ResponseWriter, r *http.Request, media string, write func(card.Facts) ([]byte, error)) {
	f, err := s.modelFacts(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"), r.PathValue("version"))
	var b []byte
	if err == nil {
		b, err = write(f)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // a reader that went away
}

// unseen takes what the caller may not see, and what is gone, for unknown.
func unseen(err error) error {
	if fault.Is(err, fault.PermissionDenied) || fault.Is(err, fault.NotFound) || fault.Is(err, fault.Conflict) {
		return nil
	}
	return err
}

// modelFacts asks each domain what it knows of a version, as the caller.
func (s *Server) modelFacts(ctx context.Context, p project.Name, name, ref string) (f card.Facts, err error) {
	if f.Version, err = s.Registry.Versions.Version(ctx, p, name, ref); err != nil {
		return f, err
	}
	number := strconv.Itoa(f.Version.Number)
	if f.Content, err = s.Registry.Files.ContentOf(ctx, p, name, number); err != nil {
		return f, err
	}
	if f.Model, err = s.Registry.Models.Model(ctx, p, name); err != nil {
		return f, err
	}
	if f.Files, _, err = s.Registry.Files.Files(ctx, p, name, number); err != nil {
		return f, err
	}
	if f.Clearance, err = s.Registry.Approvals.Clearance(ctx, p, name, number); err != nil {
		return f, err
	}
	if f.Version.Run != "" {
		run, err := s.Tracking.Runs.Run(ctx, p, f.Version.Run)
		if err == nil {
			f.Run = &run
		} else if err = unseen(err); err != nil {
			return f, err
		}
	}
	for _, text := range f.Version.Datasets {
		d := card.Dataset{Name: text, Hidden: true}
		if ref, err := dataset.ParseRef(text); err == nil {
			v, err := s.Datasets.Definitions.Version(ctx, p, ref)
			if err == nil {
				d = card.Dataset{Name: text, Rows: v.Rows, Digest: v.ContentDigest, Residency: v.Residency, Classification: string(v.Classification)}
			} else if err = unseen(err); err != nil {
				return f, err
			}
		}
		f.Datasets = append(f.Datasets, d)
	}
	if f.Owner, err = s.modelOwner(ctx, p, f.Model, f.Version); err != nil {
		return f, err
	}
	f.Environment, err = s.packagesOf(ctx, p, f.Version.Job)
	return f, err
}

// modelOwner is who owns a model, by name where the caller may know it. What a job made
// belongs to who submitted it.
func (s *Server) modelOwner(ctx context.Context, p project.Name, m registry.Model, v registry.Version) (string, error) {
	owner := cmp.Or(m.Owner, v.Owner)
	if v.Job != "" && !strings.HasPrefix(owner, "usr_") && !strings.HasPrefix(owner, "svc_") {
		j, err := s.Training.Jobs.One(ctx, p, training.JobID(v.Job))
		if err == nil {
			owner = j.By.ID
		} else if err = unseen(err); err != nil {
			return "", err
		}
	}
	names, err := s.ownerNames(ctx, p, owner)
	return cmp.Or(names[owner], owner), err
}

// packagesOf is the bill of materials of the environment of a job's; nil: unknown.
func (s *Server) packagesOf(ctx context.Context, p project.Name, job string) (*cdx.BOM, error) {
	if job == "" {
		return nil, nil
	}
	j, err := s.Training.Jobs.One(ctx, p, training.JobID(job))
	if err != nil {
		return nil, unseen(err)
	}
	ref := j.EnvironmentRef()
	if ref == "" {
		return nil, nil
	}
	b, err := s.Environments.Materials(ctx, p, ref)
	if err != nil {
		return nil, unseen(err)
	}
	bom := &cdx.BOM{}
	err = cdx.NewBOMDecoder(bytes.NewReader(b), cdx.BOMFileFormatJSON).Decode(bom)
	return bom, fault.Wrap(err, "reading the bill of materials of environment %s", ref)
}
