package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestSaidOfTheServer: what the server says of a job that can never run, and of a
// manifest that may not be meant so, is said to people.
func TestSaidOfTheServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/job_never/why"):
			_, _ = io.WriteString(w, `{"possible":false,"reasons":["no pool has gpus"],"waits":[]}`)
		case strings.HasSuffix(r.URL.Path, "/why"):
			_, _ = io.WriteString(w, `{"possible":true,"reasons":["2 cpu wanted, 0 free on home"],"waits":[]}`)
		default:
			_, _ = io.WriteString(w, `{"items":[{"kind":"Queue","name":"lab","result":"created","warnings":["no pool has the accelerator \"gpus\""]}]}`)
		}
	}))
	defer server.Close()
	for line, want := range map[string][2]string{
		"job why job_never -p nyc": {"cannot run as things are:\nno pool has gpus\n", ""},
		"job why job_waits -p nyc": {"2 cpu wanted, 0 free on home\n", ""},
		"apply -f -":               {"queue lab created\n", "warning: queue lab: no pool has the accelerator \"gpus\"\n"},
	} {
		var out, said strings.Builder
		code := Run(t.Context(), World{
			Args: append(strings.Fields(line), "--server", server.URL), Env: []string{"FALAJ_TOKEN=x"}, Stdin: strings.NewReader("kind: Queue\n"), Stdout: &out, Stderr: &said,
		})
		if code != 0 || out.String() != want[0] || said.String() != want[1] {
			t.Errorf("%s: exit code %d\n%s%s", line, code, &out, &said)
		}
	}
}
