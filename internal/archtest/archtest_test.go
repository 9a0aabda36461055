package archtest

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/falaj-ml/falaj/"

type pkg struct {
	Path    string   `json:"ImportPath"`
	Dir     string   `json:"Dir"`
	Name    string   `json:"Name"`
	GoFiles []string `json:"GoFiles"`
	Imports []string `json:"Imports"`
}

// load lists our packages, paths relative to the module.
func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,Name,GoFiles,Imports", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.Path = strings.TrimPrefix(p.Path, module)
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 20 {
		t.Fatalf("go list found %d packages", len(pkgs))
	}
	return pkgs
}

// domains in the order in which data flows; each may import those before it.
var domains = []string{
	"scheduler", "compute", "environment", "dataset", "feature", "tracking", "training", "tuning",
	"registry", "serving", "monitoring", "pipeline",
}

var (
	foundation = []string{"store", "blob", "event", "sandbox", "oci", "fault", "resource", "lifecycle", "id", "worker", "machine", "backup", "sketch", "drift", "onnxfile", "repotest", "share", "yamldoc", "membudget", "jsondoc", "outbound", "coding", "filewatch", "fsync", "diskspace", "heap"}
	edges      = []string{"httpapi", "flight", "cli", "console"}
)

const (
	inFoundation = iota
	inGovernance
	inDomain
	inUseCase
	inEdge
	inApp
	inCmd
	outside // client, bench, tests
)

// place is the layer of one of our packages, and the name of its top folder.
func place(path string) (layer int, top string) {
	if strings.HasPrefix(path, "cmd/") {
		return inCmd, ""
	}
	rest, ok := strings.CutPrefix(path, "internal/")
	if !ok {
		return outside, path
	}
	top, _, _ = strings.Cut(rest, "/")
	switch {
	case top == "app", top == "config", top == "doctor": // settings and their checks name drivers, as app does
		return inApp, top
	case slices.Contains(edges, top):
		return inEdge, top
	case top == "usecase":
		return inUseCase, top
	case slices.Contains(domains, top):
		return inDomain, top
	case top == "governance":
		return inGovernance, top
	case slices.Contains(foundation, top):
		return inFoundation, top
	}
	return outside, top
}

func ours(imports []string) []string {
	var out []string
	for _, i := range imports {
		if rest, ok := strings.CutPrefix(i, module); ok {
			out = append(out, rest)
		}
	}
	return out
}

// TestLayers: cmd → app → edges → use cases → domains → governance → foundation, and a
// domain imports only domains before it. The way back is an event.
func TestLayers(t *testing.T) {
	for _, p := range load(t) {
		layer, top := place(p.Path)
		if layer == outside {
			continue
		}
		for _, i := range ours(p.Imports) {
			to, other := place(i)
			switch {
			case to == outside && i == "client" && top == "cli":
			case to == outside && i != "client":
				t.Errorf("%s imports %s, which has no layer: give it one in archtest", p.Path, i)
			case to > layer:
				t.Errorf("%s imports %s: imports go from cmd and app down to foundation, never back; send an event", p.Path, i)
			case layer == inDomain && to == inDomain && slices.Index(domains, other) > slices.Index(domains, top):
				t.Errorf("%s imports %s, which is later in the flow of data: send an event", p.Path, i)
			case layer == inFoundation && to == inGovernance:
				t.Errorf("%s imports %s: foundation imports nothing of ours", p.Path, i)
			}
		}
	}
}

// TestCLIUsesClientOnly keeps the API complete for everybody.
func TestCLIUsesClientOnly(t *testing.T) {
	for _, p := range load(t) {
		if !strings.HasPrefix(p.Path, "internal/cli") {
			continue
		}
		for _, i := range ours(p.Imports) {
			if i != "client" && i != "internal/fault" && i != "internal/resource" && i != "internal/yamldoc" && !strings.HasPrefix(i, "internal/cli") {
				t.Errorf("%s imports %s: the command line reaches a server through client only", p.Path, i)
			}
		}
	}
}

