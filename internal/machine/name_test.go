package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	const machineID = "00112233445566778899aabbccddeeff"
	for name, c := range map[string]struct{ host, id, want string }{
		"both":          {"gpu1\n", machineID + "\n", "gpu1/f6daf613d1f6"},
		"renamed":       {"gpu2\n", machineID + "\n", "gpu2/f6daf613d1f6"},
		"no identifier": {"gpu1\n", "", "gpu1"},
		"uninitialised": {"gpu1\n", "uninitialized\n", "gpu1"},
		"no host name":  {"", machineID, "f6daf613d1f6"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range map[string]string{"proc/sys/kernel/hostname": c.host, "etc/machine-id": c.id} {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := Name(root)
			if got != c.want {
				t.Errorf("%q, not %q", got, c.want)
			}
			if strings.Contains(got, machineID) {
				t.Error("the identifier is disclosed")
			}
		})
	}
	if Name("/") == "" {
		t.Error("this machine has no name")
	}
}
