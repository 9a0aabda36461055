package registry

import (
	"context"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// Signed is what a signature says of a version, for who has the signature and the
// project's public key, and not the registry.
type Signed struct {
	Project        string
	Model          string // its name when it was signed; SignedFor signs for the present one
	Number         int
	Digest         string // of the version
	Residency      residency.Label
	Classification string
	KeyID          string // of the key that signed it
	Files          []File // their sizes are not signed, and 0
}

// File is the signed file of a name. Error: fault.NotFound.
func (s Signed) File(name string) (File, error) {
	for _, f := range s.Files {
		if f.Path == name {
			return f, nil
		}
	}
	return File{}, fault.New(fault.NotFound, "the signed version has no file %q", clip(name))
}

// SignedFor lists a version's files and gives a signature of them for somebody who has the
// registry's word for nothing but the public key: one of the model's present name. That of
// a model that was renamed is made anew, which changes nothing of what else it says; the one
// that is stored was checked first.
func (s *Files) SignedFor(ctx context.Context, p project.Name, name, ref string) ([]File, []byte, error) {
	v, err := s.readVersion(ctx, p, name, ref)
	if err != nil {
		return nil, nil, err
	}
	stored, bundle, err := s.signedFiles(ctx, v)
	if err != nil {
		return nil, nil, s.refused(ctx, v, err)
	}
	files := make([]File, len(stored))
	for i, f := range stored {
		files[i] = f.File
	}
	key, err := s.key(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	st, err := openBundle(bundle, key.id, &key.private.PublicKey)
	if err != nil || st.Subject[0].Name == v.Model {
		return files, bundle, err
	}
	bundle, err = key.sign(statementOf(v, files))
	return files, bundle, err
}

// OpenSigned checks a signature, a sigstore bundle, against a public key in PEM. Who
// reads a file compares its digest. Errors: fault.Conflict, saying what is wrong with
// the signature; fault.Invalid for something that is no such key.
func OpenSigned(bundle []byte, publicKey string) (Signed, error) {
	public, err := parsePublic(publicKey)
	if err != nil {
		return Signed{}, err
	}
	id, _, err := publicPEM(public)
	if err != nil {
		return Signed{}, err
	}
	st, err := openBundle(bundle, id, public)
	if err != nil {
		return Signed{}, err
	}
	says := st.Predicate.Falaj
	out := Signed{
		Project: says.Project, Model: st.Subject[0].Name, Number: says.Version, Digest: "sha256:" + st.Subject[0].Digest["sha256"], Classification: says.Classification, KeyID: id,
	}
	for _, z := range says.Residency {
		out.Residency = append(out.Residency, residency.Zone(z))
	}
	if err := out.Residency.Validate(); err != nil {
		return Signed{}, fault.New(fault.Conflict, "the signature contains no valid label: %w", err)
	}
	for _, r := range st.Predicate.Resources {
		if r.Algorithm != "sha256" {
			return Signed{}, fault.New(fault.Conflict, "the signature has a digest with %q", clip(r.Algorithm))
		}
		out.Files = append(out.Files, File{Path: r.Name, Digest: "sha256:" + r.Digest})
	}
	root, err := rootDigest(out.Files)
	if err != nil || root != out.Digest {
		return Signed{}, fault.New(fault.Conflict, "the digest in the signature does not match its files")
	}
	return out, nil
}