// TestWorkerStaysSmall: it runs on nodes and in images that are not ours, beside
// each job, and starts in milliseconds.
func TestWorkerStaysSmall(t *testing.T) {
	may := regexp.MustCompile(`^internal/(worker|sandbox|fault|resource|machine)(/|$)`)
	for _, p := range load(t) {
		if !strings.HasPrefix(p.Path, "internal/worker") {
			continue
		}
		for _, i := range p.Imports {
			if rest, our := strings.CutPrefix(i, module); our && may.MatchString(rest) {
				continue
			}
			if root, _, _ := strings.Cut(i, "/"); strings.Contains(root, ".") && !strings.HasPrefix(i, "golang.org/x/sys/") {
				t.Errorf("%s imports %s: the worker has the standard library, golang.org/x/sys and a little foundation", p.Path, i)
			}
		}
	}
}

// TestSchedulerIsPure: it decides from a snapshot, so a replay decides the same.
func TestSchedulerIsPure(t *testing.T) {
	banned := []string{"time", "os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "context", "log/slog"}
	for _, p := range load(t) {
		if p.Path != "internal/scheduler" && p.Path != "internal/scheduler/goodput" {
			continue
		}
		for _, i := range p.Imports {
			if rest, our := strings.CutPrefix(i, module); our && !slices.Contains([]string{"internal/resource", "internal/governance/residency", "internal/scheduler/goodput"}, rest) {
				t.Errorf("%s imports %s: it imports resource, residency and the plan of goodput, which are as pure", p.Path, rest)
			}
			if slices.Contains(banned, i) && i != "time" {
				t.Errorf("%s imports %s: no I/O, clock or randomness", p.Path, i)
			}
		}
	}
}

var test = regexp.MustCompile(`test(/|$)`)

// TestNoTestCodeInProduction: what a *test package offers must not run in a server.
func TestNoTestCodeInProduction(t *testing.T) {
	for _, p := range load(t) {
		if test.MatchString(p.Path) || strings.HasPrefix(p.Path, "bench/") {
			continue
		}
		for _, i := range ours(p.Imports) {
			if test.MatchString(i) {
				t.Errorf("%s imports %s, which is for tests", p.Path, i)
			}
		}
	}
}

// TestDriversAndTablesBelongToApp: only app chooses an implementation.
func TestDriversAndTablesBelongToApp(t *testing.T) {
	driver := regexp.MustCompile(`^internal/(compute/engine/(local|slurm|kube|ray)|compute/provisioner/simulated|blob/(fileblob|s3blob)|serving/runtime/(onnx|child|remote|python)|feature/online/(pebble|redis)|.*sql|dataset/sqlworker|dataset/source/(postgres|mariadb|sqlite|files|kafka|nats|s3|hdfs|httpjson))$`)
	for _, p := range load(t) {
		if layer, _ := place(p.Path); layer == inApp || layer == inCmd || layer == outside {
			continue
		}
		for _, i := range ours(p.Imports) {
			if driver.MatchString(i) && !strings.HasPrefix(p.Path, i) && !test.MatchString(p.Path) {
				t.Errorf("%s imports the driver %s: only app chooses drivers", p.Path, i)
			}
		}
	}
}

// TestONNXRuntimeIsOpenedInOnePlace: a model file is code of who wrote it. ONNX Runtime is
// opened by the functions here: two are child processes, and the third serves only what the
// setting serving.in_process names. The library is loaded at the first model, so a server
// with the default settings never loads it.
func TestONNXRuntimeIsOpenedInOnePlace(t *testing.T) {
	permitted := map[string]string{
		"internal/app.runtimes":   "the server, for what serving.in_process names",
		"internal/app.runModel":   "the child process of a model",
		"internal/app.runReplica": "the process of a replica on another pool",
		"bench/serving.serveRaw":  "a measurement of the library alone",
	}
	for _, p := range load(t) {
		if !slices.Contains(p.Imports, module+"internal/serving/runtime/onnx") || test.MatchString(p.Path) {
			continue
		}
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				ast.Inspect(d, func(n ast.Node) bool {
					use, ok := n.(*ast.SelectorExpr)
					if !ok || use.Sel.Name != "New" {
						return true
					}
					if of, ok := use.X.(*ast.Ident); !ok || of.Name != "onnx" {
						return true
					}
					where := p.Path + "."
					if f, ok := d.(*ast.FuncDecl); ok {
						where += f.Name.Name
					}
					if permitted[where] == "" {
						t.Errorf("%s opens ONNX Runtime: models run in child processes (docs/adr/0067)", where)
					}
					return true
				})
			}
		}
	}
}

