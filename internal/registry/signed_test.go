package registry_test

import (
	"bytes"
	"reflect"
	"regexp"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
)

// TestOpenSigned: who has a signature and the public key knows what was signed, without
// the registry; with another key, or another signature, nothing.
func TestOpenSigned(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	files, bundle, err := w.Files.Files(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Files.PublicKey(ctx, proj)
	if err != nil {
		t.Fatal(err)
	}
	got, err := registry.OpenSigned(bundle, key)
	if err != nil {
		t.Fatal(err)
	}
	if got.Project != proj || got.Model != "delay" || got.Number != 1 || got.Digest != v.Digest || !got.Residency.Same(residency.Of("AE", "home")) || got.KeyID != v.KeyID || len(got.Files) != len(files) {
		t.Errorf("%+v", got)
	}
	for i, f := range files {
		if got.Files[i].Path != f.Path || got.Files[i].Digest != f.Digest {
			t.Errorf("%+v, not %+v", got.Files[i], f)
		}
	}
	if f, err := got.File("model.onnx"); err != nil || f.Digest == "" {
		t.Error(f, err)
	}
	wantKind(t, errOf(got.File("no.onnx")), fault.NotFound, "no.onnx")

	other, err := w.Files.PublicKey(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(registry.OpenSigned(bundle, other)), fault.Conflict, "another key")
	for name, text := range map[string]string{"no PEM": "key", "two blocks": key + key, "another block": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		if _, err := registry.OpenSigned(bundle, text); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	payload := bytes.Index(bundle, []byte(`"payload":"`)) + len(`"payload":"`)
	for at := payload; at < payload+400; at += 7 { // a letter of what is signed
		changed := bytes.Clone(bundle)
		if changed[at]++; changed[at] == '"' || changed[at] == '\\' {
			continue
		}
		if _, err := registry.OpenSigned(changed, key); !fault.Is(err, fault.Conflict) {
			t.Fatalf("byte %d was changed: %v", at, err)
		}
	}
}

// TestCertificates: a signature with a certificate is told from one with another key.
func TestCertificates(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.registered(t)
	_, bundle, err := w.Files.Files(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.Files.PublicKey(ctx, proj)
	if err != nil {
		t.Fatal(err)
	}
	of := regexp.MustCompile(`"publicKey":\{[^}]*\}`)
	for _, material := range []string{`"certificate":{"rawBytes":"AAAA"}`, `"x509CertificateChain":{"certificates":[{"rawBytes":"AAAA"}]}`} {
		_, _, err := w.Files.VerifyExternalSignature(ctx, proj, "delay", "1", of.ReplaceAll(bundle, []byte(material)), key)
		wantKind(t, err, fault.Conflict, "was made with a certificate")
	}
}

// TestSignedForAName: who knows a model by its name only gets a signature of that name,
// also after it was renamed, and none of what was changed.
func TestSignedForAName(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	key, err := w.Files.PublicKey(ctx, proj)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := w.Files.SignedFor(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	if _, stored, err := w.Files.Files(ctx, proj, "delay", "1"); err != nil || !bytes.Equal(first, stored) {
		t.Errorf("not the signature that is stored, %v", err)
	}
	if _, err := w.Models.RenameModel(ctx, proj, "delay", "late"); err != nil {
		t.Fatal(err)
	}
	files, bundle, err := w.Files.SignedFor(ctx, proj, "late", "1")
	if err != nil || len(files) != len(onnx) {
		t.Fatal(files, err)
	}
	before, err := registry.OpenSigned(first, key)
	if err != nil {
		t.Fatal(err)
	}
	after, err := registry.OpenSigned(bundle, key)
	if err != nil || after.Model != "late" || after.Digest != v.Digest {
		t.Fatal(after, err)
	}
	if after.Model = before.Model; !reflect.DeepEqual(before, after) {
		t.Errorf("%+v, and before %+v", after, before)
	}
	execSQL(t, w, `UPDATE registry_version SET residency = '["US"]'`)
	_, _, err = w.Files.SignedFor(ctx, proj, "late", "1")
	wantKind(t, err, fault.Conflict, "residency")
}

func FuzzOpenSigned(f *testing.F) {
	const key = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGfBCZKQF0Hkdc2bS3ZtHKoWv3gLr\nk4bYw2Kp9d5Oe0JbWl0eV5QO2dTg6m3vYQfF2Lk1p8wHkz0nGd0r4v1hUA==\n-----END PUBLIC KEY-----\n"
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`), key)
	f.Add([]byte(`{}`), "x")
	f.Fuzz(func(t *testing.T, bundle []byte, key string) {
		if s, err := registry.OpenSigned(bundle, key); err == nil && len(s.Files) == 0 && s.Digest == "" {
			t.Errorf("%+v", s)
		}
	})
}

func FuzzVerifyExternalSignature(f *testing.F) {
	const key = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGfBCZKQF0Hkdc2bS3ZtHKoWv3gLr\nk4bYw2Kp9d5Oe0JbWl0eV5QO2dTg6m3vYQfF2Lk1p8wHkz0nGd0r4v1hUA==\n-----END PUBLIC KEY-----\n"
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`), key, "model.onnx")
	f.Fuzz(func(t *testing.T, bundle []byte, key, path string) {
		if out, err := registry.VerifyExternalSignature(bundle, key, []registry.File{{Path: path, Digest: "sha256:00"}}); err == nil {
			t.Errorf("%+v", out)
		}
	})
}
