package client_test

import (
	"archive/tar"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

// TestFetchModel: a directory is there when its files are what was signed, and else none
// is, nor a part of one.
func TestFetchModel(t *testing.T) {
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	const a = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
	bundle := func(files string) string {
		return fmt.Sprintf(`{"dsseEnvelope":{"payload":%q}}`, base64.StdEncoding.EncodeToString([]byte(`{"predicate":{"resources":[`+files+`]}}`)))
	}
	good := bundle(`{"name":"a.txt","digest":"` + a + `"},{"name":"sub/empty","digest":"` + empty + `"}`)
	for name, test := range map[string]struct {
		files [][2]string
		want  string
	}{
		"whole":      {[][2]string{{"model/a.txt", "a"}, {"model/sub/empty", ""}, {"model.sig", good}, {"key.pub", "key"}}, ""},
		"changed":    {[][2]string{{"model/a.txt", "b"}, {"model/sub/empty", ""}, {"model.sig", good}}, `file "a.txt" has the digest 3e23`},
		"missing":    {[][2]string{{"model/a.txt", "a"}, {"model.sig", good}}, `file "sub/empty" was signed and is missing`},
		"added":      {[][2]string{{"model/a.txt", "a"}, {"model/b", ""}, {"model/sub/empty", ""}, {"model.sig", good}}, `file "b" has the digest`},
		"cut off":    {[][2]string{{"model/a.txt", "a"}, {"model/sub/empty", ""}}, "model.sig"},
		"no JSON":    {[][2]string{{"model/a.txt", "a"}, {"model.sig", "{"}}, "reading its signature"},
		"leads out":  {[][2]string{{"model/../../a", "a"}}, "escapes"},
		"other JSON": {[][2]string{{"model/a.txt", "a"}, {"model.sig", `{"dsseEnvelope":{"payload":"e30="}}`}}, `and "" was signed`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				out := tar.NewWriter(w)
				for _, f := range test.files {
					_ = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f[0], Size: int64(len(f[1])), Mode: 0o600})
					_, _ = out.Write([]byte(f[1]))
				}
				_ = out.Close()
			}))
			defer server.Close()
			c, err := client.New(server.URL, "token")
			if err != nil {
				t.Fatal(err)
			}
			at := t.TempDir()
			err = c.FetchModel(t.Context(), "nyc", "delay", "1", filepath.Join(at, "delay"))
			left, _ := os.ReadDir(at)
			if test.want == "" {
				if err != nil || len(left) != 1 {
					t.Errorf("%v, and there is %v", err, left)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || len(left) != 0 {
				t.Errorf("%v, want %q, and there is %v", err, test.want, left)
			}
		})
	}
}
