// Package routes walks everything that the real server answers as callers who
// may, may a little, and may not.
//
//   - routes_test.go: each route as each caller, against testdata/routes.txt.
//   - listed_test.go: what a caller sees in lists is what it can get.
//   - world_test.go: the server, its objects, the callers, requests.
package routes

import (
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi"
	"github.com/falaj-ml/falaj/internal/httpapi/mlflow"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/routes.txt, after thought")

const table = "testdata/routes.txt"

const heading = `# What each route answers to whom. A route that is not here, or that answers
# otherwise, fails the test; go test ./test/routes -rewrite writes what is true,
# and the diff is to be read.
#
# no         without credentials, and the same with a malformed and an expired token
# other      an administrator of another project
# role       a member of the project whose role lacks the action; - when no role does
# scope      an administrator of the project with a token scoped to something else;
#            - when the objects decide
# may        the weakest role that has the action; for what is not in a project and
#            takes no action of it, an administrator of the installation
#
# A project that one may not read is not there (404); what exists and is not
# allowed is 403. /ajax-api/ answers what /api/ does and is left out. The requests
# are in world_test.go; a 400 or 404 to who may is that of a request without
# meaning, which came past the gate.
`

// everything lists the routes of the API, from an edge without a server behind
// it. The server's own binary is built from the same code.
func everything() []httpapi.Route {
	return httpapi.New(httpapi.Options{
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Ready: func() error { return nil }, Console: http.NotFoundHandler(),
	}, httpapi.Domains{}).Routes()
}

// row is a line of the table.
type row struct {
	route                       httpapi.Route
	no, other, role, scope, may string
}

func (r row) String() string {
	action := string(r.route.Action)
	if action == "" {
		action = "-"
	}
	method := r.route.Method
	if method == "" {
		method = "any"
	}
	return fmt.Sprintf("%-6s %-62s %-20s %4s %5s %5s %5s %4s", method, r.route.Path, action, r.no, r.other, r.role, r.scope, r.may)
}

// TestEveryRoute asks every route as everybody. The wrong callers go first, and
// nothing may have happened when they are through.
func TestEveryRoute(t *testing.T) {
	w := open(t)
	all := everything()
	if len(all) < 500 {
		t.Fatalf("%d routes", len(all))
	}
	rows := make([]row, len(all))
	since := time.Now()
	for i, route := range all {
		rows[i] = w.refused(t, route)
	}
	if acts := w.effects(t, since); len(acts) > 0 {
		t.Errorf("callers who may not did:\n%s", strings.Join(acts, "\n"))
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	// What takes away comes last, and a project after all that is in it.
	slices.SortStableFunc(order, func(a, b int) int { return takes(all[a]) - takes(all[b]) })
	for _, i := range order {
		rows[i].may = w.permitted(t, all[i])
	}
	compare(t, rows)
}

func takes(r httpapi.Route) int {
	switch {
	case r.Path == "/api/v1/projects/{project}" && r.Method == http.MethodDelete:
		return 3
	case r.Method == http.MethodDelete:
		return 2
	case r.Method != http.MethodGet || strings.HasSuffix(r.Path, "/keys/destroy"):
		return 1
	}
	return 0
}

// refused asks as those who may not, and holds the answers against the rules
// that need no table.
func (w *world) refused(t *testing.T, route httpapi.Route) row {
	t.Helper()
	r := row{route: route, no: w.ask(t, route, nobody).status}
	for _, as := range []caller{malformed, w.expired} {
		if got := w.ask(t, route, as).status; got != r.no {
			t.Errorf("%s %s: %s to %s, %s without credentials", route.Method, route.Path, got, as.name, r.no)
		}
	}
	if route.Open == (r.no == "401") || !route.Open && r.no != "401" {
		t.Errorf("%s %s: %s without credentials; open: %t", route.Method, route.Path, r.no, route.Open)
	}
	if route.Method == http.MethodGet {
		head := route
		head.Method = http.MethodHead
		if got := w.ask(t, head, nobody).status; got != r.no {
			t.Errorf("HEAD %s: %s without credentials", route.Path, got)
		}
	}
	r.other = w.ask(t, route, w.neighbour).status
	inProject := strings.Contains(route.Path, "{project}")
	if inProject && r.other != "404" {
		t.Errorf("%s %s: %s to an administrator of another project", route.Method, route.Path, r.other)
	}
	r.role, r.scope = "-", "-"
	weak, ok := w.without(route.Action)
	if ok {
		r.role = w.ask(t, route, weak).status
	}
	if route.Action != "" {
		r.scope = w.ask(t, route, w.scopedAway(route.Action)).status
		if ok && r.role != "403" || r.scope != "403" {
			t.Errorf("%s %s: %s to %s and %s to a token without the scope, who lack %s", route.Method, route.Path, r.role, weak.name, r.scope, route.Action)
		}
	}
	return r
}

// permitted asks as one who may.
func (w *world) permitted(t *testing.T, route httpapi.Route) string {
	t.Helper()
	got := w.ask(t, route, w.having(route))
	switch status, _ := strconv.Atoi(got.status); {
	case route.Action == "workload.work": // the action is not enough: one must be that attempt
		if status != http.StatusForbidden {
			t.Errorf("%s %s: %s to %s, who is no attempt", route.Method, route.Path, got.status, w.having(route).name)
		}
	case status == http.StatusUnauthorized, status == http.StatusForbidden && route.Action != "", status >= 500 && status != http.StatusNotImplemented:
		t.Errorf("%s %s: %s to %s, who may: %.300s", route.Method, route.Path, got.status, w.having(route).name, got.body)
	case status == http.StatusNotFound && strings.Contains(got.body, "project "+flights+" does not exist"):
		t.Errorf("%s %s: the project is not there for %s", route.Method, route.Path, w.having(route).name)
	}
	return got.status
}

// compare holds the rows against the table. Of MLflow, the second prefix must
// answer as the first, and what is not offered has one line for all of it.
func compare(t *testing.T, rows []row) {
	t.Helper()
	unsupported := map[string]bool{}
	for _, r := range mlflow.Routes() {
		unsupported[r.Method+" "+r.Pattern] = r.Unsupported != ""
	}
	byPath := map[string]row{}
	for _, r := range rows {
		byPath[r.route.Method+" "+r.route.Path] = r
	}
	var lines []string
	families := 0
	for _, r := range rows {
		if twin, ok := byPath[r.route.Method+" "+strings.Replace(r.route.Path, "/ajax-api/", "/api/", 1)]; ok && strings.HasPrefix(r.route.Path, "/ajax-api/") {
			// What the first took away, the second may not find.
			if r.no != twin.no || r.role != twin.role || r.scope != twin.scope {
				t.Errorf("not as its twin:\n%s\n%s", r, twin)
			}
			continue
		}
		if unsupported[r.route.Method+" "+r.route.Path] {
			families++
			r.route = httpapi.Route{Path: "(every part of MLflow that is not offered)"}
			if line := r.String(); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
			continue
		}
		lines = append(lines, r.String())
	}
	if families < 100 {
		t.Errorf("%d routes of MLflow are not offered", families)
	}
	head := row{route: httpapi.Route{Method: "#", Path: "route", Action: "action"}, no: "no", other: "other", role: "role", scope: "scope", may: "may"}
	got := heading + head.String() + "\n" + strings.Join(lines, "\n") + "\n"
	if *rewrite {
		if err := os.WriteFile(table, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the routes do not answer as %s says:\n%s", table, diff)
	}
}

// TestEveryActionIsKnown: a route that asks for an action of its own making
// would be refused to everybody.
func TestEveryActionIsKnown(t *testing.T) {
	for _, r := range everything() {
		if _, ok := policy.Lookup(r.Action); !ok && r.Action != "" {
			t.Errorf("%s %s takes %s, which is not in policy/actions.go", r.Method, r.Path, r.Action)
		}
	}
}
