package registry_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/blob"
	"github.com/falaj-ml/falaj/internal/blob/blobtest"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/registry/registrysql"
	"github.com/falaj-ml/falaj/internal/store"
	"github.com/falaj-ml/falaj/internal/store/storetest"
	"github.com/falaj-ml/falaj/internal/tracking"
	"github.com/falaj-ml/falaj/internal/tracking/trackingsql"
	"github.com/falaj-ml/falaj/internal/tracking/trackingtest"
)

const proj = "flights"

// database is where the tests keep their rows.
var database storetest.Open = storetest.SQLite

// TestPostgreSQL runs what asks the database on PostgreSQL too.
func TestPostgreSQL(t *testing.T) {
	database = storetest.PostgreSQL
	t.Cleanup(func() { database = storetest.SQLite })
	t.Run("register", TestRegisterSignVerify)
	t.Run("search", TestAliasesStagesTagsSearch)
	t.Run("interrupted", TestInterruptedRegistration)
	t.Run("of a job", TestOfJob)
	t.Run("parents", TestParents)
	t.Run("content", TestContent)
	t.Run("two people", TestTwoPeople)
	t.Run("gates", TestGates)
	t.Run("policies", TestPolicies)
	t.Run("copies", TestAuthorsOfCopies)
	t.Run("champion", TestChampionStays)
	t.Run("imports", TestImportCutOff)
}

type world struct {
	registry.Services
	runs    tracking.Services
	db      *store.DB
	objects *blob.Store
	dir     string
	sealer  *blobtest.Sealer
	journal *trackingtest.Journal
	cfg     registry.Config
	authz   trackingtest.Policy
}

func open(t *testing.T) *world {
	t.Helper()
	db := database(t, trackingsql.Migrations, registrysql.Migrations)
	w := &world{db: db, journal: &trackingtest.Journal{}}
	w.objects, w.dir, w.sealer = trackingtest.NewArtifacts(t)
	authz := trackingtest.Policy{
		"alice": {proj: {"*"}, "other": {"*"}},
		"erin":  {proj: {registry.ActionRead, registry.ActionWrite, tracking.ActionRead, tracking.ActionWrite}},
		"vera":  {proj: {registry.ActionRead}},
		"bob":   {proj: {registry.ActionRead, registry.ActionApprove}},
		"carol": {proj: {registry.ActionRead, registry.ActionApprove}},
		"dave":  {proj: {"*"}},

		"model gates":   {proj: {tracking.ActionRead}},
		"model authors": {proj: {tracking.ActionRead}},

		"att_1": {proj: {"*"}},
		"att_2": {proj: {"*"}},
		"loop":  {proj: {"*"}},
	}
	w.runs = tracking.New(tracking.Config{DB: db, Store: trackingsql.Store{}, Objects: w.objects, Journal: w.journal, Authz: authz})
	w.authz = authz
	w.cfg = registry.Config{
		DB: db, Store: registrysql.Store{}, Authz: authz, Journal: w.journal, Runs: w.runs.Runs, LoggedModels: w.runs.LoggedModels, Artifacts: w.runs.Artifacts, Origins: w.runs.Origins, Objects: w.objects, Sealer: w.sealer, MaxSize: 1 << 20,
	}
	w.Services = registry.New(w.cfg)
	return w
}

func as(t *testing.T, who string) context.Context {
	t.Helper()
	kind := identity.User
	switch {
	case strings.HasPrefix(who, "att_"):
		kind = identity.Attempt
	case who == "loop":
		kind = identity.System
	}
	return identity.With(t.Context(), identity.Principal{Kind: kind, ID: who, Project: proj})
}

func wantKind(t *testing.T, err error, kind fault.Kind, text string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v (%v), want %v with %q", err, fault.KindOf(err), kind, text)
	}
}

func errOf[T any](_ T, err error) error { return err }

var onnx = map[string]string{"model.onnx": "onnx bytes", "data/weights.bin": "weights", "MLmodel": "flavors: {}"}

