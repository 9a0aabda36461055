package httpapi

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Starting answers requests until the server is ready: /healthz returns ok, all other paths
// return 503 with the current step of the start. The zero value is ready to use.
type Starting struct {
	server atomic.Pointer[http.Handler]
	at     atomic.Pointer[string]
}

// At sets the current step of the start, such as "upgrading the database, 2 of 7 steps
// done"; empty for none.
func (s *Starting) At(step string) { s.at.Store(&step) }

// Started gives all further requests to the server.
func (s *Starting) Started(server http.Handler) { s.server.Store(&server) }

func (s *Starting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if server := s.server.Load(); server != nil {
		(*server).ServeHTTP(w, r)
		return
	}
	step := "the server is starting"
	if at := s.at.Load(); at != nil && *at != "" {
		step += ": " + *at
	}
	err := fault.New(fault.Unavailable, "%s", step).WithRetry(time.Second)
	switch r.URL.Path {
	case "/healthz":
		plain(w, http.StatusOK, "ok\n")
	case "/readyz":
		setRetry(w.Header(), err)
		plain(w, http.StatusServiceUnavailable, step+"\n")
	default:
		refuse(w, r, err)
	}
}
