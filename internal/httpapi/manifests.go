package httpapi

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/manifest"
	"github.com/falaj-ml/falaj/internal/resource"
)

// shownManifest is an object as its manifest.
type shownManifest struct {
	APIVersion string `json:"api_version"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Project    string `json:"project,omitempty"`
	Spec       any    `json:"spec"`
}

// oneManifest is the manifest that would make an object as it is.
func (s *Server) oneManifest(ctx context.Context, in *struct {
	Kind    string `path:"kind" maxLength:"64" doc:"Kind of manifest, such as FeatureView"`
	Name    string `path:"name" maxLength:"512" doc:"Name of the object, or id of a job"`
	Project string `query:"project" maxLength:"63" doc:"Project of the object; empty: the installation"`
},
) (*body[shownManifest], error) {
	kinds := s.appliers()
	k, ok := kinds[in.Kind]
	if !ok {
		names := slices.Sorted(maps.Keys(kinds))
		err := fault.New(fault.NotFound, "kind %.64q does not exist", in.Kind).WithHint("Kinds: %s.", strings.Join(names, ", "))
		if near := resource.Nearest(in.Kind, names); near != "" {
			err = err.WithHint("Did you mean %s?", near)
		}
		return nil, err
	}
	switch {
	case k.installation:
		in.Project = ""
	case in.Project == "" && k.wide == nil:
		return nil, fault.New(fault.Invalid, "project is required").WithHint("Kind %s belongs to a project: set project.", in.Kind)
	}
	called, spec, err := k.show(ctx, in.Project, in.Name)
	if err != nil {
		return nil, err
	}
	return one(shownManifest{APIVersion: manifest.APIVersion, Kind: in.Kind, Name: called, Project: in.Project, Spec: spec}, nil)
}

// showZone finds a zone among all.
func (s *Server) showZone(ctx context.Context, _, name string) (string, any, error) {
	places, err := s.Zones.Zones(ctx)
	if err != nil {
		return "", nil, err
	}
	for _, p := range places {
		if string(p.Zone) == name {
			return name, p.ZoneSpec, nil
		}
	}
	return "", nil, fault.New(fault.NotFound, "zone %.64q not found", name).WithHint("List zones with `falaj get zones`.")
}

// reference is how a manifest names an account; one that is gone has its id alone.
func reference(id, name string) string {
	kind := map[string]string{"usr": "user/", "svc": "service/"}[strings.SplitN(id, "_", 2)[0]]
	if kind == "" || name == "" {
		return id
	}
	return kind + name
}

// showGrant finds a grant among those of a project, or of the installation.
func (s *Server) showGrant(ctx context.Context, p, name string) (string, any, error) {
	for token := ""; ; {
		grants, next, err := s.Projects.Members(ctx, project.Name(p), token)
		if err != nil {
			return "", nil, err
		}
		for _, g := range grants {
			if g.Name != name {
				continue
			}
			names, err := s.Accounts.Names(ctx, g.Principal)
			return name, g.Spec(reference(g.Principal, names[g.Principal])), err
		}
		if token = next; token == "" {
			return "", nil, fault.New(fault.NotFound, "grant %.64q not found", name).WithHint("List grants with `falaj get members`.")
		}
	}
}
