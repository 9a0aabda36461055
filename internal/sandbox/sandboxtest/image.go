package sandboxtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Runc is the path of the OCI runtime. Without one, or without root, which
// containers need, the test is skipped; under CI=true an absent runtime fails it.
func Runc(tb testing.TB) string {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("containers need root")
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		absent(tb, "runc")
	}
	return path
}

// Busybox is the path of a statically linked busybox, out of which tests make
// images.
func Busybox(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		absent(tb, "busybox-static")
	}
	return path
}

// BusyboxRoot is the root of an image that has a shell and little else.
func BusyboxRoot(tb testing.TB) string {
	tb.Helper()
	root := tb.TempDir()
	b, err := os.ReadFile(Busybox(tb))
	err = errors.Join(err, os.MkdirAll(filepath.Join(root, "bin"), 0o755), os.MkdirAll(filepath.Join(root, "etc"), 0o755), //nolint:gosec // An image is for all to read.
		os.WriteFile(filepath.Join(root, "bin/busybox"), b, 0o755),                                        //nolint:gosec // As above.
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644), //nolint:gosec // As above.
		os.WriteFile(filepath.Join(root, "etc/secret"), []byte("root's\n"), 0o600),
	)
	for _, name := range Applets {
		err = errors.Join(err, os.Symlink("busybox", filepath.Join(root, "bin", name)))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return root
}

// Applets are the programs of a BusyboxRoot.
var Applets = []string{
	"sh", "cat", "echo", "env", "head", "hostname", "id", "ip", "kill", "ls", "mkdir", "mount", "nc", "ps", "pwd", "readlink",
	"setsid", "sleep", "stat", "touch", "tr", "true", "unshare", "wc", "wget", "whoami",
}

func absent(tb testing.TB, pkg string) {
	tb.Helper()
	if os.Getenv("CI") == "true" { //nolint:forbidigo // The promise of CI is that nothing is skipped.
		tb.Fatalf("%s is not installed: apt-get install %s", pkg, pkg)
	}
	tb.Skipf("%s is not installed: apt-get install %s", pkg, pkg)
}
