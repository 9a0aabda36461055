package sandbox_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/falaj-ml/falaj/internal/sandbox"
)

// TestNetwork reaches a forwarded socket, also after the server came back.
func TestNetwork(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	dir := filepath.Join(t.TempDir(), "net")
	check(t, os.Mkdir(dir, 0o711))
	socket := filepath.Join(dir, "api")
	serve := func(text string) *httptest.Server {
		_ = os.Remove(socket)
		l, err := net.Listen("unix", socket)
		check(t, err)
		check(t, os.Chmod(socket, 0o666))
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s %s", text, r.URL.Path)
		}))
		_ = s.Listener.Close()
		s.Listener = l
		s.Start()
		return s
	}
	first := serve("first")
	gate := filepath.Join(v.work, "gate")
	check(t, mkfifo(gate))
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		done := make(chan result, 1)
		go func() {
			done <- v.python(t, `
import urllib.request
url = os.environ['FALAJ_URL']
print(urllib.request.urlopen(url + '/a', timeout=20).read().decode())
open('$WORK/gate', 'w').close()
open('$WORK/gate').close()
print(urllib.request.urlopen(url + '/b', timeout=20).read().decode())`, func(p *sandbox.Policy) {
				p.Level = level
				p.Network.Forwards = []sandbox.Forward{{Port: 7070, Socket: socket, Env: []string{"FALAJ_URL"}}}
			})
		}()
		f, err := os.Open(gate) // it has its first answer
		check(t, err)
		check(t, f.Close())
		first.Close()
		second := serve("second")
		f, err = os.OpenFile(gate, os.O_WRONLY, 0)
		check(t, err)
		check(t, f.Close())
		r := <-done
		if r.err != nil || r.out != "first /a\nsecond /b\n" || len(r.denials) > 0 {
			t.Errorf("%s: %v\n%s\n%v", level, r.err, r.out, r.denials)
		}
		second.Close()
		first = serve("first")
	}
	first.Close()
}
