// Package script runs the command line of the real binary, against a real
// server, as scripts: testdata/*.txtar. Each script has a directory and a home
// of its own. Scripts whose name begins with "server_" start servers of their
// own with `up`; the others share one server and use a project named after the
// script.
package script

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/falaj-ml/falaj/test/live"
)

func TestScripts(t *testing.T) {
	s := live.New(t, "")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "home")
			if err := os.MkdirAll(home, 0o700); err != nil {
				return err
			}
			e.Setenv("HOME", home)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
			e.Setenv("FALAJ_WORKER_PATH", s.Bin.Worker)
			e.Setenv("FALAJ_ENVIRONMENTS_UV", filepath.Join(s.Bin.Root, "bin", "uv"))
			e.Setenv("FALAJ_URL", s.URL)
			e.Setenv("FALAJ_TOKEN", s.Token)
			e.Setenv("PATH", filepath.Dir(s.Bin.Falaj)+string(filepath.ListSeparator)+os.Getenv("PATH"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"falaj": falaj, "corruptcsv": corruptCSV, "linkarchive": linkArchive, "http": request, "listen": listen, "up": up, "down": down, "secret": secret,
			"token": token, "revoke": revoke, "unset": unset, "expired": expired, "id": ident,
			"certificate": certificate, "oldtls": oldTLS,
		},
	})
}

// falaj CODE ARGS… runs the command line and demands the exit code. The
// negated form is not used: the code says more.
func falaj(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: falaj CODE ARGS…")
	}
	// A shell gives the exit code as a word, and testscript keeps what it says.
	script := `for v in $UNSET; do unset $v; done; out=$(mktemp) && err=$(mktemp) && code=0; falaj "$@" >"$out" 2>"$err" || code=$?; cat "$out"; cat "$err" >&2; rm -f "$out" "$err"; [ "$code" = "$want" ] || { echo "exit code $code, not $want" >&2; exit 1; }`
	ts.Setenv("want", args[0])
	ts.Check(ts.Exec("sh", append([]string{"-c", script, "falaj"}, args[1:]...)...))
}

// corruptcsv FILE ROW writes a CSV whose data row ROW (the first is 1) has a
// word where numbers are.
func corruptCSV(ts *testscript.TestScript, _ bool, args []string) {
	var row int
	_, err := fmt.Sscan(args[1], &row)
	ts.Check(err)
	var b bytes.Buffer
	b.WriteString("id,value\n")
	for i := 1; i <= row+10; i++ {
		if i == row {
			fmt.Fprintf(&b, "%d,broken\n", i)
			continue
		}
		fmt.Fprintf(&b, "%d,%d.5\n", i, i%97)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600))
}

// linkarchive FILE KIND writes a tar.gz with one entry that is not allowed:
// symlink, hardlink or traversal; "good" has none.
func linkArchive(ts *testscript.TestScript, _ bool, args []string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	entries := []*tar.Header{{Name: "train.py", Mode: 0o600, Size: 5, Typeflag: tar.TypeReg}}
	switch args[1] {
	case "symlink":
		entries = append(entries, &tar.Header{Name: "key", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink})
	case "hardlink":
		entries = append(entries, &tar.Header{Name: "key", Linkname: "train.py", Typeflag: tar.TypeLink})
	case "traversal":
		entries = append(entries, &tar.Header{Name: "../../out.py", Mode: 0o600, Size: 5, Typeflag: tar.TypeReg})
	}
	for _, h := range entries {
		ts.Check(w.WriteHeader(h))
		if h.Size > 0 {
			_, err := io.WriteString(w, "pass\n")
			ts.Check(err)
		}
	}
	ts.Check(w.Close())
	ts.Check(z.Close())
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600))
}