// logged makes a run with a model below "model/".
func (w *world) logged(t *testing.T, origin tracking.Origin, files map[string]string) tracking.Run {
	t.Helper()
	ctx := as(t, "alice")
	r, err := w.runs.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range files {
		if _, err := w.runs.Artifacts.PutArtifact(ctx, proj, tracking.Place{Run: r.ID}, "model/"+name, strings.NewReader(body)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// registered makes model "delay" with one version.
func (w *world) registered(t *testing.T) registry.Version {
	t.Helper()
	ctx := as(t, "alice")
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil && !fault.Is(err, fault.Conflict) {
		t.Fatal(err)
	}
	r := w.logged(t, tracking.Origin{Job: "job_1", Attempt: "att_1", Datasets: []string{"weather@1"}, FeatureViews: []string{"weather@3"}, Residency: residency.Of("AE", "home")}, onnx)
	v, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model", Run: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestParents: what a version was made from is signed, and a copy has it, too.
func TestParents(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	first := w.registered(t)
	r := w.logged(t, tracking.Origin{Job: "job_2"}, onnx)
	v, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model", Parents: []string{first.String()}})
	if err != nil {
		t.Fatal(err)
	}
	copied, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/delay/" + strconv.Itoa(v.Number)})
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/delay/3", Parents: []string{"delay@1", "delay@3"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		registry.Version
		parents []string
	}{{v, []string{"delay@1"}}, {copied, []string{"delay@1", "delay@2"}}, {again, []string{"delay@1", "delay@2", "delay@3"}}} {
		v := want.Version
		if !slices.Equal(v.Parents, want.parents) {
			t.Errorf("%v was made from %q", v, v.Parents)
		}
		if _, err := w.Files.Verify(ctx, proj, "delay", strconv.Itoa(v.Number)); err != nil {
			t.Error(err)
		}
	}
	if len(first.Parents) != 0 {
		t.Errorf("%v was made from %q", first, first.Parents)
	}
}

// TestOfJob: a version is of a job when jobs wrote all of its files; that the run
// is a job's says nothing of who put a file there.
func TestOfJob(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	r := w.logged(t, tracking.Origin{Job: "job_1", Attempt: "att_1"}, nil)
	source := "runs:/" + string(r.ID) + "/model"
	for _, step := range []struct {
		who, file string
		want      bool
	}{
		{"att_1", "model.onnx", true},
		{"loop", "MLmodel", true},
		{"alice", "model.onnx", false},
		{"att_1", "model.onnx", true},
		{"alice", "README.md", false},
	} {
		if _, err := w.runs.Artifacts.PutArtifact(as(t, step.who), proj, tracking.Place{Run: r.ID}, "model/"+step.file, strings.NewReader(step.who)); err != nil {
			t.Fatal(err)
		}
		v, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: source})
		if err != nil {
			t.Fatal(err)
		}
		copied, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/delay/" + strconv.Itoa(v.Number)})
		if err != nil {
			t.Fatal(err)
		}
		if v.OfJob != step.want || copied.OfJob != step.want || v.Job != "job_1" {
			t.Errorf("after %s wrote %s: %v, its copy %v, of run %q", step.who, step.file, v.OfJob, copied.OfJob, v.Job)
		}
	}
	execSQL(t, w, "UPDATE registry_version SET of_job = TRUE")
	_, err := w.Files.OpenVerified(ctx, proj, "delay", "9")
	wantKind(t, err, fault.Conflict, "of_job")
}

func TestRegisterSignVerify(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	if v.Number != 1 || v.State != registry.Ready || v.Residency.String() != "AE, home" || v.Job != "job_1" || len(v.Datasets) != 1 {
		t.Fatalf("version %+v", v)
	}
	verified, err := w.Files.OpenVerified(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range verified.Files() {
		b, err := verified.ReadFile(ctx, f.Path, 1000)
		if err != nil {
			t.Fatal(err)
		}
		got[f.Path] = string(b)
	}
	if diff := cmp.Diff(onnx, got); diff != "" {
		t.Error(diff)
	}
	wantKind(t, errOf(verified.ReadFile(ctx, "model.onnx", 3)), fault.TooLarge, "more than 3 bytes")
	wantKind(t, errOf(verified.Open(ctx, "../model.onnx")), fault.NotFound, "has no file")

	// The run's files may change; the version's do not.
	if _, err := w.runs.Artifacts.PutArtifact(ctx, proj, tracking.Place{Run: v.Run}, "model/model.onnx", strings.NewReader("other")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Files.Verify(ctx, proj, "delay", "latest"); err != nil {
		t.Error(err)
	}
	if _, err := w.Models.RenameModel(ctx, proj, "delay", "arrival delay"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Files.Verify(ctx, proj, "arrival delay", "1"); err != nil {
		t.Error("after a rename:", err)
	}
	events, _, err := w.db.ReadStream(t.Context(), "event", store.Position{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if last := events[len(events)-1]; last.Kind != registry.EventVersionCreated || !strings.Contains(string(last.Body), v.Digest) {
		t.Errorf("last event %s %s", last.Kind, last.Body)
	}
}

func object(t *testing.T, w *world, v registry.Version, name string) (file string, ref blob.Ref) {
	t.Helper()
	ctx := as(t, "alice")
	files, _, err := w.Files.Files(ctx, proj, v.Model, "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Path != name {
			continue
		}
		hex := strings.TrimPrefix(f.Digest, "sha256:")
		found := trackingtest.Objects(t, w.dir, hex)
		if len(found) != 1 {
			t.Fatalf("objects of %s: %v", name, found)
		}
		return found[0], blob.Ref{Project: proj, Owner: "model/" + string(v.ModelID), Key: blob.Key("projects/" + proj + "/models/" + string(v.ModelID) + "/v1/" + hex)}
	}
	t.Fatalf("no file %s", name)
	return "", blob.Ref{}
}

func execSQL(t *testing.T, w *world, query string, args ...any) {
	t.Helper()
	err := w.db.Update(t.Context(), "", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(query, args...).Exec(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTampered changes what is stored in every way that someone with the disk,
// the database or even the storage keys could, and wants each refused.
func TestTampered(t *testing.T) {
	tests := []struct {
		name   string
		tamper func(t *testing.T, w *world, v registry.Version)
		want   string
	}{
		{"a byte on disk", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			file, _ := object(t, w, v, "model.onnx")
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "file model.onnx of model delay@1 does not match its signature"},
		{"cut off", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			file, _ := object(t, w, v, "data/weights.bin")
			if err := os.Truncate(file, 10); err != nil {
				t.Fatal(err)
			}
		}, "file data/weights.bin of model delay@1 does not match its signature"},
		{"gone", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			file, _ := object(t, w, v, "MLmodel")
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}, "file MLmodel of model delay@1 is missing from storage"},
		{"replaced with the storage keys", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			_, ref := object(t, w, v, "model.onnx")
			if _, err := w.objects.Put(t.Context(), ref, strings.NewReader("evil bytes")); err != nil {
				t.Fatal(err)
			}
		}, "file model.onnx of model delay@1 does not match its signature: it has the digest"},
		{"digest in the database", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "UPDATE registry_file SET digest = ? WHERE path = 'model.onnx'", "sha256:"+strings.Repeat("0", 64))
		}, "file model.onnx is recorded with the digest"},
		{"two files swapped", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "UPDATE registry_file SET object = (SELECT o.object FROM registry_file o WHERE o.path = 'MLmodel') WHERE path = 'model.onnx'")
		}, "file model.onnx of model delay@1 does not match its signature"},
		{"file removed from the record", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "DELETE FROM registry_file WHERE path = 'model.onnx'")
		}, "model.onnx was signed and is missing"},
		{"file added to the record", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "INSERT INTO registry_file (model, number, path, size, digest, object) SELECT model, number, 'zz.pkl', size, digest, object FROM registry_file WHERE path = 'MLmodel'")
		}, "file zz.pkl was not signed"},
		{"label widened", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, `UPDATE registry_version SET residency = '["AE","DE","home"]'`)
		}, "does not match its signature: residency"},
		{"lineage changed", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, `UPDATE registry_version SET datasets = '["clean@1"]'`)
		}, "does not match its signature: datasets"},
		{"signature of another version", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			w.registered(t)
			execSQL(t, w, "UPDATE registry_version SET signature = (SELECT o.signature FROM registry_version o WHERE o.number = 2)")
		}, "does not match its signature"},
		{"signature with another key", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "DELETE FROM registry_key")
		}, "was made with another key"},
		{"payload changed", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			forge(t, w, func(payload []byte) []byte {
				return bytes.Replace(payload, []byte(`"weather@1"`), []byte(`"weather@2"`), 1)
			})
		}, "the signature does not match its payload"},
		{"signature removed", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "UPDATE registry_version SET signature = NULL")
		}, "the signature is missing"},
		{"signature is garbage", func(t *testing.T, w *world, v registry.Version) {
			t.Helper()
			execSQL(t, w, "UPDATE registry_version SET signature = ?", []byte("{"))
		}, "is not a sigstore bundle"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, ctx := open(t), as(t, "alice")
			v := w.registered(t)
			tt.tamper(t, w, v)
			before := len(w.journal.Entries())
			_, err := w.Files.OpenVerified(ctx, proj, "delay", "1")
			wantKind(t, err, fault.Conflict, tt.want)
			if fault.HintOf(err) == "" {
				t.Error("the error does not say what to do")
			}
			entries := w.journal.Entries()
			if len(entries) != before+1 || entries[before].Outcome != "refused" {
				t.Errorf("journal %+v", entries[before:])
			}
		})
	}
}

