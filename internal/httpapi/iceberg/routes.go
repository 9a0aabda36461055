package iceberg

import (
	"net/http"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/governance/policy"
)

// Route is one route of the API.
type Route struct {
	Method  string
	Pattern string // of http.ServeMux, without the method
	// Action is asked of the path's project before anything is decoded. Empty: an
	// authenticated caller is enough.
	Action policy.Action
	// KeepsNothing is a POST that stores nothing.
	KeepsNothing bool

	endpoint string  // as clients are told of it; empty for what they know
	missing  problem // what a 404 is about
	conflict problem // what a 409 is about; a commit when empty
	handle   func(*API, *http.Request) (any, error)
}

// Routes is every route. http.ServeMux answers HEAD with GET.
func Routes() []Route {
	get, post := http.MethodGet, http.MethodPost
	const (
		space = root + "/v1/namespaces/{project}"
		table = space + "/tables/{table}"
		named = "/v1/{prefix}/namespaces/{namespace}"
	)
	return []Route{
		{Method: get, Pattern: root + "/v1/config", handle: (*API).config},
		{Method: post, Pattern: tokenPath, KeepsNothing: true},
		{Method: get, Pattern: root + "/v1/namespaces", endpoint: "/v1/{prefix}/namespaces", missing: noNamespace, handle: (*API).namespaces},
		{Method: get, Pattern: space, Action: "project.read", endpoint: named, missing: noNamespace, handle: (*API).namespace},
		{Method: get, Pattern: space + "/tables", Action: dataset.ActionRead, endpoint: named + "/tables", missing: noNamespace, handle: (*API).tables},
		{Method: post, Pattern: space + "/tables", Action: dataset.ActionImport, endpoint: named + "/tables", missing: noNamespace, conflict: exists, handle: decoded((*API).create)},
		{Method: get, Pattern: table, Action: dataset.ActionQuery, endpoint: named + "/tables/{table}", missing: noTable, handle: (*API).table},
		{Method: post, Pattern: table, Action: dataset.ActionImport, endpoint: named + "/tables/{table}", missing: noTable, handle: decoded((*API).commit)},
		{Method: post, Pattern: table + "/metrics", Action: dataset.ActionQuery, KeepsNothing: true, endpoint: named + "/tables/{table}/metrics", missing: noTable, handle: (*API).metrics},
		{Method: get, Pattern: space + "/views", Action: dataset.ActionRead, missing: noNamespace, handle: (*API).views},
		{Method: get, Pattern: space + "/views/{view}", Action: dataset.ActionRead, missing: noView, handle: (*API).view},
	}
}

// heads are the endpoints that clients may also ask with HEAD.
var heads = []string{"/v1/{prefix}/namespaces/{namespace}", "/v1/{prefix}/namespaces/{namespace}/tables/{table}"}

// endpoints is what clients are told that there is. Views are left out, so that
// they do not look for any.
func endpoints() []string {
	var out []string
	for _, r := range Routes() {
		if r.endpoint != "" {
			out = append(out, r.Method+" "+r.endpoint)
		}
	}
	for _, e := range heads {
		out = append(out, http.MethodHead+" "+e)
	}
	return out
}
