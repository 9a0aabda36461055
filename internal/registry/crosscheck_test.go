package registry_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// TestModelSigningTool has the reference implementation of OpenSSF model signing
// verify our signature, and refuse a changed file.
func TestModelSigningTool(t *testing.T) {
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
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{Datasets: []string{"weather@1"}, Residency: residency.Of("AE")}, map[string]string{
		"model.onnx": "onnx bytes", "a/z.bin": "z", "a.txt": "order of a.txt and a/", "A b/ü.json": "{}", "empty": "",
	})
	if _, err := w.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"}); err != nil {
		t.Fatal(err)
	}
	verified, err := w.OpenVerified(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model, sig, pub := filepath.Join(dir, "model"), filepath.Join(dir, "model.sig"), filepath.Join(dir, "key.pub")
	if err := os.Mkdir(model, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range verified.Files() {
		b, err := verified.ReadFile(ctx, f.Path, 1<<10)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(model, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key, err := w.PublicKey(ctx, proj)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{sig: verified.Bundle, pub: []byte(key)} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	verify := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, bin, "-m", "model_signing", "verify", "key", "--signature", sig, "--public_key", pub, model)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(model, "a", "z.bin"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(); err == nil || !strings.Contains(out, "a/z.bin") {
		t.Fatalf("a changed file passes: %v\n%s", err, out)
	}
}
