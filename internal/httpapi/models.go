package httpapi

import (
	"context"
	"net/http"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
)

// modelRoutes are about one version of a model, for those who have to trust it.
func (s *Server) modelRoutes(p string) {
	v := p + "/models/{name}/versions/{version}"
	route(s, "POST", v+"/verify", "model.read", "Verify a version's files against its signature or an external one", s.verifyModel).keepsNothing()
	route(s, "GET", v+"/content", "model.read", "Inspect the contents of a version's files and the risk of loading them", s.modelContent)
	route(s, "GET", v+"/approvals", "model.read", "List a version's approvals and rejections, and its unmet requirements for promotion", s.modelClearance)
	route(s, "POST", v+"/approvals", registry.ActionApprove, "Approve or reject a version", s.reviewModel)
	route(s, "GET", p+"/model-policies", "model.read", "List model policies", s.listModelPolicies)
	route(s, "GET", p+"/model-policies/{name}", "model.read", "Get the policy of a model; default applies to models without one", s.oneModelPolicy)
	route(s, "DELETE", p+"/model-policies/{name}", registry.ActionGovern, "Delete the policy of a model; default then applies", s.deleteModelPolicy)
	s.modelCardRoutes(p)
	s.raw("GET", v+"/archive", "model.read", "Export a version's files, signature and public key as a tar archive", media{gives: "application/x-tar"}, s.modelArchive)
}

// InVersion is the path of everything about a version of a model.
type InVersion struct {
	InProject
	Name    string `path:"name" maxLength:"256" doc:"Model"`
	Version string `path:"version" maxLength:"256" doc:"Number or alias"`
}

type verifiedView struct {
	modelVersionView
	Outside *registry.ExternalSignature `json:"outside,omitempty" doc:"Result of verifying the external signature"`
}

func (s *Server) verifyModel(ctx context.Context, in *struct {
	InVersion
	Body struct {
		Signature string `json:"signature,omitempty" doc:"External signature by OpenSSF model signing: a sigstore bundle, JSON as text"`
		PublicKey string `json:"public_key,omitempty" maxLength:"10000" doc:"Public key of the external signature (PEM)"`
	}
},
) (*body[verifiedView], error) {
	p := project.Name(in.Project)
	if in.Body.Signature == "" && in.Body.PublicKey == "" {
		v, err := s.Registry.Files.Verify(ctx, p, in.Name, in.Version)
		return one(verifiedView{modelVersionView: modelVersionOf(v)}, err)
	}
	if in.Body.Signature == "" || in.Body.PublicKey == "" {
		return nil, fault.New(fault.Invalid, "set both signature and public_key to verify an external signature")
	}
	v, outside, err := s.Registry.Files.VerifyExternalSignature(ctx, p, in.Name, in.Version, []byte(in.Body.Signature), in.Body.PublicKey)
	return one(verifiedView{modelVersionOf(v), &outside}, err)
}

// modelArchive streams a version; one that turns out to be changed on the way is
// broken off.
func (s *Server) modelArchive(w http.ResponseWriter, r *http.Request) {
	v, err := s.Registry.Files.OpenReadable(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"), r.PathValue("version"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	counted := &firstByte{ResponseWriter: w}
	if err := v.Archive(r.Context(), counted); err != nil {
		if !counted.written {
			s.fail(w, r, err)
			return
		}
		s.logInternal(r.Context(), r.URL.Path, err)
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) modelContent(ctx context.Context, in *InVersion) (*body[scan.Report], error) {
	return one(s.Registry.Files.ContentOf(ctx, project.Name(in.Project), in.Name, in.Version))
}

func (s *Server) modelClearance(ctx context.Context, in *InVersion) (*body[registry.Clearance], error) {
	return one(s.Registry.Approvals.Clearance(ctx, project.Name(in.Project), in.Name, in.Version))
}

func (s *Server) reviewModel(ctx context.Context, in *struct {
	InVersion
	Body struct {
		Verdict registry.Verdict `json:"verdict" enum:"approved,rejected"`
		Digest  string           `json:"digest,omitempty" maxLength:"71" doc:"Digest of the reviewed version; a different digest is rejected"`
		Comment string           `json:"comment,omitempty" maxLength:"2000" doc:"Comment of the reviewer"`
	}
},
) (*body[registry.Clearance], error) {
	b := in.Body
	return one(s.Registry.Approvals.Review(ctx, project.Name(in.Project), in.Name, in.Version, b.Verdict, b.Digest, b.Comment))
}

// modelPolicyKind is how a manifest of a ModelPolicy is applied.
func (s *Server) modelPolicyKind() applier {
	return applier{gate: registry.ActionGovern, apply: decoded(func(ctx context.Context, p, name string, spec registry.PolicySpec, dry bool) (applied, error) {
		_, change, err := s.Registry.Approvals.ApplyPolicy(ctx, project.Name(p), name, spec, dry)
		return applied{Result: string(change)}, err
	}), show: func(ctx context.Context, p, name string) (string, any, error) {
		own, err := s.Registry.Approvals.Policy(ctx, project.Name(p), name)
		return name, own.Spec, err
	}}
}

// InModelPolicy is the path of a model's policy.
type InModelPolicy struct {
	InProject
	Name string `path:"name" maxLength:"256" doc:"Name of the model, or default"`
}

func (s *Server) listModelPolicies(ctx context.Context, in *InProject) (*body[items[registry.ModelPolicy]], error) {
	all, err := s.Registry.Approvals.Policies(ctx, project.Name(in.Project))
	return listed(all, "", err)
}

func (s *Server) oneModelPolicy(ctx context.Context, in *InModelPolicy) (*body[registry.ModelPolicy], error) {
	return one(s.Registry.Approvals.Policy(ctx, project.Name(in.Project), in.Name))
}

func (s *Server) deleteModelPolicy(ctx context.Context, in *InModelPolicy) (*none, error) {
	return &none{}, s.Registry.Approvals.DeletePolicy(ctx, project.Name(in.Project), in.Name)
}
