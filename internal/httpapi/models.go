package httpapi

import (
	"context"
	"net/http"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
)

// modelRoutes are about one version of a model, for those who have to trust it.
func (s *Server) modelRoutes(p string) {
	v := p + "/models/{name}/versions/{version}"
	route(s, "POST", v+"/verify", "model.read", "Check a version's files against its signature, or against one that was made elsewhere", s.verifyModel)
	s.raw("GET", v+"/archive", "model.read", "A version's files, its signature and the public key as a tar archive, for verifiers elsewhere", media{gives: "application/x-tar"}, s.modelArchive)
}

// InVersion is the path of everything about a version of a model.
type InVersion struct {
	InProject
	Name    string `path:"name" maxLength:"256" doc:"Model"`
	Version string `path:"version" maxLength:"256" doc:"Number or alias"`
}

type verifiedView struct {
	modelVersionView
	Outside *registry.Outside `json:"outside,omitempty" doc:"What the signature that was made elsewhere says"`
}

func (s *Server) verifyModel(ctx context.Context, in *struct {
	InVersion
	Body struct {
		Signature string `json:"signature,omitempty" doc:"A signature by OpenSSF model signing that was made elsewhere: a sigstore bundle, JSON as text"`
		PublicKey string `json:"public_key,omitempty" maxLength:"10000" doc:"The key that it must be by, PEM"`
	}
},
) (*body[verifiedView], error) {
	p := project.Name(in.Project)
	if in.Body.Signature == "" && in.Body.PublicKey == "" {
		v, err := s.Registry.Verify(ctx, p, in.Name, in.Version)
		return one(verifiedView{modelVersionView: modelVersionOf(v)}, err)
	}
	if in.Body.Signature == "" || in.Body.PublicKey == "" {
		return nil, fault.New(fault.Invalid, "a signature that was made elsewhere is checked against a public key: both are needed")
	}
	v, outside, err := s.Registry.CheckOutside(ctx, p, in.Name, in.Version, []byte(in.Body.Signature), in.Body.PublicKey)
	return one(verifiedView{modelVersionOf(v), &outside}, err)
}

// modelArchive streams a version; one that turns out to be changed on the way is
// broken off.
func (s *Server) modelArchive(w http.ResponseWriter, r *http.Request) {
	v, err := s.Registry.OpenVerified(r.Context(), project.Name(r.PathValue("project")), r.PathValue("name"), r.PathValue("version"))
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
