package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// TestStoppedBeforeItJoined: an agent that its engine stops before there is
// anything to run ends as if it had been killed, which says nothing of the job.
func TestStoppedBeforeItJoined(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done() // the gang is not complete
	}))
	t.Cleanup(server.Close)
	a := &agent{
		env: map[string]string{
			protocol.EnvIndex: "0", protocol.EnvURL: server.URL + "/worker/", protocol.EnvAddr: "127.0.0.1", protocol.EnvNode: "n1",
		},
		stderr: io.Discard, halting: make(chan struct{}), killing: make(chan struct{}), notes: map[string]string{},
	}
	go func() {
		<-asked
		a.halt("stopped", "its engine sent SIGTERM", 0)
	}()
	if code, err := a.run(t.Context()); code != 128+15 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
}
