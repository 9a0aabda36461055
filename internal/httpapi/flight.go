package httpapi

import (
	"net/http"
	"path"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/flight"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/httpapi/feast"
)

// offlineDatasets implements feast.OfflineDatasets.
type offlineDatasets struct {
	*dataset.Definitions
	*dataset.Reads
	*dataset.Writes
}

// flightRoutes adds Arrow Flight. Its calls are requests of HTTP/2 like others,
// so they pass what all requests pass; the OpenAPI document has no words for them.
func (s *Server) flightRoutes() {
	calls := flight.New(flight.Options{Datasets: s.Datasets, Commands: &feast.Offline{Features: s.Features.OfflineReads, Datasets: offlineDatasets{s.Datasets.Definitions, s.Datasets.Reads, s.Datasets.Writes}}, Ended: s.endedCall, Log: s.log})
	for _, c := range []struct {
		method string
		action policy.Action
	}{
		{"GetFlightInfo", dataset.ActionRead},
		{"GetSchema", dataset.ActionRead},
		{"ListFlights", dataset.ActionRead},
		{"DoGet", dataset.ActionQuery},
		// What Feast's offline store asks for; each command asks for what it needs.
		{"DoExchange", dataset.ActionQuery},
		{"DoPut", dataset.ActionQuery},
	} {
		declared := s.declare(http.MethodPost, flight.Prefix+c.method, c.action).takes(flightBody)
		if flight.Uploads(declared.Path) {
			declared.takes(rowsBody)
		}
		if c.method != "DoPut" {
			declared.keepsNothing()
		}
		s.mux.HandleFunc("POST "+flight.Prefix+c.method, func(w http.ResponseWriter, r *http.Request) {
			in, err := projectOf(r)
			action := c.action
			// DoPut imports rows, or checks what Feast names, for which a query is enough:
			// which of them the body says, and then the right one is asked for.
			if err == nil && c.method == "DoPut" {
				var may bool
				if may, err = s.authz.Permits(r.Context(), dataset.ActionImport, policy.Object{Project: in}); may {
					action = dataset.ActionImport
				}
			}
			if err == nil {
				err = s.gate(r.Context(), action, in)
			}
			if err == nil && r.ProtoMajor < 2 {
				err = fault.New(fault.Invalid, "Arrow Flight requires HTTP/2")
			}
			if err != nil {
				s.fail(w, r, err)
				return
			}
			calls.ServeHTTP(w, r.WithContext(flight.WithAgain(r.Context(), func() (identity.Principal, error) { return s.principal(r) })))
		})
	}
	s.declare(http.MethodPost, flight.Prefix, "").keepsNothing()
	s.mux.HandleFunc("POST "+flight.Prefix, func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, fault.New(fault.Unsupported, "%s is not supported", path.Base(r.URL.Path)).
			WithHint("Read rows with DoGet and write rows with DoPut; import files with `falaj dataset import`."))
	})
}

// Flight is the edge for a listener that speaks Arrow Flight and nothing else.
func (s *Server) Flight() http.Handler {
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !flight.Ours(r.URL.Path) {
			s.fail(w, r, fault.New(fault.Unsupported, "this listener serves Arrow Flight only").WithHint("Use the HTTP listener for the API."))
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
}