// http STATUS METHOD PATH [FILE|size:BYTES] sends a request with the script's
// token and prints the answer; the path is sent as it is written. The token is
// $FALAJ_TOKEN; empty sends none.
func request(ts *testscript.TestScript, _ bool, args []string) {
	var body io.Reader
	if len(args) == 4 {
		if size, ok := strings.CutPrefix(args[3], "size:"); ok {
			var n int64
			_, err := fmt.Sscan(size, &n)
			ts.Check(err)
			body = io.MultiReader(strings.NewReader(`{"x":"`), io.LimitReader(letters{}, n), strings.NewReader(`"}`))
		} else {
			body = strings.NewReader(ts.ReadFile(args[3]))
		}
	}
	req, err := http.NewRequestWithContext(context.Background(), args[1], ts.Getenv("FALAJ_URL")+"/", body)
	ts.Check(err)
	path, query, _ := strings.Cut(args[2], "?")
	req.URL.Opaque = "//" + req.URL.Host + path // not cleaned on the way
	req.URL.RawQuery = query
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token := ts.Getenv("FALAJ_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if purpose := ts.Getenv("PURPOSE"); purpose != "" {
		req.Header.Set("Falaj-Purpose", purpose)
	}
	// A redirect is an answer too.
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	ts.Check(err)
	_, _ = ts.Stdout().Write(append(b, '\n'))
	if got := strconv.Itoa(resp.StatusCode); got != args[0] {
		ts.Fatalf("%s %s: status %s, not %s: %s", args[1], args[2], got, args[0], b)
	}
}

// token FILE takes the token of a `token create -o json` answer.
func token(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("FALAJ_TOKEN", made(ts, args[0]).Secret)
}

// revoke FILE revokes it.
func revoke(ts *testscript.TestScript, _ bool, args []string) {
	falaj(ts, false, []string{"0", "token", "revoke", made(ts, args[0]).ID})
}

// expired FILE waits until it has expired.
func expired(ts *testscript.TestScript, _ bool, args []string) {
	<-time.After(time.Until(made(ts, args[0]).ExpiresAt) + time.Millisecond)
}

func made(ts *testscript.TestScript, file string) (t struct {
	ID, Secret string
	ExpiresAt  time.Time `json:"expires_at"`
},
) {
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &t))
	return t
}

// id FILE VAR puts the id of the object in it, or of the first one of a list, into VAR.
func ident(ts *testscript.TestScript, _ bool, args []string) {
	var list []struct{ ID string }
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &list); err == nil && len(list) > 0 {
		ts.Setenv(args[1], list[0].ID)
		return
	}
	ts.Setenv(args[1], made(ts, args[0]).ID)
}

// certificate CERT KEY writes a certificate for 127.0.0.1 that vouches for itself.
func certificate(ts *testscript.TestScript, _ bool, args []string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	ts.Check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// oldTLS CERT demands that the server refuses TLS 1.2 and takes 1.3.
func oldTLS(ts *testscript.TestScript, _ bool, args []string) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ts.ReadFile(args[0])))
	addr := strings.TrimPrefix(ts.Getenv("FALAJ_URL"), "https://")
	for _, newest := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, MaxVersion: newest})
		if (err == nil) != (newest == tls.VersionTLS13) {
			ts.Fatalf("%s: %v", tls.VersionName(newest), err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}

// unset VAR is as if VAR were never set: an empty FALAJ_ variable is a setting.
func unset(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("UNSET", ts.Getenv("UNSET")+" "+args[0])
}

type letters struct{}

func (letters) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// listen VAR takes a port until the script ends and puts its address into VAR.
func listen(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

// servers has the server that each script started last.
var servers sync.Map

// down stops it.
func down(ts *testscript.TestScript, _ bool, _ []string) {
	s, ok := servers.Load(ts.Name())
	if !ok {
		ts.Fatalf("no server was started")
	}
	ts.Check(s.(*live.Server).Stop())
}

// secret FILE takes the token that is in it and nothing else.
func secret(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv("FALAJ_TOKEN", strings.TrimSpace(ts.ReadFile(args[0])))
}

// up DIR starts a server on a data directory until the script ends and makes it
// the one that the script talks to; SERVER_PID is its process.
func up(ts *testscript.TestScript, _ bool, args []string) {
	s := &live.Server{Bin: live.Bin{Falaj: filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], "falaj"), Worker: ts.Getenv("FALAJ_WORKER_PATH")}, Home: ts.Getenv("HOME"), Data: ts.MkAbs(args[0]), Args: args[1:]}
	ts.Check(s.Start(context.Background()))
	servers.Store(ts.Name(), s)
	ts.Defer(func() { _ = s.Stop() })
	ts.Setenv("FALAJ_URL", s.URL)
	ts.Setenv("FALAJ_TOKEN", s.Token)
	ts.Setenv("SERVER_PID", strconv.Itoa(s.PID()))
}