// forge rewrites the signed payload and keeps the signature.
func forge(t *testing.T, w *world, change func([]byte) []byte) {
	t.Helper()
	_, bundle, err := w.Files.Files(as(t, "alice"), proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	var b map[string]any
	if err := json.Unmarshal(bundle, &b); err != nil {
		t.Fatal(err)
	}
	envelope := b["dsseEnvelope"].(map[string]any)
	payload, err := base64.StdEncoding.DecodeString(envelope["payload"].(string))
	if err != nil {
		t.Fatal(err)
	}
	changed := change(payload)
	if bytes.Equal(changed, payload) {
		t.Fatal("the forgery changes nothing")
	}
	envelope["payload"] = base64.StdEncoding.EncodeToString(changed)
	out, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	execSQL(t, w, "UPDATE registry_version SET signature = ?", out)
}

func TestTamperedWhileItIsRead(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	verified, err := w.Files.OpenVerified(ctx, proj, "delay", "1")
	if err != nil {
		t.Fatal(err)
	}
	_, ref := object(t, w, v, "model.onnx")
	if _, err := w.objects.Put(ctx, ref, strings.NewReader("evil bytes")); err != nil {
		t.Fatal(err)
	}
	r, err := verified.Open(ctx, "model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := len(w.journal.Entries())
	_, err = io.ReadAll(r)
	wantKind(t, err, fault.Conflict, "file model.onnx of model delay@1 does not match its signature")
	if !strings.Contains(fault.HintOf(err), "register the model again") {
		t.Errorf("no word on what to do: %v", err)
	}
	// A download is no other.
	download, _, err := w.Files.OpenFile(ctx, proj, "delay", "1", "model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	defer download.Close()
	_, err = io.ReadAll(download)
	wantKind(t, err, fault.Conflict, "model delay@1 failed verification")
	if entries := w.journal.Entries()[before:]; len(entries) != 2 || entries[1].Action != "model.verify" {
		t.Errorf("journal %+v", entries)
	}
	wantKind(t, errOf(verified.ReadFile(ctx, "model.onnx", 1<<10)), fault.Conflict, "does not match its signature")
}

// TestSources is the attack list on the source of a version.
func TestSources(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, onnx)
	empty, err := w.runs.Runs.CreateRun(ctx, proj, tracking.RunSpec{}, tracking.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.runs.LoggedModels.CreateLoggedModel(ctx, proj, tracking.LoggedModelSpec{Name: "lm", Run: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.runs.Artifacts.PutArtifact(ctx, proj, tracking.Place{Model: m.ID}, "model.onnx", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "models:/" + string(m.ID)})), fault.Conflict, "is not ready")
	if _, err := w.runs.LoggedModels.FinalizeLoggedModel(ctx, proj, m.ID, tracking.ModelReady); err != nil {
		t.Fatal(err)
	}
	run, model := string(r.ID), string(m.ID)
	bad := []string{
		"", "/etc/passwd", "etc/passwd", "../../etc/passwd", "file:///etc/passwd", "file:/etc", "FILE:///etc", "C:/x", `\\host\share`,
		"http:///#/../../etc/", "http://evil/x", "https://evil/x?a#b", "s3://bucket/x", "dbfs:/x", "ftp://x/y", "mlflow-artifacts://host/0/" + run + "/artifacts/model",
		"mlflow-artifacts:/../../etc", "mlflow-artifacts:/0/" + run + "/artifacts/../../x", "mlflow-artifacts:/0/" + run + "/artifacts/%2e%2e/x",
		"mlflow-artifacts:/0/" + run + "/artifacts/model#/../../etc", "mlflow-artifacts:/0/" + run + "/artifacts/model?x", "mlflow-artifacts:/0/" + run,
		"runs:/" + run + "/../x", "runs:/" + run + "/a/../../x", "runs:/../x", "runs:/run_x/model", "runs://host/" + run + "/model", "runs:/" + run + "//model",
		"runs:/" + run + "/model\x00", "models:/../x", "models:/a b/../1", "models://host/x", "models:/delay/1/../2", "models:/delay/01", "models:/delay/one", "models:/m_zzz",
		"models:/..@champion", "mlflow-artifacts:/registry/../1", "runs:/" + run + "/" + strings.Repeat("x", 3000), "relative/path/model", "model", ".", "#", "?",
	}
	for _, source := range bad {
		t.Run(source[:min(len(source), 60)], func(t *testing.T) {
			err := errOf(w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: source}))
			wantKind(t, err, fault.Invalid, "")
		})
	}
	mismatched := []registry.VersionSpec{
		{Source: "runs:/" + run + "/model", Run: empty.ID},
		{Source: "models:/" + model, LoggedModel: "m_01J9Z6AAAAAAAAAAAAAAAAAAAA"},
		{Source: "runs:/" + run + "/absent", Run: r.ID},
		{Source: "runs:/" + string(empty.ID), Run: empty.ID},
	}
	for _, spec := range mismatched {
		wantKind(t, errOf(w.Versions.CreateVersion(ctx, proj, "delay", spec)), fault.Invalid, "Invalid model version source")
	}
	wantKind(t, errOf(w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/run_01J9Z6AAAAAAAAAAAAAAAAAAAA/model"})), fault.NotFound, "not found")
	wantKind(t, errOf(w.Versions.CreateVersion(ctx, "other", "delay", registry.VersionSpec{Source: "runs:/" + run + "/model"})), fault.NotFound, "not found")
	if versions, _, err := w.Versions.SearchVersions(ctx, proj, registry.Search{Max: 10}); err != nil || len(versions) != 0 {
		t.Fatalf("refused sources left versions: %v %v", versions, err)
	}

	good := map[string]map[string]string{
		"runs:/" + run + "/model":                                       onnx,
		"runs:/" + run + "/model/model.onnx":                            {"model.onnx": "onnx bytes"},
		"runs:/" + run:                                                  {"model/model.onnx": "onnx bytes", "model/data/weights.bin": "weights", "model/MLmodel": "flavors: {}"},
		"mlflow-artifacts:/0/" + run + "/artifacts/model/data":          {"weights.bin": "weights"},
		"models:/" + model:                                              {"model.onnx": "x"},
		"mlflow-artifacts:/0/models/" + model + "/artifacts":            {"model.onnx": "x"},
		"mlflow-artifacts:/0/models/" + model + "/artifacts/model.onnx": {"model.onnx": "x"},
	}
	for source, want := range good {
		t.Run(source, func(t *testing.T) {
			v, err := w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: source})
			if err != nil {
				t.Fatal(err)
			}
			files, _, err := w.Files.Files(ctx, proj, "delay", itoa(v.Number))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, f := range files {
				r, _, err := w.Files.OpenFile(ctx, proj, "delay", itoa(v.Number), f.Path)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(r)
				r.Close()
				if err != nil {
					t.Fatal(err)
				}
				got[f.Path] = string(b)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	// A version can be the source of another model's.
	if _, err := w.Models.CreateModel(ctx, proj, "copy", "", nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Models.SetAlias(ctx, proj, "delay", "champion", 1); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"models:/delay/1", "models:/delay@champion"} {
		if _, err := w.Versions.CreateVersion(ctx, proj, "copy", registry.VersionSpec{Source: source}); err != nil {
			t.Error(source, err)
		}
	}
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

func TestNames(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	for _, name := range []string{"", " ", "\t", ".", "..", "..x", "a/b", "a:b", "../x", "id:x", "a\x00", "a\nb", "a\x1b[31m", "\xff", "delay@3", "a@b@12", strings.Repeat("x", 257), strings.Repeat("ü", 257)} {
		wantKind(t, errOf(w.Models.CreateModel(ctx, proj, name, "", nil)), fault.Invalid, "")
		wantKind(t, errOf(w.Models.Model(ctx, proj, name)), fault.Invalid, "")
	}
	source := "runs:/" + string(w.logged(t, tracking.Origin{}, onnx).ID) + "/model"
	// What MLflow's server takes is taken, found again, and has versions with files.
	for _, name := range []string{
		"delay", "Flight Delay v2", "sk-learn_reg.model", "نموذج التأخر", "Modèle de retard", "遅延モデル", "delay (v2)", "_candidate", "team@delay", "@", "a@", "R&D delay", "delay [test]",
		".hidden", "a..b", "-x", " x", "x ", "x.", "%2e%2e", "100%", "a#b?c", `a\b`, "a;b", "it's", `"x"`, strings.Repeat("x", 256), strings.Repeat("ü", 256),
	} {
		if _, err := w.Models.CreateModel(ctx, proj, name, "", nil); err != nil {
			t.Error(name, err)
			continue
		}
		v, err := w.Versions.CreateVersion(ctx, proj, name, registry.VersionSpec{Source: source})
		if err != nil {
			t.Error(name, err)
			continue
		}
		found, _, err := w.Versions.SearchVersions(ctx, proj, registry.Search{Filter: "name = '" + strings.ReplaceAll(name, "'", "''") + "'", Max: 10})
		if err != nil || len(found) != 1 || found[0].Model != name {
			t.Errorf("%s: the search found %v %v", name, found, err)
		}
		if base, number, given := registry.SplitRef(v.String()); base != name || number != "1" || !given {
			t.Errorf("%s became %q, %q of %s", name, base, number, v)
		}
		if err := w.Models.SetAlias(ctx, proj, name, "gewählt_البطل-1", 1); err != nil {
			t.Error(name, err)
		}
		// A copy by number, by alias and by the address of the files.
		for _, source := range []string{"models:/" + name + "/1", "models:/" + name + "@gewählt_البطل-1", v.Address()} {
			src, err := registry.ParseSource(source, "", "")
			if err != nil {
				t.Error(source, err)
				continue
			}
			ref := src.Alias
			if ref == "" {
				ref = itoa(src.Version)
			}
			got, err := w.Versions.Version(ctx, proj, src.Model, ref)
			if err != nil || got.String() != v.String() {
				t.Errorf("%s is %s, %v, want %s", source, got, err, v)
			}
		}
		if address := v.Address(); strings.ContainsAny(address, "%?#;\\") {
			t.Errorf("%s has its files at %s", name, address)
		}
	}
	wantKind(t, errOf(w.Models.CreateModel(ctx, proj, "delay", "", nil)), fault.Conflict, "Registered Model (name=delay) already exists")
	wantKind(t, errOf(w.Models.CreateModel(ctx, proj, "p", "", []tracking.Pair{{Key: "mlflow.prompt.is_prompt", Value: "true"}})), fault.Unsupported, "prompts")
}

// TestVersionsMoveTheirModel: a model was last updated when a version of it was made, moved to
// a stage, or deleted; tags and aliases do not count, as MLflow has it.
func TestVersionsMoveTheirModel(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	v := w.registered(t)
	updated := func(what string, want time.Time) {
		t.Helper()
		m, err := w.Models.Model(ctx, proj, "delay")
		if err != nil || !m.Updated.Equal(want) {
			t.Errorf("%s: the model was updated at %s, its version at %s (%v)", what, m.Updated, want, err)
		}
	}
	updated("created", v.Created)
	v, err := w.Versions.Transition(ctx, proj, "delay", 1, registry.StageStaging, false)
	if err != nil {
		t.Fatal(err)
	}
	updated("moved", v.Updated)
	if _, err := w.Versions.DescribeVersion(ctx, proj, "delay", 1, "this changes the version alone"); err != nil {
		t.Fatal(err)
	}
	updated("described", v.Updated)
	before, _ := w.Versions.Version(ctx, proj, "delay", "1")
	for what, err := range map[string]error{
		"version's tag": w.Versions.SetVersionTag(ctx, proj, "delay", 1, tracking.Pair{Key: "k", Value: "v"}), "no version's tag": w.Versions.DeleteVersionTag(ctx, proj, "delay", 1, "k"),
		"tag": w.Models.SetModelTag(ctx, proj, "delay", tracking.Pair{Key: "k", Value: "v"}), "no tag": w.Models.DeleteModelTag(ctx, proj, "delay", "k"),
		"alias": w.Models.SetAlias(ctx, proj, "delay", "a", 1), "no alias": w.Models.DeleteAlias(ctx, proj, "delay", "a"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	updated("tagged and aliased", v.Updated)
	if after, err := w.Versions.Version(ctx, proj, "delay", "1"); err != nil || !after.Updated.Equal(before.Updated) {
		t.Errorf("tagged and aliased: the version was updated at %s, before at %s (%v)", after.Updated, before.Updated, err)
	}
	if m, err := w.Models.DescribeModel(ctx, proj, "delay", "this changes the model"); err != nil || !m.Updated.After(v.Updated) {
		t.Errorf("described: the model was updated at %s, before at %s (%v)", m.Updated, v.Updated, err)
	}
	if m, err := w.Models.RenameModel(ctx, proj, "delay", "delay2"); err != nil || !m.Updated.After(v.Updated) {
		t.Errorf("renamed: the model was updated at %s, before at %s (%v)", m.Updated, v.Updated, err)
	}
	if _, err := w.Models.RenameModel(ctx, proj, "delay2", "delay"); err != nil {
		t.Fatal(err)
	}
	if err := w.Versions.DeleteVersion(ctx, proj, "delay", 1); err != nil {
		t.Fatal(err)
	}
	if m, err := w.Models.Model(ctx, proj, "delay"); err != nil || !m.Updated.After(v.Updated) {
		t.Errorf("deleted: the model was updated at %s, before at %s (%v)", m.Updated, v.Updated, err)
	}
}

// TestVersionsInOrder: what is equal in what it is ordered by comes by name, then by number,
// the highest first, as MLflow has it.
func TestVersionsInOrder(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	source := "runs:/" + string(w.logged(t, tracking.Origin{}, onnx).ID) + "/model"
	for _, name := range []string{"c", "a", "b", "a"} {
		if _, err := w.Models.CreateModel(ctx, proj, name, "", nil); err != nil && !fault.Is(err, fault.Conflict) {
			t.Fatal(err)
		}
		if _, err := w.Versions.CreateVersion(ctx, proj, name, registry.VersionSpec{Source: source}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ by, want string }{
		{"", "a@2 b@1 a@1 c@1"}, {"version_number ASC", "a@1 b@1 c@1 a@2"}, {"version_number DESC", "a@2 a@1 b@1 c@1"}, {"name DESC", "c@1 b@1 a@2 a@1"}, {"name ASC", "a@2 a@1 b@1 c@1"},
	} {
		in := registry.Search{Max: 10}
		if tt.by != "" {
			in.OrderBy = []string{tt.by}
		}
		found, _, err := w.Versions.SearchVersions(ctx, proj, in)
		var names []string
		for _, v := range found {
			names = append(names, v.String())
		}
		if got := strings.Join(names, " "); err != nil || got != tt.want {
			t.Errorf("by %q: %s (%v), want %s", tt.by, got, err, tt.want)
		}
	}
}

// TestInUse: what something runs is neither deleted nor renamed, and the files
// stay; without a user it is.
func TestInUse(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	user := "deployment late"
	w.cfg.Users = func(_ context.Context, _ *store.Tx, p project.Name, model string, number int) (string, error) {
		if p != proj || model != "delay" {
			t.Errorf("asked for %s in %s", model, p)
		}
		if number == 2 {
			return "", nil
		}
		return user, nil
	}
	w.Services = registry.New(w.cfg)
	w.registered(t)
	w.registered(t)
	wantKind(t, w.Versions.DeleteVersion(ctx, proj, "delay", 1), fault.Conflict, "model delay@1 is in use by deployment late")
	wantKind(t, w.Models.DeleteModel(ctx, proj, "delay"), fault.Conflict, "in use by deployment late")
	wantKind(t, errOf(w.Models.RenameModel(ctx, proj, "delay", "other")), fault.Conflict, "model delay is in use")
	if _, err := w.Files.Verify(ctx, proj, "delay", "1"); err != nil {
		t.Error(err)
	}
	if err := w.Versions.DeleteVersion(ctx, proj, "delay", 2); err != nil {
		t.Error(err)
	}
	user = ""
	if err := w.Versions.DeleteVersion(ctx, proj, "delay", 1); err != nil {
		t.Error(err)
	}
}

func TestAliasesStagesTagsSearch(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.registered(t)
	w.registered(t)
	for _, alias := range []string{"", "latest", "LATEST", "v1", "V22", "v٢", "a b", "a/b", "../x", "a@b", strings.Repeat("x", 256), strings.Repeat("ü", 256)} {
		wantKind(t, w.Models.SetAlias(ctx, proj, "delay", alias, 1), fault.Invalid, "")
	}
	wantKind(t, w.Models.SetAlias(ctx, proj, "delay", "champion", 9), fault.NotFound, "Model Version (name=delay, version=9) not found")
	for _, n := range []int{1, 2} {
		if err := w.Models.SetAlias(ctx, proj, "delay", "champion", n); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Models.SetAlias(ctx, proj, "delay", "1", 2); err != nil {
		t.Fatal(err)
	}
	if v, err := w.Versions.ByAlias(ctx, proj, "delay", "1"); err != nil || v.Number != 2 {
		t.Errorf("the alias 1 is of %s, %v", v, err)
	}
	wantKind(t, errOf(w.Versions.ByAlias(ctx, proj, "delay", "2")), fault.NotFound, "Registered model alias 2 not found.")
	v, err := w.Versions.Version(ctx, proj, "delay", "champion")
	if err != nil || v.Number != 2 {
		t.Fatalf("champion %v %v", v, err)
	}
	wantKind(t, errOf(w.Versions.Version(ctx, proj, "delay", "absent")), fault.NotFound, "Registered model alias absent not found.")
	if _, err := w.Versions.Transition(ctx, proj, "delay", 1, registry.StageProduction, false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Versions.Transition(ctx, proj, "delay", 2, registry.StageProduction, true); err != nil {
		t.Fatal(err)
	}
	latest, err := w.Versions.LatestVersions(ctx, proj, "delay", nil)
	if err != nil || len(latest) != 2 || latest[0].Stage != registry.StageArchived || latest[1].Number != 2 {
		t.Fatalf("latest %+v %v", latest, err)
	}
	if err := w.Versions.SetVersionTag(ctx, proj, "delay", 2, tracking.Pair{Key: "auc", Value: "0.9"}); err != nil {
		t.Fatal(err)
	}
	if err := w.Models.SetModelTag(ctx, proj, "delay", tracking.Pair{Key: "team", Value: "ops"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Models.CreateModel(ctx, proj, "other", "", nil); err != nil {
		t.Fatal(err)
	}
	for filter, want := range map[string]int{
		"": 2, "name = 'delay'": 1, "name LIKE 'D%'": 0, "name ILIKE 'D%'": 1, "tags.team = 'ops'": 1,
		"tags.`mlflow.prompt.is_prompt` != 'true'": 2, "name IN ('delay', 'x') AND tag.team LIKE 'o%'": 1,
	} {
		found, _, err := w.Models.SearchModels(ctx, proj, registry.Search{Filter: filter, Max: 10, OrderBy: []string{"name DESC"}})
		if err != nil || len(found) != want {
			t.Errorf("models %s: %d %v, want %d", filter, len(found), err, want)
		}
	}
	for filter, want := range map[string]int{"": 2, "name = 'delay' AND version_number > 1": 1, "tags.auc = '0.9'": 1, "run_id = 'x'": 0, "source_path LIKE 'runs:/%'": 2} {
		found, _, err := w.Versions.SearchVersions(ctx, proj, registry.Search{Filter: filter, Max: 10, OrderBy: []string{"version_number ASC"}})
		if err != nil || len(found) != want {
			t.Errorf("versions %s: %d %v, want %d", filter, len(found), err, want)
		}
	}
	if err := w.Versions.DeleteVersion(ctx, proj, "delay", 2); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Versions.Version(ctx, proj, "delay", "2")), fault.NotFound, "not found")
	wantKind(t, errOf(w.Versions.Version(ctx, proj, "delay", "champion")), fault.NotFound, "alias")
	if objects := trackingtest.Objects(t, w.dir, "/v2/"); len(objects) != 0 {
		t.Errorf("files of a deleted version: %v", objects)
	}
	if v := w.registered(t); v.Number != 3 {
		t.Errorf("a deleted number was given again: %d", v.Number)
	}
	if err := w.Models.DeleteModel(ctx, proj, "delay"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Models.Model(ctx, proj, "delay")), fault.NotFound, "Registered Model with name=delay not found")
	if objects := trackingtest.Objects(t, w.dir, "/models/"); len(objects) != 0 {
		t.Errorf("files of a deleted model: %v", objects)
	}
}

func TestPermissions(t *testing.T) {
	w := open(t)
	v := w.registered(t)
	erin, vera := as(t, "erin"), as(t, "vera")
	wantKind(t, w.Models.SetAlias(erin, proj, "delay", "champion", 1), fault.PermissionDenied, "model.promote")
	wantKind(t, errOf(w.Versions.Transition(erin, proj, "delay", 1, registry.StageProduction, false)), fault.PermissionDenied, "model.promote")
	if _, err := w.Files.Verify(vera, proj, "delay", "1"); err != nil {
		t.Error("a viewer verifies:", err)
	}
	for name, err := range map[string]error{
		"create":  errOf(w.Models.CreateModel(vera, proj, "x", "", nil)),
		"version": errOf(w.Versions.CreateVersion(vera, proj, "delay", registry.VersionSpec{Source: "/etc/passwd"})),
		"rename":  errOf(w.Models.RenameModel(vera, proj, "delay", "x")),
		"tag":     w.Models.SetModelTag(vera, proj, "delay", tracking.Pair{Key: "a", Value: "b"}),
		"delete":  w.Versions.DeleteVersion(vera, proj, "delay", 1),
		"unalias": w.Models.DeleteAlias(vera, proj, "delay", "champion"),
		"nobody":  errOf(w.Versions.Version(t.Context(), proj, "delay", "1")),
		"empty":   errOf(w.Versions.Version(as(t, "alice"), "", "delay", "1")),
	} {
		if !fault.Is(err, fault.PermissionDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantKind(t, errOf(w.Versions.Version(as(t, "alice"), "other", "delay", "1")), fault.NotFound, "not found")
	_ = v
}

// TestAttempts holds that an attempt's version carries its label and that it may
// not change others.
func TestAttempts(t *testing.T) {
	w := open(t)
	v := w.registered(t) // made by att_1's run, for AE and home
	w.logged(t, tracking.Origin{Attempt: "att_2", Residency: residency.Of("DE", "home")}, nil)
	// What an attempt registers of another's is as confidential as what it read itself.
	w.logged(t, tracking.Origin{Attempt: "att_3", Residency: residency.Of("AE", "home"), Classification: "confidential"}, nil)
	w.authz["att_3"] = map[string][]policy.Action{proj: {"*"}}
	if v, err := w.Versions.CreateVersion(as(t, "att_3"), proj, "delay", registry.VersionSpec{Source: v.Source}); err != nil || v.Classification != "confidential" {
		t.Errorf("%+v %v", v, err)
	}
	first, second := as(t, "att_1"), as(t, "att_2")
	if _, err := w.Versions.CreateVersion(first, proj, "delay", registry.VersionSpec{Source: v.Source}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Versions.CreateVersion(second, proj, "delay", registry.VersionSpec{Source: v.Source})), fault.PermissionDenied, "has the residency AE, home")
	wantKind(t, errOf(w.Versions.Version(second, proj, "delay", "1")), fault.PermissionDenied, "has the residency AE, home")
	wantKind(t, w.Versions.SetVersionTag(second, proj, "delay", 1, tracking.Pair{Key: "a", Value: "b"}), fault.PermissionDenied, "another producer")
}

// TestToldOfAliases: who may hear that an alias was set may hear that it went.
func TestToldOfAliases(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	var told []registry.Change
	w.cfg.Told = func(_ context.Context, _ *store.Tx, c registry.Change) error {
		told = append(told, c)
		return nil
	}
	w.Services = registry.New(w.cfg)
	v := w.registered(t)
	told = nil
	if err := errors.Join(w.Models.SetAlias(ctx, proj, "delay", "champion", 1), w.Models.DeleteAlias(ctx, proj, "delay", "champion")); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[1].Kind != registry.AliasDeleted || told[1].Alias != "champion" {
		t.Fatalf("%+v", told)
	}
	for _, c := range told {
		if !slices.Equal(c.Label, v.Residency) {
			t.Errorf("%s: label %v, and the version has %v", c.Kind, c.Label, v.Residency)
		}
	}
}

func TestInterruptedRegistration(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	w.registered(t)
	execSQL(t, w, "UPDATE registry_version SET state = 'pending'")
	wantKind(t, errOf(w.Files.OpenVerified(ctx, proj, "delay", "1")), fault.Conflict, "is pending")
	wantKind(t, w.Versions.DeleteVersion(ctx, proj, "delay", 1), fault.Conflict, "still being registered")
	wantKind(t, w.Models.DeleteModel(ctx, proj, "delay"), fault.Conflict, "still being registered")
	if err := registry.New(w.cfg).Maintenance.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := w.Versions.Version(ctx, proj, "delay", "1")
	if err != nil || v.State != registry.Failed || !strings.Contains(v.Message, "interrupted by a restart") {
		t.Fatalf("version %+v %v", v, err)
	}
	wantKind(t, w.Models.SetAlias(ctx, proj, "delay", "champion", 1), fault.Conflict, "requires a ready version")
	if objects := trackingtest.Objects(t, w.dir, "/models/"); len(objects) != 0 {
		t.Errorf("files of a failed version: %v", objects)
	}
	// What a crash after deleting leaves is swept.
	ref := blob.Ref{Project: proj, Owner: "model/" + string(v.ModelID), Key: blob.Key("projects/" + proj + "/models/" + string(v.ModelID) + "/v1/" + strings.Repeat("0", 64))}
	if _, err := w.objects.Put(ctx, ref, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Maintenance.Sweep(ctx, proj); n != 1 || err != nil {
		t.Errorf("swept %d %v, want 1", n, err)
	}
}

func TestChangedArtifactIsNotRegistered(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, map[string]string{"model.onnx": "x"})
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	execSQL(t, w, "UPDATE tracking_artifact SET digest = ?", "sha256:"+strings.Repeat("0", 64))
	wantKind(t, errOf(w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"})), fault.Invalid, "copying model.onnx")
	v, err := w.Versions.Version(ctx, proj, "delay", "1")
	if err != nil || v.State != registry.Failed || v.Message == "" {
		t.Errorf("version %+v %v", v, err)
	}
}

func TestTooLarge(t *testing.T) {
	w, ctx := open(t), as(t, "alice")
	r := w.logged(t, tracking.Origin{}, map[string]string{"a": strings.Repeat("x", 600_000), "b": strings.Repeat("y", 600_000)})
	if _, err := w.Models.CreateModel(ctx, proj, "delay", "", nil); err != nil {
		t.Fatal(err)
	}
	wantKind(t, errOf(w.Versions.CreateVersion(ctx, proj, "delay", registry.VersionSpec{Source: "runs:/" + string(r.ID) + "/model"})), fault.TooLarge, "1200000 bytes")
}
