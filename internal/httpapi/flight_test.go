package httpapi

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/flight"
)

// Who may import and nothing else passes the gate of DoPut, as of the upload of a file;
// so does who may query, as Feast's checks need.
func TestPutGate(t *testing.T) {
	w := open(t)
	for scope, want := range map[string]int{"dataset.import": 400, "dataset.import:x": 400, "dataset.query": 400, "dataset.read": 403} { // 400: HTTP/1.1
		if got := w.do(t, w.attempt(t, "flights", "att_"+scope, scope), "POST", flight.Prefix+"DoPut", ""); got.status != want {
			t.Errorf("%s: %+v", scope, got)
		}
	}
}
