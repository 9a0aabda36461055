package registry

import (
	"archive/tar"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"path"
	"slices"
	"strings"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// ExternalSignature is what a signature that was made elsewhere says of a version's files.
type ExternalSignature struct {
	KeyID    string   `json:"key_id" doc:"Hex SHA-256 of the public key's PEM"`
	Name     string   `json:"name" doc:"Model name in the signature"`
	Digest   string   `json:"digest" doc:"Digest over the digests of the signed files"`
	Unsigned []string `json:"unsigned,omitempty" doc:"Files that the signer excluded (ignore_paths); they are not verified"`
}

// VerifyExternalSignature checks a signature made by another implementation of OpenSSF model
// signing, with a key, against files: the signature is the key's, each signed file is
// here with that digest, and each file here was signed or is below a path that the
// signer ignored. Errors: fault.Invalid for something that is no public key;
// fault.Conflict that says what does not match; fault.Unsupported for a signature that
// hashes in another way than SHA-256 of whole files.
func VerifyExternalSignature(bundle []byte, publicKey string, files []File) (ExternalSignature, error) {
	public, err := parsePublic(publicKey)
	if err != nil {
		return ExternalSignature{}, err
	}
	id, _, err := publicPEM(public)
	if err != nil {
		return ExternalSignature{}, err
	}
	st, err := openExternalBundle(bundle, id, public)
	if err != nil {
		return ExternalSignature{}, err
	}
	how := st.Predicate.Serialization
	if how.Method != "files" || how.HashType != "sha256" {
		return ExternalSignature{}, fault.New(fault.Unsupported, "the signature hashes %s with %s", clip(how.Method), clip(how.HashType)).
			WithHint("Sign whole files with sha256, the default of `model_signing sign key`.")
	}
	out := ExternalSignature{KeyID: id, Name: st.Subject[0].Name, Digest: "sha256:" + st.Subject[0].Digest["sha256"]}
	signed := make(map[string]string, len(st.Predicate.Resources))
	list := make([]File, 0, len(st.Predicate.Resources))
	for _, r := range st.Predicate.Resources {
		if _, twice := signed[r.Name]; twice || r.Algorithm != "sha256" {
			return out, fault.New(fault.Conflict, "the signature has a duplicate entry or no sha256 digest for file %s", clip(r.Name))
		}
		signed[r.Name] = "sha256:" + r.Digest
		list = append(list, File{Path: r.Name, Digest: "sha256:" + r.Digest})
	}
	root, err := rootDigest(list)
	if err != nil || root != out.Digest {
		return out, fault.New(fault.Conflict, "the digest in the signature does not match its files")
	}
	for _, f := range files {
		want, ok := signed[f.Path]
		delete(signed, f.Path)
		switch {
		case ok && want != f.Digest:
			return out, fault.New(fault.Conflict, "file %s does not match its signature: it has the digest %s, and %s was signed", f.Path, f.Digest, clip(want))
		case ok:
		case ignored(how.IgnorePaths, f.Path):
			out.Unsigned = append(out.Unsigned, f.Path)
		default:
			return out, fault.New(fault.Conflict, "file %s was not signed", f.Path)
		}
	}
	if len(signed) > 0 {
		names := make([]string, 0, len(signed))
		for name := range signed {
			names = append(names, name)
		}
		return out, fault.New(fault.Conflict, "file %s was signed and is missing", clip(slices.Min(names)))
	}
	return out, nil
}

// VerifyExternalSignature checks a version against a signature that was made elsewhere, as the
// function does, after its files were found to be what this registry signed.
func (s *Service) VerifyExternalSignature(ctx context.Context, p project.Name, name, ref string, bundle []byte, publicKey string) (Version, ExternalSignature, error) {
	v, err := s.OpenVerified(ctx, p, name, ref)
	if err != nil {
		return Version{}, ExternalSignature{}, err
	}
	out, err := VerifyExternalSignature(bundle, publicKey, v.Files())
	return v.Version, out, fault.Wrap(err, "model %s", v.Version)
}

// ignored is whether a file is one of the paths, or below one.
func ignored(paths []string, file string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		p = path.Clean(p)
		return p == "." || p == file || strings.HasPrefix(file, p+"/")
	})
}

