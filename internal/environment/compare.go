package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/falaj-ml/falaj/internal/environment/python"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// Difference is what differs between two environments.
type Difference struct {
	A       string   `json:"a"`
	B       string   `json:"b"`
	Same    bool     `json:"same"` // the content
	Changes []Change `json:"changes"`
}

// Change is one thing that differs; empty where one side does not have it.
type Change struct {
	What string `json:"what"` // python, image, module or package
	Name string `json:"name,omitempty"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
}

// Diff compares two environments of a project, each a name or name@digest.
// Needs environment.read.
func (s *Service) Diff(ctx context.Context, p project.Name, a, b string) (Difference, error) {
	var of [2]Environment
	for i, ref := range []string{a, b} {
		name, digest, _ := strings.Cut(ref, "@")
		if err := s.allow(ctx, ActionRead, p, name); err != nil {
			return Difference{}, err
		}
		var err error
		if of[i], err = s.named(ctx, p, name, Digest(digest)); err != nil {
			return Difference{}, err
		}
		if of[i].Digest == "" {
			return Difference{}, of[i].unbuilt("content")
		}
	}
	d := Difference{A: a, B: b, Same: of[0].Digest == of[1].Digest, Changes: []Change{}}
	x, y := of[0].parts(), of[1].parts()
	all := maps.Clone(x)
	maps.Copy(all, y)
	keys := slices.SortedFunc(maps.Keys(all), func(a, b [2]string) int { return strings.Compare(a[0]+" "+a[1], b[0]+" "+b[1]) })
	for _, k := range keys {
		if x[k] != y[k] {
			d.Changes = append(d.Changes, Change{What: k[0], Name: k[1], A: x[k], B: y[k]})
		}
	}
	return d, nil
}

// parts is what an environment consists of, by what and name.
func (e Environment) parts() map[[2]string]string {
	parts := map[[2]string]string{}
	if e.Python != "" {
		parts[[2]string{"python", ""}] = e.Python + " " + e.Platform
	}
	if e.Image != "" {
		parts[[2]string{"image", ""}] = e.Image
	}
	for _, m := range e.Spec.Modules {
		parts[[2]string{"module", m}] = "loaded"
	}
	for _, p := range e.SBOM {
		v := p.Version
		if p.From != "" {
			v += " (from the " + p.From + ")"
		}
		parts[[2]string{"package", python.Canonical(p.Name)}] = v
	}
	return parts
}

// Materials is the bill of materials of an environment as CycloneDX 1.5 JSON.
// The same environment gives the same bytes. Needs environment.read.
func (s *Service) Materials(ctx context.Context, p project.Name, ref string) ([]byte, error) {
	name, digest, _ := strings.Cut(ref, "@")
	if err := s.allow(ctx, ActionRead, p, name); err != nil {
		return nil, err
	}
	e, err := s.named(ctx, p, name, Digest(digest))
	if err != nil {
		return nil, err
	}
	if e.State != Ready {
		return nil, e.unbuilt("bill of materials")
	}
	return e.cyclonedx()
}

// unbuilt says why an environment has none of something, and what helps: no
// waiting does where the build failed.
func (e Environment) unbuilt(what string) error {
	if e.State != Failed {
		return fault.New(fault.Conflict, "environment %s is %s, and has no %s yet", e.Name, e.State, what).WithHint("Wait for it: `falaj env wait %s`.", e.Name)
	}
	hint := e.Hint
	if hint == "" {
		hint = "See `falaj env logs " + e.Name + "`."
	}
	return fault.New(fault.Conflict, "environment %s cannot be built, and has no %s: %s", e.Name, what, e.Reason).WithHint("%s", hint)
}

func (e Environment) cyclonedx() ([]byte, error) {
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuidOf(e.Digest)
	bom.Metadata = &cdx.Metadata{
		Timestamp: e.ReadyAt.UTC().Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: string(e.Digest), Type: cdx.ComponentTypeApplication, Name: e.Name, Version: string(e.Digest),
			Properties: &[]cdx.Property{{Name: "falaj:project", Value: string(e.Project)}, {Name: "falaj:kind", Value: string(e.Spec.Kind())}},
		},
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "falaj"}}},
	}
	var all []cdx.Component
	if e.Python != "" {
		all = append(all, cdx.Component{
			BOMRef: "python", Type: cdx.ComponentTypePlatform, Name: "python", Version: e.Python,
			Properties: &[]cdx.Property{{Name: "falaj:platform", Value: e.Platform}},
		})
	}
	if e.Image != "" {
		at, digest, _ := strings.Cut(e.Image, "@")
		all = append(all, cdx.Component{
			BOMRef: e.Image, Type: cdx.ComponentTypeContainer, Name: at, Version: digest, PackageURL: "pkg:oci/" + last(at) + "@" + strings.Replace(digest, ":", "%3A", 1) + "?repository_url=" + at,
			Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: strings.TrimPrefix(digest, "sha256:")}},
		})
	}
	for _, m := range e.Spec.Modules {
		all = append(all, cdx.Component{BOMRef: "module:" + m, Type: cdx.ComponentTypePlatform, Name: m})
	}
	for _, p := range e.SBOM {
		purl := "pkg:pypi/" + python.Canonical(p.Name) + "@" + strings.NewReplacer("+", "%2B", "!", "%21").Replace(p.Version)
		c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: purl}
		if p.From != "" {
			c.Properties = &[]cdx.Property{{Name: "falaj:from", Value: p.From}}
		}
		// Each hash is of another file of the package: one that was installed is
		// among them, so they stand as properties and not as hashes of it.
		var hashes []cdx.Property
		for _, h := range p.Hashes {
			hashes = append(hashes, cdx.Property{Name: "falaj:permitted-file", Value: h})
		}
		if len(hashes) == 1 {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: strings.TrimPrefix(p.Hashes[0], "sha256:")}}
		} else if len(hashes) > 1 {
			c.Properties = &hashes
		}
		all = append(all, c)
	}
	bom.Components = &all
	var b bytes.Buffer
	if err := cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_5); err != nil {
		return nil, fault.Wrap(err, "writing the bill of materials")
	}
	if !json.Valid(b.Bytes()) {
		return nil, fault.New(fault.Internal, "the bill of materials is not JSON")
	}
	return b.Bytes(), nil
}

// uuidOf makes a UUID of a digest: version 8, whose bits are the maker's own.
func uuidOf(d Digest) string {
	h := strings.TrimPrefix(string(d), "sha256:")
	if len(h) < 32 {
		return "00000000-0000-8000-8000-000000000000"
	}
	return h[0:8] + "-" + h[8:12] + "-8" + h[13:16] + "-8" + h[17:20] + "-" + h[20:32]
}

func last(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
