package registry

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	bundlepb "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonpb "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	dssepb "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/falaj-ml/falaj/internal/fault"
)

// OpenSSF model signing v1.0: a sigstore bundle holds a DSSE envelope, the
// envelope an in-toto statement, the statement's predicate each file's digest.
// Any verifier of that format checks our signatures, given the public key.
const (
	bundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	payloadType   = "application/vnd.in-toto+json"
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://model_signing/signature/v1.0"
	maxBundle     = 16 << 20
)

type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     predicate `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type predicate struct {
	Serialization serialization `json:"serialization"`
	Resources     []resource    `json:"resources"`
	// Falaj is beyond v1.0, whose verifiers ignore it. Ours holds the version to
	// it, so a signature cannot be moved to another version or label.
	Falaj claims `json:"falaj"`
}

type serialization struct {
	Method        string   `json:"method"`
	HashType      string   `json:"hash_type"`
	AllowSymlinks bool     `json:"allow_symlinks"`
	IgnorePaths   []string `json:"ignore_paths,omitempty"` // of other signers; we sign every file
}

type resource struct {
	Name      string `json:"name"`
	Algorithm string `json:"algorithm"`
	Digest    string `json:"digest"`
}

// claims is what the signature says about a version beside its files.
type claims struct {
	Project        string   `json:"project"`
	ModelID        string   `json:"model_id"`
	Version        int      `json:"version"`
	Source         string   `json:"source"`
	Run            string   `json:"run,omitempty"`
	LoggedModel    string   `json:"logged_model,omitempty"`
	Job            string   `json:"job,omitempty"`
	Attempt        string   `json:"attempt,omitempty"`
	Parents        []string `json:"parents,omitempty"`
	OfJob          bool     `json:"of_job,omitempty"`
	Datasets       []string `json:"datasets,omitempty"`
	TrainedOn      string   `json:"trained_on,omitempty"`
	FeatureViews   []string `json:"feature_views,omitempty"`
	Environment    string   `json:"environment,omitempty"`
	Residency      []string `json:"residency"`
	Classification string   `json:"classification,omitempty"`
}

func claimsOf(v Version) claims {
	c := claims{
		Project: string(v.Project), ModelID: string(v.ModelID), Version: v.Number, Source: v.Source,
		Run: string(v.Run), LoggedModel: string(v.LoggedModel), Job: v.Job, Attempt: v.Attempt, Parents: v.Parents, OfJob: v.OfJob,
		Datasets: v.Datasets, TrainedOn: v.TrainedOn, FeatureViews: v.FeatureViews, Environment: v.Environment, Classification: v.Classification,
	}
	if len(c.Datasets) == 0 { // as JSON gives it back
		c.Datasets = nil
	}
	if len(c.Parents) == 0 {
		c.Parents = nil
	}
	if len(c.FeatureViews) == 0 {
		c.FeatureViews = nil
	}
	for _, z := range v.Residency.Zones() {
		c.Residency = append(c.Residency, string(z))
	}
	return c
}

// statementOf is what is signed of a version. files are in signing order.
func statementOf(v Version, files []File) statement {
	st := statement{
		Type:          statementType,
		Subject:       []subject{{Name: v.Model, Digest: map[string]string{"sha256": strings.TrimPrefix(v.Digest, "sha256:")}}},
		PredicateType: predicateType,
		Predicate: predicate{
			Serialization: serialization{Method: "files", HashType: "sha256"},
			Falaj:         claimsOf(v),
		},
	}
	for _, f := range files {
		st.Predicate.Resources = append(st.Predicate.Resources, resource{
			Name: f.Path, Algorithm: "sha256", Digest: strings.TrimPrefix(f.Digest, "sha256:"),
		})
	}
	return st
}

// comparePaths is the order of the format: part by part.
func comparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// rootDigest is the SHA-256 over the files' digests, in their order.
func rootDigest(files []File) (string, error) {
	h := sha256.New()
	for _, f := range files {
		b, err := hex.DecodeString(strings.TrimPrefix(f.Digest, "sha256:"))
		if err != nil || len(b) != sha256.Size {
			return "", fault.New(fault.Internal, "file %s has the digest %q instead of a SHA-256 digest", f.Path, f.Digest)
		}
		h.Write(b)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// pae is DSSE's pre-authentication encoding.
func pae(payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}

// sign gives the bundle, as JSON.
func (k signingKey) sign(st statement) ([]byte, error) {
	payload, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(pae(payload))
	sig, err := ecdsa.SignASN1(rand.Reader, k.private, digest[:])
	if err != nil {
		return nil, fault.Wrap(err, "signing")
	}
	b := &bundlepb.Bundle{
		MediaType: bundleType,
		VerificationMaterial: &bundlepb.VerificationMaterial{
			Content: &bundlepb.VerificationMaterial_PublicKey{PublicKey: &commonpb.PublicKeyIdentifier{Hint: k.id}},
		},
		Content: &bundlepb.Bundle_DsseEnvelope{DsseEnvelope: &dssepb.Envelope{
			Payload: payload, PayloadType: payloadType, Signatures: []*dssepb.Signature{{Sig: sig}},
		}},
	}
	out, err := protojson.Marshal(b)
	if err != nil {
		return nil, err
	}
	// protojson varies its white space on purpose; stored bytes should not vary.
	var compact bytes.Buffer
	if err := json.Compact(&compact, out); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// openBundle checks a bundle's signature and gives its statement. Error:
// fault.Conflict, saying what is wrong with it.
func openBundle(bundle []byte, keyID string, public *ecdsa.PublicKey) (statement, error) {
	return checkBundle(bundle, public, func(hint string) bool { return hint == keyID }, "another key than the project's")
}
