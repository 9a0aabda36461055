package iceberg_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
)

func TestMain(m *testing.M) { datasettest.Main(m, nil) }

const proj = string(datasettest.Project)

// world is the catalog over real datasets, listening. Its tokens are names:
// alice may do everything, reader all but read rows; admin's is bound to no
// project.
type world struct {
	*datasettest.Harness
	url string
}

var tokens = map[string]identity.Principal{
	"alice":  {Kind: identity.User, ID: "alice", Project: datasettest.Project},
	"reader": {Kind: identity.User, ID: "reader", Project: datasettest.Project},
	"admin":  {Kind: identity.User, ID: "admin"},
}

func allow(ctx context.Context, action policy.Action, in string) error {
	who := identity.From(ctx)
	if in != proj || who.ID == "" {
		return fault.New(fault.NotFound, "project %s does not exist", in)
	}
	if who.ID == "reader" && action != dataset.ActionRead && action != "project.read" {
		return fault.New(fault.PermissionDenied, "reader has no role with %s", action)
	}
	return nil
}

type authorizer struct{}

func (authorizer) Allow(ctx context.Context, action policy.Action, object policy.Object) error {
	return allow(ctx, action, object.Project)
}

type projects struct{}

func (projects) List(context.Context, int, string) ([]project.Project, string, error) {
	return []project.Project{{Name: datasettest.Project}}, "", nil
}

func (projects) One(_ context.Context, name project.Name) (project.Project, error) {
	return project.Project{Name: name}, nil
}

func authenticate(_ context.Context, token string) (identity.Principal, error) {
	who, ok := tokens[token]
	if !ok {
		return who, fault.New(fault.Unauthenticated, "the token is not valid")
	}
	return who, nil
}

func open(t *testing.T) *world {
	t.Helper()
	w := &world{Harness: datasettest.New(t, func(c *dataset.Config) { c.Authorizer = authorizer{} })}
	api := &iceberg.API{
		Datasets: w.Tables, Projects: projects{}, Authenticate: authenticate, Gate: allow,
		Ended: func(r *http.Request, err error) error {
			if fault.KindOf(err) == fault.Internal {
				t.Errorf("%s: %v", r.URL.Path, err)
			}
			return err
		},
	}
	mux := http.NewServeMux()
	api.Register(mux)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if iceberg.OpensItself(r) {
			mux.ServeHTTP(rw, r)
			return
		}
		who, err := authenticate(r.Context(), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if err != nil {
			iceberg.Refuse(rw, err)
			return
		}
		mux.ServeHTTP(rw, r.WithContext(identity.With(r.Context(), who)))
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// do sends a request as the bearer of a token.
func (w *world) do(t *testing.T, token, method, path, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if strings.HasSuffix(path, "/tokens") {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// python runs a script of testdata in an environment that scripts/engines.sh
// makes, or skips.
func (w *world) python(t *testing.T, venv, script string, env ...string) string {
	t.Helper()
	bin, err := filepath.Abs("../../../.tmp/venv/" + venv + "/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		const how = "the clients of tables are not installed: make engines"
		if os.Getenv("CI") == "true" { //nolint:forbidigo // a test asks where it runs
			t.Fatal(how)
		}
		t.Skip(how)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "testdata/"+script)
	cmd.Env = append(os.Environ(), append(env, "CATALOG_URI="+w.url+"/iceberg", "CATALOG_TOKEN=alice", "HOME="+t.TempDir())...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

const (
	header = "origin,seen,temp,n,wet,day\n"
	first  = header + "EWR,2013-01-01T00:00:00Z,1.5,9007199254740993,true,2013-01-01\n"
	cold   = header + "EWR,2013-01-01T00:00:00Z,-300,1,true,2013-01-01\n"
	third  = first + "JFK,2013-01-01T01:00:00Z,,2,false,2013-01-02\n,2013-01-01T02:00:00Z,-3,3,,\n"
)

// weather has three versions, the second of which is rejected; blank has none;
// secret is sealed.
func (w *world) weather(t *testing.T) {
	t.Helper()
	warm := expectation.Rule{Check: expectation.Between, Column: "temp", Min: -100, Max: 100}
	w.Put(t, "weather", dataset.Spec{Protection: dataset.Open, Expectations: []expectation.Rule{warm}}, first)
	for _, c := range []struct {
		file  string
		state dataset.State
	}{{cold, dataset.Rejected}, {third, dataset.Accepted}} {
		v, err := w.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: datasettest.Project, Name: "weather", Body: strings.NewReader(c.file)})
		if err != nil || v.State != c.state {
			t.Fatal(v.State, v.Reason, err)
		}
	}
	w.Declare(t, "blank", dataset.Spec{Protection: dataset.Open, Columns: []dataset.Column{{Name: "a", Type: "int64"}, {Name: "b", Type: "string"}}})
	w.Declare(t, "unknown", dataset.Spec{Protection: dataset.Open})
	w.Put(t, "secret", dataset.Spec{}, first)
}