// parsePublic reads a public key in PEM. The curves are those of model signing.
func parsePublic(publicKey string) (*ecdsa.PublicKey, error) {
	block, rest := pem.Decode([]byte(publicKey))
	if block == nil || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, fault.New(fault.Invalid, "the public key is not a single PEM block").
			WithHint("Use a file written by `openssl ec -pubout` or `falaj model export`.")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the public key: %w", err)
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return nil, fault.New(fault.Invalid, "the public key is a %T, and must be an ECDSA key", parsed)
	}
	if hashOf(public.Curve, nil) == nil {
		return nil, fault.New(fault.Invalid, "the public key has the curve %s, and must have P-256, P-384 or P-521", public.Params().Name)
	}
	return public, nil
}

// hashOf is the hash that goes with a curve, as sigstore has it; nil: none.
func hashOf(c elliptic.Curve, b []byte) []byte {
	switch c {
	case elliptic.P256():
		h := sha256.Sum256(b)
		return h[:]
	case elliptic.P384():
		h := sha512.Sum384(b)
		return h[:]
	case elliptic.P521():
		h := sha512.Sum512(b)
		return h[:]
	}
	return nil
}

// openExternalBundle is openBundle for keys that are not ours. The tool's first releases
// named no key; then the signature alone says whose it is.
func openExternalBundle(bundle []byte, keyID string, public *ecdsa.PublicKey) (statement, error) {
	return checkBundle(bundle, public, func(hint string) bool { return hint == keyID || hint == "" }, "another key than the one given")
}

// checkBundle checks a bundle's signature and gives its statement.
func checkBundle(bundle []byte, public *ecdsa.PublicKey, ours func(hint string) bool, otherwise string) (statement, error) {
	refuse := func(format string, args ...any) (statement, error) {
		return statement{}, fault.New(fault.Conflict, "the signature "+format, args...)
	}
	if len(bundle) == 0 {
		return refuse("is missing")
	}
	if len(bundle) > maxBundle {
		return refuse("has %d bytes", len(bundle))
	}
	var b bundlepb.Bundle
	if err := protojson.Unmarshal(bundle, &b); err != nil {
		return refuse("is not a sigstore bundle")
	}
	envelope := b.GetDsseEnvelope()
	switch {
	case b.GetMediaType() != bundleType:
		return refuse("has the media type %q", clip(b.GetMediaType()))
	case envelope == nil || len(envelope.GetSignatures()) != 1:
		return refuse("has no DSSE envelope with one signature")
	case envelope.GetPayloadType() != payloadType:
		return refuse("signs a %q", clip(envelope.GetPayloadType()))
	case b.GetVerificationMaterial().GetCertificate() != nil || b.GetVerificationMaterial().GetX509CertificateChain() != nil:
		return refuse("was made with a certificate, and only signatures with a key are supported")
	case b.GetVerificationMaterial().GetPublicKey() == nil || !ours(b.GetVerificationMaterial().GetPublicKey().GetHint()):
		return refuse("was made with %s", otherwise)
	}
	if !ecdsa.VerifyASN1(public, hashOf(public.Curve, pae(envelope.GetPayload())), envelope.GetSignatures()[0].GetSig()) {
		return refuse("does not match its payload")
	}
	var st statement
	if err := json.Unmarshal(envelope.GetPayload(), &st); err != nil {
		return refuse("does not sign an in-toto statement")
	}
	if st.Type != statementType || st.PredicateType != predicateType || len(st.Subject) != 1 {
		return refuse("signs a statement of another type")
	}
	return st, nil
}

// Archive writes a version for verifiers elsewhere, as a tar archive: its files below
// model/, the signature as model.sig and the public key as key.pub. What is written is
// checked on the way; the archive has no end when a file is not what was signed.
func (v *Verified) Archive(ctx context.Context, w io.Writer) error {
	key, err := v.s.key(ctx, v.Version.Project)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	header := func(name string, size int64) error {
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: v.Version.Created, Format: tar.FormatPAX})
	}
	for _, f := range v.files {
		if err := header("model/"+f.Path, f.Size); err != nil {
			return err
		}
		if err := v.copyTo(ctx, t, f.Path); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name string
		body []byte
	}{{"model.sig", v.Bundle}, {"key.pub", []byte(key.public)}} {
		if err := header(f.name, int64(len(f.body))); err != nil {
			return err
		}
		if _, err := t.Write(f.body); err != nil {
			return err
		}
	}
	return t.Close()
}

func (v *Verified) copyTo(ctx context.Context, w io.Writer, name string) error {
	r, err := v.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}
