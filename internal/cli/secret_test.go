package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSecretsAreReadByTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "password.txt"), []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest := `api_version: falaj/v1
kind: Environment
name: e
spec: {python: 3.10}
---
api_version: falaj/v1
kind: Secret
name: s
spec:
  values:
    username: {value: "007"}
    password: {file: password.txt}
    token: {stdin: true}
---
{api_version: falaj/v1, kind: Dataset, name: d}
`
	a := &app{World: World{Stdin: strings.NewReader("from stdin\r\n")}}
	b, err := a.withSecrets([]byte(manifest), filepath.Join(dir, "m.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{"python: 3.10", `"from file"`, `"from stdin"`, `"007"`, "kind: Dataset, name: d"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if a, b := strings.Count(got, "\n"), strings.Count(manifest, "\n"); a != b {
		t.Errorf("%d lines became %d: messages name wrong ones", b, a)
	}
	for _, bad := range []string{"{file: gone.txt}", "{stdin: true}"} {
		a := &app{World: World{Stdin: strings.NewReader("")}}
		if _, err := a.withSecrets([]byte(strings.ReplaceAll(manifest, "{file: password.txt}", bad)), filepath.Join(dir, "m.yaml")); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