// TestHeavyLibrariesStayInLeaves: linking them costs every importer seconds and
// megabytes, so they are named here with the places that may have them.
func TestHeavyLibrariesStayInLeaves(t *testing.T) {
	leaves := map[string]string{
		"github.com/duckdb/duckdb-go":            "internal/dataset/sqlworker",
		"github.com/cockroachdb/pebble":          "internal/feature/online/pebble bench/features",
		"github.com/redis/rueidis":               "internal/feature/online/redis",
		"github.com/apache/iceberg-go":           "internal/dataset",
		"github.com/mattn/go-sqlite3":            "internal/store internal/dataset/source/sqlite internal/cli/mlflow",
		"github.com/jackc/pgx":                   "internal/store internal/dataset/source/postgres internal/cli/mlflow",
		"github.com/go-sql-driver/mysql":         "internal/dataset/source/mariadb",
		"github.com/minio/minio-go":              "internal/dataset/source/s3 internal/blob/s3blob",
		"github.com/nats-io":                     "internal/dataset/source/nats",
		"github.com/twmb/franz-go":               "internal/dataset/source/kafka",
		"github.com/cedar-policy/cedar-go":       "internal/governance/policy",
		"github.com/landlock-lsm/go-landlock":    "internal/sandbox",
		"github.com/google/go-containerregistry": "internal/oci",
		"cel.dev/cel-go":                         "internal/feature/expr",
		"k8s.io":                                 "internal/compute/engine/kube",
	}
	for _, p := range load(t) {
		for _, i := range p.Imports {
			for lib, home := range leaves {
				at := func(home string) bool { return strings.HasPrefix(p.Path, home) }
				if strings.HasPrefix(i, lib) && !slices.ContainsFunc(strings.Fields(home), at) && !test.MatchString(p.Path) {
					t.Errorf("%s imports %s, which stays in %s", p.Path, i, home)
				}
			}
		}
	}
}

// TestIcebergTable: importing it costs every process 70 ms and 26 MB at start.
func TestIcebergTable(t *testing.T) {
	for _, p := range load(t) {
		if slices.Contains(p.Imports, "github.com/apache/iceberg-go/table") {
			t.Errorf("%s imports iceberg-go/table: use the base package", p.Path)
		}
	}
}

// TestPackageComments: the package comment is the map, in one file.
func TestPackageComments(t *testing.T) {
	for _, p := range load(t) {
		files := 0
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if described(f, p.Name) {
				files++
			}
		}
		if files != 1 && len(p.GoFiles) > 0 {
			t.Errorf("%s has %d package comments: one file begins with \"Package %s …\", the map of the package", p.Path, files, p.Name)
		}
	}
}

func described(f *ast.File, name string) bool {
	if f.Doc == nil {
		return false
	}
	text := f.Doc.Text()
	return name == "main" && text != "" || strings.HasPrefix(text, "Package "+name+" ")
}

// TestPackageNames: a name that fits everything tells nothing.
func TestPackageNames(t *testing.T) {
	for _, p := range load(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "models", "types", "base", "misc", "shared"}, p.Name) {
			t.Errorf("%s: call the package after what it provides", p.Path)
		}
	}
}
