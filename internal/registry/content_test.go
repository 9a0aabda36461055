package registry_test

import (
	"crypto/elliptic"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/scan"
	"github.com/falaj-ml/falaj/internal/tracking"
)

const (
	evilPickle    = "\x80\x02cos\nsystem\n(U\x04truetR."
	unknownPickle = "\x80\x02cnyc.model\nDelay\n)\x81."
)

// TestContent: what a version's files are is kept with it; what reaches for the system is
// refused when it is registered, whatever its name, and its policy may refuse more or less.
func TestContent(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	register := func(files map[string]string) (registry.Version, error) {
		r := w.logged(t, tracking.Origin{}, files)
		return w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"})
	}
	_, err := register(map[string]string{"a/model.onnx": evilPickle, "MLmodel": "flavors: {}"})
	wantKind(t, err, fault.Invalid, "its files are rejected: a/model.onnx: imports os.system")
	if hint := fault.HintOf(err); !strings.Contains(hint, "ModelPolicy") {
		t.Errorf("hint %q", hint)
	}
	v, err := w.SearchVersionsOf(t, "delay")
	if err != nil || len(v) != 1 || v[0].State != registry.Failed || !strings.Contains(v[0].Message, "os.system") {
		t.Fatalf("%+v, %v", v, err)
	}
	unknown, err := register(map[string]string{"model.pkl": unknownPickle})
	if err != nil || unknown.Content == nil || unknown.Content.Level != scan.Unknown || unknown.Content.Contents[0].Imports[0] != "nyc.model.Delay" {
		t.Fatalf("%+v, %v", unknown.Content, err)
	}
	for content, ok := range map[string]bool{"data": false, "known": false, "unknown": true, "any": true} {
		if _, _, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", registry.PolicySpec{Content: content}, false); err != nil {
			t.Fatal(err)
		}
		_, err := register(map[string]string{"model.pkl": unknownPickle})
		if (err == nil) != ok {
			t.Errorf("%s: %v", content, err)
		}
		_, err = register(map[string]string{"model.pkl": evilPickle})
		if (err == nil) != (content == "any") {
			t.Errorf("%s: %v", content, err)
		}
	}
	// What was registered before there was a scanner is looked at when somebody asks.
	execSQL(t, w, "UPDATE registry_version SET content = ''")
	r, err := w.Files.ContentOf(as(t, "vera"), proj, "delay", "2")
	if err != nil || r.Level != scan.Unknown || r.Files != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if v, err := w.Versions.Version(ctx, proj, "delay", "2"); err != nil || v.Content == nil || v.Content.Level != scan.Unknown {
		t.Errorf("%+v, %v", v.Content, err)
	}
}

// SearchVersionsOf lists a model's versions.
func (w *world) SearchVersionsOf(t *testing.T, name string) ([]registry.Version, error) {
	t.Helper()
	v, _, err := w.Versions.SearchVersions(as(t, "alice"), proj, registry.Search{Filter: "name = '" + name + "'", Max: 100})
	return v, err
}

// TestSigners: a policy that names signers lets only in what the tool of model signing
// signed for one of them, all of it.
func TestSigners(t *testing.T) {
	run := tool(t)
	w, ctx := open(t), as(t, "alice")
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	keys := map[string]string{}
	for _, who := range []string{"vendor", "stranger", "other"} {
		keys[who] = newKey(t, elliptic.P256(), filepath.Join(dir, who+".pem"))
	}
	if _, _, err := w.Approvals.ApplyPolicy(ctx, proj, registry.DefaultPolicy, registry.PolicySpec{Signers: []string{keys["other"], keys["vendor"]}}, false); err != nil {
		t.Fatal(err)
	}
	for name, body := range nested {
		put(t, dir, "model/"+name, body)
	}
	signed := func(who string, args ...string) map[string]string {
		sig := filepath.Join(dir, "model", "model.sig")
		_ = os.Remove(sig)
		args = append([]string{"sign", "key", "--private_key", filepath.Join(dir, who+".pem"), "--signature", sig}, args...)
		if out, err := run(append(args, filepath.Join(dir, "model"))...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		body, err := os.ReadFile(sig)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{"model.sig": string(body)}
		maps.Copy(files, nested)
		return files
	}
	register := func(files map[string]string) error {
		r := w.logged(t, tracking.Origin{}, files)
		_, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"})
		return err
	}
	if err := register(signed("vendor")); err != nil {
		t.Error(err)
	}
	// Another model of the same signer's is another model.
	spec := registry.PolicySpec{Signers: []string{keys["vendor"]}, SignedAs: "bert"}
	if _, _, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", spec, false); err != nil {
		t.Fatal(err)
	}
	wantKind(t, register(signed("vendor")), fault.Invalid, `it was signed as "model", and must be signed as "bert"`)
	spec.SignedAs = "model"
	if _, _, err := w.Approvals.ApplyPolicy(ctx, proj, "delay", spec, false); err != nil {
		t.Fatal(err)
	}
	if err := register(signed("vendor")); err != nil {
		t.Error(err)
	}
	wantKind(t, register(nested), fault.Invalid, "has no file model.sig")
	wantKind(t, register(signed("stranger")), fault.Invalid, "is not signed by a signer of the policy")
	changed := signed("vendor")
	changed["empty"] = "no longer"
	wantKind(t, register(changed), fault.Invalid, "file empty does not match its signature")
	wantKind(t, register(signed("vendor", "--ignore-paths", filepath.Join(dir, "model", "empty"))), fault.Invalid, "does not cover file empty")
}
