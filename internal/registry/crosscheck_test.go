package registry_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// tool is the reference implementation of OpenSSF model signing.
func tool(t *testing.T) func(args ...string) (string, error) {
	t.Helper()
	bin, err := filepath.Abs("../../.tmp/venv/model-signing/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		const how = "model-signing is not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, bin, append([]string{"-m", "model_signing"}, args...)...).CombinedOutput()
		return string(out), err
	}
}

// exported writes a version's archive to a directory.
func exported(t *testing.T, v *registry.Verified) string {
	t.Helper()
	var b bytes.Buffer
	if err := v.Archive(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		put(t, dir, h.Name, string(body))
	}
}

func put(t *testing.T, dir, name, body string) {
	t.Helper()
	at := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

var nested = map[string]string{
	"model.onnx": "onnx bytes", "a/z.bin": "z", "a.txt": "order of a.txt and a/", "A b/ü.json": "{}", "empty": "", "a/b/c/d": "deep",
}

// TestModelSigningTool has the reference implementation verify what we export, and
// refuse what was changed.
func TestModelSigningTool(t *testing.T) {
	run := tool(t)
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{Datasets: []string{"weather@1"}, Residency: residency.Of("AE")}, nested)
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"}); err != nil {
		t.Fatal(err)
	}
	verified, err := w.Files.OpenVerified(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	other, err := w.Files.PublicKey(ctx, "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(dir string)
		args   []string
		want   string // in what it says; empty: it verifies
	}{
		{"as it is", func(string) {}, nil, ""},
		{"changed", func(dir string) { put(t, dir, "model/a/z.bin", "y") }, nil, "a/z.bin"},
		{"added", func(dir string) { put(t, dir, "model/a/new.py", "") }, nil, "a/new.py"},
		{"added and left out", func(dir string) { put(t, dir, "model/cache/x", "") }, []string{"--ignore-paths", "cache"}, ""},
		{"added, and only what was signed counts", func(dir string) { put(t, dir, "model/a/new.py", "") }, []string{"--ignore_unsigned_files"}, ""},
		{"missing", func(dir string) { _ = os.Remove(filepath.Join(dir, "model", "a", "b", "c", "d")) }, nil, "a/b/c/d"},
		{"another key", func(dir string) { put(t, dir, "key.pub", other) }, nil, "Key mismatch"},
		{"another signature", func(dir string) {
			// In base64 every DER sequence begins with M.
			put(t, dir, "model.sig", string(bytes.Replace(verified.Bundle, []byte(`"sig":"M`), []byte(`"sig":"A`), 1)))
		}, nil, "failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := exported(t, verified)
			test.change(dir)
			args := append([]string{"verify", "key", "--signature", filepath.Join(dir, "model.sig"), "--public_key", filepath.Join(dir, "key.pub")}, test.args...)
			for i, a := range args {
				if a == "cache" {
					args[i] = filepath.Join(dir, "model", "cache")
				}
			}
			out, err := run(append(args, filepath.Join(dir, "model"))...)
			if (err == nil) != (test.want == "") || !strings.Contains(out, test.want) {
				t.Errorf("%v, want %q in\n%s", err, test.want, out)
			}
		})
	}
}

// TestVerifyExternalSignature: what the reference implementation signs we verify, on each of its
// curves, and refuse what was changed.
func TestVerifyExternalSignature(t *testing.T) {
	run := tool(t)
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		t.Run(curve.Params().Name, func(t *testing.T) {
			dir := t.TempDir()
			private, sig := filepath.Join(dir, "key.pem"), filepath.Join(dir, "model.sig")
			key := newKey(t, curve, private)
			for name, body := range nested {
				put(t, dir, "model/"+name, body)
			}
			put(t, dir, "model/cache/tmp", "not signed")
			put(t, dir, "model/.gitattributes", "nor is this")
			if out, err := run("sign", "key", "--private_key", private, "--signature", sig, "--ignore-paths", filepath.Join(dir, "model", "cache"), filepath.Join(dir, "model")); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			bundle, err := os.ReadFile(sig)
			if err != nil {
				t.Fatal(err)
			}
			w, ctx := open(t), as(t, "alice")
			if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
				t.Fatal(err)
			}
			with := func(change func(files map[string]string)) error {
				files := map[string]string{"cache/tmp": "anything", ".gitattributes": "anything"}
				maps.Copy(files, nested)
				change(files)
				r := w.logged(t, tracking.Origin{}, files)
				if _, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"}); err != nil {
					t.Fatal(err)
				}
				_, out, err := w.Files.VerifyExternalSignature(ctx, proj, "delay", "latest", bundle, key)
				if err == nil && strings.Join(out.Unsigned, " ") != ".gitattributes cache/tmp" {
					t.Errorf("unsigned are %q", out.Unsigned)
				}
				return err
			}
			if err := with(func(map[string]string) {}); err != nil {
				t.Error(err)
			}
			wantKind(t, with(func(f map[string]string) { f["a/z.bin"] = "y" }), fault.Conflict, "file a/z.bin does not match its signature")
			wantKind(t, with(func(f map[string]string) { f["a/new.py"] = "" }), fault.Conflict, "file a/new.py was not signed")
			wantKind(t, with(func(f map[string]string) { delete(f, "empty") }), fault.Conflict, "file empty was signed and is missing")

			files, _, err := w.Files.Files(ctx, proj, "delay", "1")
			if err != nil {
				t.Fatal(err)
			}
			another := newKey(t, curve, filepath.Join(dir, "other.pem"))
			wantKind(t, errOf(registry.VerifyExternalSignature(bundle, another, files)), fault.Conflict, "another key")
			wantKind(t, errOf(registry.VerifyExternalSignature(bundle, "key", files)), fault.Invalid, "PEM")
			for _, field := range []string{"payload", "sig"} {
				wantKind(t, errOf(registry.VerifyExternalSignature(tampered(t, bundle, field), key, files)), fault.Conflict, "does not match its payload")
			}
		})
	}
}

// newKey writes a private key and gives its public half, both in PEM.
func newKey(t *testing.T, curve elliptic.Curve, file string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

// tampered changes a byte of a field of the envelope.
func tampered(t *testing.T, bundle []byte, field string) []byte {
	t.Helper()
	var b map[string]any
	if err := json.Unmarshal(bundle, &b); err != nil {
		t.Fatal(err)
	}
	in := b["dsseEnvelope"].(map[string]any)
	if field == "sig" {
		in = in["signatures"].([]any)[0].(map[string]any)
	}
	text := []byte(in[field].(string))
	if at := len(text) / 2; text[at] == 'A' {
		text[at] = 'B'
	} else {
		text[at] = 'A'
	}
	in[field] = string(text)
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
